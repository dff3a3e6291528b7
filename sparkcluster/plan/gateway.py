"""The gateway of an inventory: its container, and the document that it reads. Pure.

It is a cluster of its own with one rank, so that what sees and stops ranks does so with it; no release records it. Its
directory has the program and ``config.json``, which it reads again when it changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import CONFIG_FILE, GATEWAY_GROUP, LABEL_GROUP, LABEL_PLAN, LABEL_RANK, LABEL_RELEASE
from sparkcluster.plan import docker_run
from sparkcluster.plan.build import labels_of
from sparkcluster.plan.model import ContainerPlan, NodePlan
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Gateway
from sparkcluster.topology.build import gateway as addresses

PROGRAM_FILE = "gateway.py"
RUN_DIR = f"{docker_run.INSIDE}/run"
"""Where its container sees the directory of its sockets."""
# Of memory, it keeps requests of at most 512 MiB, and needs 60 MiB beside them. containerd 2.1.5 leaves a soft limit of
# 1024 open files (moby#51485), and a stream takes two.
_OPTIONS = (
    *("--network", "host", "--restart", "unless-stopped", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),  # noqa: S108
    *("--security-opt", "no-new-privileges", "--pids-limit", "256", "--memory", "1g"),
    *("--ulimit", "nofile=1048576", "--init", "--pull", "never", "--env", "HOME=/tmp"),
    # No GPU, which NVIDIA's runtime, where it is Docker's default, brings where an image asks for it.
    *("--env", "NVIDIA_VISIBLE_DEVICES=void"),
)


def config(
    specs: Sequence[Spec],
    facts: Facts,
    *,
    sizes: Mapping[str, Mapping[str, int | None]],
    room: Mapping[str, int],
    backends: Mapping[str, Sequence[str]],
    start_s: Mapping[str, float | None],
    key: str | None,
    keys: Mapping[str, str],
) -> dict[str, Any]:
    """The document that the gateway reads.

    Args:
        specs: of all models of the inventory, in its order.
        facts: of the gateway's node.
        sizes: bytes that each model takes of each of its nodes, None where unknown; a model left out is unknown.
        room: bytes that all models may take of each node.
        backends: URLs of each model's groups; none of a model that was never started.
        start_s: seconds that its last start took, None where unknown.
        key: value of ``api.key``, by which engines know the gateway as well.
        keys: values of ``gateway.keys`` by name.

    Raises:
        PlanError: its node lacks the address that it has to listen on.
    """
    spec, written = _of_its_node(specs)
    known: dict[str, list[str] | None] = {} if key is None else {key: None}
    known |= {value: written.keys[name].models for name, value in keys.items()}
    return {
        "listen": addresses(spec, facts)[0],
        "port": written.port,
        "run": RUN_DIR if spec.inventory.runtime.kind == "docker" else _run_dir(spec, facts),
        "keys": {hashlib.sha256(value.encode()).hexdigest(): models for value, models in known.items()},
        "engine_key": key,
        "room": dict(room),
        "models": [
            {
                "name": each.model,
                "served": [each.playbook.model_name, *each.playbook.aliases],
                "kind": each.playbook.verifying.kind or "chat",
                "context": engines.engine(each.playbook.engine).api_features(each.playbook).context,
                "sizes": {node.label: sizes.get(each.model, {}).get(node.label) for node in each.inventory.nodes},
                "idle_s": each.idle_s,
                "start_s": start_s.get(each.model),
                "backends": [url.removesuffix("/v1") for url in backends.get(each.model, ())],
            }
            for each in specs
        ],
    }


def rank(specs: Sequence[Spec], facts: Facts, *, image_id: str | None, python: str, program: str) -> NodePlan:
    """What the gateway's node runs; labelled with a hash over all that takes a restart to change.

    Args:
        specs: as of ``config``.
        facts: likewise.
        image_id: local ID of its image; None with runtime ``process``.
        python: interpreter with aiohttp, in the image or on the node.
        program: source of the program.

    Raises:
        PlanError: as ``config``.
    """
    spec, written = _of_its_node(specs)
    cluster, node, run = spec.gateway_cluster, spec.gateway_node, _run_dir(spec, facts)
    name = docker_run.container_name(f"sparkcluster-{cluster}")
    rank_dir = f"{facts.state_dir}/clusters/{cluster}/ranks/{name}"
    labels = labels_of(spec, cluster, node, facts.state_dir, rank_dir)
    labels |= {LABEL_GROUP: GATEWAY_GROUP, LABEL_RANK: "0", LABEL_RELEASE: "0"}
    inside = rank_dir if image_id is None else f"{docker_run.INSIDE}/{GATEWAY_GROUP}"
    argv = [python, "-I", f"{inside}/{PROGRAM_FILE}", f"{inside}/{CONFIG_FILE}"]
    takes_restart = [image_id, argv, program, _OPTIONS, addresses(spec, facts)[0], written.port]
    labels[LABEL_PLAN] = hashlib.sha256(json.dumps(takes_restart).encode()).hexdigest()
    if image_id is not None:
        # As its node's user, for whom the files are.
        options = ["--name", name, "--user", f"{facts.uid}:{facts.uid}", *_OPTIONS, *docker_run.LOGS]
        options += [word for label in sorted(labels.items()) for word in ("--label", "=".join(label))]
        options += [*docker_run.bind(rank_dir, inside, read_only=True), *docker_run.bind(run, RUN_DIR)]
        argv = ["docker", "run", "--detach", *options, "--entrypoint", python, image_id, *argv[1:]]
    container = ContainerPlan(name, image_id, tuple(argv), {}, rank_dir, (rank_dir, run), labels=labels)
    return NodePlan(node, GATEWAY_GROUP, "head", 0, {}, (), (container,))


def _of_its_node(specs: Sequence[Spec]) -> tuple[Spec, Gateway]:
    """A spec that has the gateway's node, and its section."""
    spec = next(each for each in specs if each.gateway_node in [node.label for node in each.inventory.nodes])
    return spec, spec.inventory.gateway or Gateway()


def _run_dir(spec: Spec, facts: Facts) -> str:
    return f"{facts.state_dir}/clusters/{spec.gateway_cluster}/run"
