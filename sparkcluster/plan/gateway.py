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
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import CONFIG_FILE, GATEWAY_GROUP, LABEL_GROUP, LABEL_PLAN, LABEL_RANK, LABEL_RELEASE
from sparkcluster.plan import docker_run
from sparkcluster.plan.build import labels_of
from sparkcluster.plan.model import ContainerPlan, NodePlan
from sparkcluster.plan.release_record import RecordedGroup
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Gateway
from sparkcluster.topology.build import gateway as addresses

PROGRAM_FILE = "gateway.py"
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
    spec: Spec,
    specs: Sequence[Spec],
    facts: Facts,
    recorded: Mapping[str, Mapping[str, RecordedGroup]],
    *,
    sizes: Mapping[str, Mapping[str, int | None]],
    room: int,
    key: str | None,
    keys: Mapping[str, list[str] | None],
) -> dict[str, Any]:
    """The document that the gateway reads.

    Args:
        spec: of the gateway itself, as ``inspect.gateway.of_inventory`` makes it.
        specs: of all models of the inventory, in its order.
        facts: of the gateway's node.
        recorded: each model's groups, by name; none of a model that was never started.
        sizes: bytes that each model takes of each of its nodes, None where unknown; a model left out is unknown.
        room: bytes that all models may take of a node.
        key: value of ``api.key``, by which engines know the gateway as well.
        keys: the models that each key of clients may use, None for all.

    Raises:
        PlanError: its node lacks the address that it has to listen on.
    """
    return {
        "listen": addresses(spec, facts)[0],
        "port": (spec.inventory.gateway or Gateway()).port,
        "keys": {hashlib.sha256(value.encode()).hexdigest(): models for value, models in keys.items()},
        "engine_key": key,
        "room": room,
        "models": [_model(each, sizes.get(each.model, {}), recorded[each.model]) for each in specs],
    }


def _model(spec: Spec, sizes: Mapping[str, int | None], groups: Mapping[str, RecordedGroup]) -> dict[str, Any]:
    return {
        "name": spec.model,
        "served": [spec.playbook.model_name, *spec.playbook.aliases],
        "kind": spec.playbook.verifying.kind or "chat",
        "context": engines.engine(spec.playbook.engine).api_features(spec.playbook).context,
        "sizes": {node.label: sizes.get(node.label) for node in spec.inventory.nodes},
        "idle_s": spec.idle_s,
        "start_s": next((each.measured.get("start_s") for each in groups.values()), None),
        "backends": [each.plan["endpoints"][name].removesuffix("/v1") for name, each in groups.items()],
    }


def rank(spec: Spec, facts: Facts, program: str) -> NodePlan:
    """What the gateway's node runs; labelled with a hash over all that takes a restart to change.

    Args:
        spec: as of ``config``.
        facts: likewise, with the image, and what it or with runtime ``process`` the node's Python has.
        program: source of the program.

    Raises:
        PlanError: as ``config``.
    """
    cluster, node, image, engine = spec.inventory.cluster, spec.gateway_node, read(facts.image), engine_of(facts)
    name, place = docker_run.container_name(f"sparkcluster-{cluster}"), f"{facts.state_dir}/clusters/{cluster}"
    rank_dir, run = f"{place}/ranks/{name}", f"{place}/run"
    labels = labels_of(spec, cluster, node, facts.state_dir, rank_dir)
    labels |= {LABEL_GROUP: GATEWAY_GROUP, LABEL_RANK: "0", LABEL_RELEASE: "0"}
    python, image_id = engine.python if engine else "python3", image.id if image else None
    # Not the node's paths, which the image may have, closed to this user.
    own, sockets = (rank_dir, run) if image_id is None else (f"{docker_run.INSIDE}/gateway", f"{docker_run.INSIDE}/run")
    argv = [python, "-I", f"{own}/{PROGRAM_FILE}", f"{own}/{CONFIG_FILE}", sockets]
    takes_restart = [image_id, argv, program, _OPTIONS, addresses(spec, facts)]
    labels[LABEL_PLAN] = hashlib.sha256(json.dumps(takes_restart).encode()).hexdigest()
    if image_id is not None:
        # As its node's user, for whom the files are.
        options = ["--name", name, "--user", f"{facts.uid}:{facts.uid}", *_OPTIONS, *docker_run.LOGS]
        options += [word for label in sorted(labels.items()) for word in ("--label", "=".join(label))]
        options += [*docker_run.bind(rank_dir, own, read_only=True), *docker_run.bind(run, sockets)]
        argv = ["docker", "run", "--detach", *options, "--entrypoint", python, image_id, *argv[1:]]
    container = ContainerPlan(name, image_id, tuple(argv), {}, rank_dir, (rank_dir, run), labels=labels)
    return NodePlan(node, GATEWAY_GROUP, "head", 0, {}, (), (container,))
