"""The gateway of an inventory: its container and its configuration. Pure.

It is a separate cluster with one rank, so that the same code lists and stops it; no release records it. Its directory
contains the program and ``config.json``, which it reloads on changes.
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
# Memory: at most 512 MiB of requests plus 60 MiB. containerd 2.1.5 sets a soft limit of 1024 open files (moby#51485),
# and a stream needs two.
_OPTIONS = (
    *("--network", "host", "--restart", "unless-stopped", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),  # noqa: S108
    *("--security-opt", "no-new-privileges", "--pids-limit", "256", "--memory", "1g"),
    *("--ulimit", "nofile=1048576", "--init", "--pull", "never", "--env", "HOME=/tmp"),
    # No GPU, which NVIDIA's runtime as Docker's default would add if the image requests it.
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
    """The gateway's configuration.

    Args:
        spec: spec of the gateway, from ``inspect.gateway.of_inventory``.
        specs: specs of all models of the inventory, in order.
        facts: facts of the gateway's node.
        recorded: groups of each model by name; empty for a model that was never started.
        sizes: bytes of each model on each of its nodes; None or missing if unknown.
        room: bytes for all models on a node.
        key: value of ``api.key``, which engines require, too.
        keys: models that each client key may use, None for all.

    Raises:
        PlanError: its node lacks the address to listen on.
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
    """The gateway's rank, labelled with a hash of everything that needs a restart to change.

    Args:
        spec: as in ``config``.
        facts: as in ``config``, including the image and its content (or the node's Python, with runtime ``process``).
        program: source code of the program.

    Raises:
        PlanError: as in ``config``.
    """
    cluster, node, image, engine = spec.inventory.cluster, spec.gateway_node, read(facts.image), engine_of(facts)
    name, place = docker_run.valid_name(f"sparkcluster-{cluster}"), f"{facts.state_dir}/clusters/{cluster}"
    rank_dir, run = f"{place}/ranks/{name}", f"{place}/run"
    labels = labels_of(spec, cluster, node, facts.state_dir, rank_dir)
    labels |= {LABEL_GROUP: GATEWAY_GROUP, LABEL_RANK: "0", LABEL_RELEASE: "0"}
    python, image_id = engine.python if engine else "python3", image.id if image else None
    # Not the node's paths, which may exist in the image without access for this user.
    own, sockets = (rank_dir, run) if image_id is None else (f"{docker_run.INSIDE}/gateway", f"{docker_run.INSIDE}/run")
    argv = [python, "-I", f"{own}/{PROGRAM_FILE}", f"{own}/{CONFIG_FILE}", sockets]
    takes_restart = [image_id, argv, program, _OPTIONS, addresses(spec, facts)]
    labels[LABEL_PLAN] = hashlib.sha256(json.dumps(takes_restart).encode()).hexdigest()
    if image_id is not None:
        # As the node's user, who owns the files.
        options = ["--name", name, "--user", f"{facts.uid}:{facts.uid}", *_OPTIONS, *docker_run.LOGS]
        options += [word for label in sorted(labels.items()) for word in ("--label", "=".join(label))]
        options += [*docker_run.bind(rank_dir, own, read_only=True), *docker_run.bind(run, sockets)]
        argv = ["docker", "run", "--detach", *options, "--entrypoint", python, image_id, *argv[1:]]
    container = ContainerPlan(name, image_id, tuple(argv), {}, rank_dir, (rank_dir, run), labels=labels)
    return NodePlan(node, GATEWAY_GROUP, "head", 0, {}, (), (container,))
