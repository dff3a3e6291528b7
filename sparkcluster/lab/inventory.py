"""Writes the files that ``lab up`` generates for the user: inventory, playbook and known_hosts."""

from __future__ import annotations

from typing import Any

from sparkcluster.lab.state import State, write_atomically
from sparkcluster.output_file import state_home
from sparkcluster.spec import consent
from sparkcluster.spec.load import load

ENGINE_ARGUMENTS: dict[str, Any] = {
    "enforce-eager": True,
    # Precise enough for the same greedy answer with any number of ranks.
    "dtype": "float32",
    "max-model-len": 1024,
    "max-num-seqs": 4,
}
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # Its compiler would add 15 s to the first request, and require a C++ toolchain in the image.
    "TORCHDYNAMO_DISABLE": "1",
}
"""Variables that make the engine light enough for a machine without a GPU."""


def image_of(engine: str) -> str:
    """Build the image of ``engine``; return its reference; without an engine, one that does not exist."""
    if engine == "none":
        return "sparkcluster-lab/none:latest"
    from sparkcluster.lab import images

    return images.prepare(engine).reference


def known_hosts(state: State) -> str:
    """The host key of every Spark, for each of its addresses."""
    rows = []
    for node in state.nodes:
        key = " ".join((node.directory / "host_key.pub").read_text().split()[:2])
        interfaces = [address.partition("/")[0] for f in node.spec.functions if (address := node.address(f))]
        rows += [f"{address} {key}" for address in (node.host, *interfaces, node.name)]
    return "\n".join(rows) + "\n"


def write(state: State) -> None:
    """Write the playbook; for a ready lab also known_hosts and inventory."""
    import yaml

    directory = state.directory
    playbook: dict[str, Any] = {
        "name": "tiny",
        "description": "two layers of random weights, to test that everything works",
        "model": {"path": state.nodes[0].model_path},
        "image": image_of(state.engine),
        "served_name": "tiny",
        "args": ENGINE_ARGUMENTS,
        "env": ENGINE_ENVIRONMENT,
        "container": {"cap_add": ["SYS_NICE"]},
        # Random weights never end an answer, and do not reason.
        "request": {"max_tokens": 512, "temperature": 0},
        "verify": {"prompt": "Say something", "max_tokens": 16, "pause_s": 1},
    }
    inventory = {
        "cluster": state.name,
        "ssh": {
            "user": "root",
            "port": 22,
            "identity": str(directory / "id_ed25519"),
            "known_hosts": str(directory / "known_hosts"),
            "host_keys": "reject",
        },
        "nodes": [{"name": node.name, "host": node.host} for node in state.nodes],
        "interconnect": "auto",
        "playbook": str(directory / "playbook.yaml"),
        "api": {"host": "management", "port": 8000},
        # Open without a key: its network exists only on this machine.
        "ignore": ["NET-020"],
    }
    head = f"# Written by `sparkcluster lab up`; removed by `sparkcluster lab down --name {state.name}`.\n"
    write_atomically(directory / "playbook.yaml", head + yaml.safe_dump(playbook, sort_keys=False))
    if not state.spec.bare:
        write_atomically(directory / "known_hosts", known_hosts(state))
        write_atomically(directory / "inventory.yaml", head + yaml.safe_dump(inventory, sort_keys=False))
        made = load(directory / "inventory.yaml", starts=False)
        consent.remember(each.digest for each in consent.unaccepted(made))
        # From an earlier lab with this name, which may have had other images.
        (state_home() / "staged" / f"{state.name}.json").unlink(missing_ok=True)
