"""Scripts that start vLLM's containers: ``launch-cluster.sh`` of eugr/spark-vllm-docker, and vLLM's ``run_cluster.sh``.

Options: launch-cluster.sh of https://github.com/eugr/spark-vllm-docker at 013cd2e, and
https://docs.vllm.ai/en/stable/examples/online_serving/run_cluster.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkcluster.importer.container import Container, read
from sparkcluster.importer.playbook import by_runner
from sparkcluster.importer.recipe import BY_RUNNER
from sparkcluster.importer.unknown import shown

_EXTRA = "VLLM_SPARK_EXTRA_DOCKER_ARGS"
_CACHE = "/root/.cache/huggingface"
# Options that are passed to docker run.
_HANDED = frozenset({"-e", "-v", "-p", "--env", "--volume", "--publish", "--name"})
_WHY = {
    "-n": "list the Sparks in the inventory", "--nodes": "list the Sparks in the inventory",
    "--nccl-debug": "write NCCL_DEBUG under env",
    "--apply-mod": "mount its directory, and run its run.sh under setup",
}  # fmt: skip
_KEYS: Mapping[str, dict[str, Any]] = {
    "--ray": {"executor": "ray"},
    "--no-ray": {"executor": "native"},
    "--solo": {"nodes": {"max": 1}},
}


def launched(words: list[str], env: Mapping[str, str | None]) -> Container | None:
    """The container that the words start in ``env``; None if they are a different command."""
    program, *rest = words[1:] if words[0].rpartition("/")[2] in {"bash", "sh"} and len(words) > 1 else words
    program = program.rpartition("/")[2]
    if program == "run_cluster.sh" and len(rest) > 3:  # IMAGE HEAD_ADDRESS --head|--worker HF_HOME [OPTIONS]
        box = read([*rest[4:], f"--volume={rest[3]}:{_CACHE}", "--", rest[0]])
        box.entrypoint = "/bin/bash"
        return box
    return _launched(rest, env) if program == "launch-cluster.sh" and "exec" in rest else None


def _launched(rest: list[str], env: Mapping[str, str | None]) -> Container:
    at = rest.index("exec")
    words = [part for word in rest[:at] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    image, options, keys = "vllm-node", list[str](), dict[str, Any]()
    extra = shown(env.get(_EXTRA) or "")
    notes = [f"{_EXTRA}={extra}: write these options as keys of the playbook"] if extra else []
    while words:
        option = words.pop(0)
        value = words.pop(0) if words and not words[0].startswith("-") else ""
        if option in {"-t", "--container"}:
            image = value
        elif option in _HANDED:
            options += [option, value]
        elif option in _KEYS:
            keys |= _KEYS[option]
        elif option not in {"-d", "--non-privileged"}:  # true for every rank
            notes.append(f"{shown(f'{option} {value}').strip()}: {_WHY.get(option, 'a playbook has no such option')}")
    box = read([*options, "--", image, *rest[at + 1 :]])
    box.entrypoint, box.keys = "", keys
    box.notes += [*notes, *by_runner({"env": box.env}, BY_RUNNER, "launch-cluster.sh")]
    return box
