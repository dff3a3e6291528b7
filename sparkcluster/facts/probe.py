"""Sends the probe to every node; the modules that parse the answers are imported meanwhile."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.hosts.program import call

if TYPE_CHECKING:
    from sparkcluster.hosts.base import Host
    from sparkcluster.spec import Spec

PROBE_S = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a node, and when it was requested and received, by this machine's clock in seconds."""

    document: dict[str, Any]
    sent_s: float
    received_s: float


def request(spec: Spec, *, kernel_log: bool = False, also: Sequence[Spec] = ()) -> dict[str, Any]:
    """The probe's request: directories, cluster, image and model, the same for the specs ``also``, names to resolve."""
    inventory = spec.inventory
    return {
        "state_dir": inventory.state_dir,
        "hf_home": inventory.hf_home,
        **_of_release(spec),
        "also": [_of_release(each) for each in also],
        "runtime": inventory.runtime.kind,
        "python": inventory.runtime.python,
        "names": sorted({node.host for node in inventory.nodes if not node.has_address}),
        "kernel_log": kernel_log,
    }


def _of_release(spec: Spec) -> dict[str, Any]:
    playbook = spec.playbook
    return {
        "cluster": spec.inventory.cluster,
        "image": spec.image if spec.inventory.runtime.kind == "docker" else None,
        "model": {**playbook.model.model_dump(), "choice": playbook.choice},
        "companions": [
            {**each.model_dump(), "choice": {**playbook.choice, "include": [], "exclude": []}}
            for each in playbook.companions
        ],
    }


def begin(
    fleet: Fleet,
    spec: Spec,
    names: Iterable[str] | None = None,
    *,
    kernel_log: bool = False,
    also: Sequence[Spec] = (),
) -> Calls[Answer]:
    """Query every node (or ``names``) for its facts, without waiting for the answers."""
    common_request = request(spec, kernel_log=kernel_log, also=also)

    def probe(host: Host) -> Answer:
        node_request = dict(common_request)
        if node_request["runtime"] == "process" and node_request["python"] is None:
            node_request["python"] = host.python
        sent_s = time.time()
        document = call(
            host, "probe", node_request, answer=dict[str, Any], timeout_s=PROBE_S, engine=spec.playbook.engine
        )
        return Answer(document, sent_s, time.time())

    return fleet.start(probe, names)
