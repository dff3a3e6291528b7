"""Checks of a running cluster's ranks: present, members of Ray, recorded, and of one release."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkcluster.checks.check import AGAIN, DOWN, UP, Seen
from sparkcluster.checks.running_cluster import (
    ENDED,
    LOGS,
    LOGS_OF_NODE,
    Ranks,
    RunningCluster,
    clipped,
    running_check,
)
from sparkcluster.endpoint.find import KEY_NOT_IN_USE, RESTART
from sparkcluster.engines.causes import ABORTED, KILLED, was_killed
from sparkcluster.engines.signature import EXPLAINED, plain
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.running import RankSeen
from sparkcluster.findings import Remedy, here, on_node
from sparkcluster.node.shared import LABEL_RELEASE
from sparkcluster.printable import shell

ENABLE = here("sparkcluster enable INVENTORY", "once it serves, to restart it after a reboot")
LOST = 255
"""Exit code of a container that was lost in a reboot or a crash of Docker (moby#45800)."""

# Of ``ray start --block`` (ray/scripts/scripts.py).
_RAY_BANNER = re.compile(r"will now block forever|Running subprocesses are monitored|NOT reported\.$|Process exit logs")


@running_check(
    "RUN-005",
    "Every rank is running",
    source="sparkrun PR #121: a dead engine's server that exited with code 0",
    remedy=(LOGS_OF_NODE, UP),
)
def ranks(cluster: RunningCluster) -> Iterator[Seen]:
    """A group needs all its ranks: if one is missing, the others wait for it, sometimes forever.

    If several ranks exited, the first is reported, or the rank whose log has the reason. An API server may exit with
    code 0 after its engine died; a restart policy on failure then does nothing.
    """
    for group, ended in cluster.ended.items():
        taken = _taken(cluster, group)
        if not taken and not cluster.unexplained_end(group):
            continue
        false_success = {name: line for name, rank in ended if (line := _engine_death(cluster, rank))}
        for name, line in {} if taken else false_success.items():
            summary = f"the engine of {cluster.called(group)} on {name} died and its server exited with code 0"
            yield Seen(summary, clipped(line), node=name)
        for name, rank in taken or (() if false_success else ended[:1]):
            others = [f"{other}: {peer.state}" for other, peer in cluster.groups.get(group, []) if other != name]
            ending = KILLED.get(rank.exit_code or 0) or {"gone": "its container no longer exists"}.get(rank.state)
            ending = ending or f"it exited with code {'unknown' if rank.exit_code is None else rank.exit_code}"
            ended_as = f"{rank.name}: {rank.state}" + (f" ({rank.exit_code})" if rank.exit_code is not None else "")
            last = _last_line(rank)
            seen = "; ".join(filter(None, [ended_as, *others, rank.error, last and f"its log ends: {last}"]))
            remedy: list[Remedy] | None = None
            if _lost(cluster, rank):
                ending += ", as after a reboot"
                enabled = name in cluster.facts and read(cluster.facts[name].enabled) is not None
                unless = dataclasses.replace(LOGS_OF_NODE, note="if the node was not rebooted")
                remedy = [UP, *([] if enabled else [ENABLE]), unless]
            summary = f"the rank of {cluster.called(group)} on {name} is not running: {ending}"
            yield Seen(summary, clipped(seen), remedy, node=name)


def _engine_death(cluster: RunningCluster, rank: RankSeen) -> str:
    """The line that reports the engine's death in the log of a rank that exited with code 0, or an empty string."""
    return cluster.death(plain(rank.lines)) if rank.exit_code == 0 else ""


def _taken(cluster: RunningCluster, group: str) -> Ranks:
    """Ranks ended from outside, by a person, the kernel or a reboot; other ranks exited as a consequence.

    An aborted rank may have lost its connection to another rank.
    """
    first = None if group in cluster.unlinked else cluster.firsts.get(group)
    return [
        (name, rank)
        for name, rank in cluster.ended[group]
        if rank.state == "gone"
        or (_lost(cluster, rank) and not any(found.rank is rank for found in cluster.causes))
        or was_killed(cluster.engine, rank.lines, rank.exit_code)
        or (rank.exit_code == ABORTED and first is not None and first.node == name)
    ]


def _lost(cluster: RunningCluster, rank: RankSeen) -> bool:
    """Whether its exit was not recorded, neither by Docker nor by the launcher of a process, as in a reboot."""
    return rank.exit_code == (LOST if cluster.spec.inventory.runtime.kind == "docker" else None)


def _last_line(rank: RankSeen) -> str:
    """The last log line; empty if it belongs to the banner of ``ray start``."""
    last = next((line.strip() for line in reversed(plain(rank.lines)) if line.strip()), "")
    return "" if _RAY_BANNER.search(last) else last


@running_check(
    "RUN-028",
    "Guards restart their groups",
    severity="warning",
    source="sparkcluster's own guards: docs/enable.md",
    remedy=(LOGS_OF_NODE, UP),
)
def guarded(cluster: RunningCluster) -> Iterator[Seen]:
    """The guard gives up on a group that hangs after a restart or fails repeatedly; the group stays down."""
    for name, facts in cluster.facts.items():
        if (guard := read(facts.enabled)) is not None and guard.gave_up:
            yield Seen(f"the guard on {name} has given up", clipped(guard.gave_up), node=name)


@running_check(
    "RUN-007",
    "Every node is a member of Ray, by its address",
    remedy=(LOGS_OF_NODE, AGAIN),
)
def ray(cluster: RunningCluster) -> Iterator[Seen]:
    """A node that is not a member of Ray gets no rank, and the placement group waits forever."""
    lost = {name for ended in cluster.ended.values() for name, _ in ended}
    for head, observation in cluster.inspected.items():
        if not isinstance(observation.ray, dict) or isinstance(observation.ranks, Unread):
            continue
        launchers = [rank.launcher for rank in observation.ranks if rank.launcher.get("role") == "head"]
        missing = []
        if launchers and launchers[0].get("group") in cluster.unlinked:
            continue
        for address in launchers[0].get("members") or () if launchers else ():
            if observation.ray.get(address):
                continue
            missing.append(address)
            node = cluster.node_at(address)
            if node in lost:
                continue
            alive = ", ".join(member for member, alive in observation.ray.items() if alive) or "none"
            state = "dead" if address in observation.ray else "missing"
            seen = f"Ray on {head} lists {address} as {state}; alive: {alive}"
            remedy = None if node else (LOGS, AGAIN)
            yield Seen(f"Ray has no alive node at {address}", seen, remedy, node=node or head)
        group = launchers[0].get("group") if launchers else None
        line = cluster.unplaced(str(group)) if not missing else None
        if line:
            remedy = (on_node("nvidia-smi", "shows what else uses its GPU", on="every node"), AGAIN)
            yield Seen("Ray has every node but cannot place all ranks", line, remedy, node=head)


@running_check(
    "RUN-019",
    "Every release record can be read",
    severity="warning",
    source="sparkcluster's own records: docs/internals/threats.md",
    remedy=[dataclasses.replace(UP, note="continues with the running ranks and records them")],
)
def records(cluster: RunningCluster) -> Iterator[Seen]:
    """`down`, `status` and later changes use the release record on each node to find running ranks."""
    for name, facts in cluster.facts.items():
        if isinstance(facts.release, Unread):
            folder = f"{facts.state_dir}/clusters/{cluster.spec.inventory.cluster}/releases"
            remedy = (UP, on_node(shell("ls -l", folder)))
            yield Seen(f"the newest release record on {name} cannot be read", facts.release.unread, remedy, node=name)
    unreadable = any(isinstance(facts.release, Unread) for facts in cluster.facts.values())
    if cluster.recorded is None and not unreadable and not cluster.running.lease:
        alive = [name for name, rank in cluster.ranks if rank.running]
        if alive:
            seen = f"ranks run on {', '.join(alive)}"
            yield Seen("the running ranks are not recorded as a release", seen)


@running_check(
    "RUN-020",
    "The running release matches the inventory",
    source="sparkcluster's own records: docs/internals/threats.md",
    remedy=[dataclasses.replace(UP, note="prints how to keep or undo the difference; a serving model is left running")],
)
def same(cluster: RunningCluster) -> Iterator[Seen]:
    """Ranks of two releases never join, and a changed node or playbook takes effect at the next start."""
    releases: dict[str, list[str]] = {}
    for name, rank in cluster.ranks:
        if rank.running:
            releases.setdefault(rank.labels.get(LABEL_RELEASE, "?"), []).append(name)
    if len(releases) > 1:
        seen = "; ".join(f"release {release} on {', '.join(names)}" for release, names in sorted(releases.items()))
        yield Seen("ranks of several releases are running", seen, (DOWN, UP))
    if cluster.recorded is None or not releases:
        return
    number = cluster.recorded.number
    written = {node.label for node in cluster.spec.inventory.nodes}
    for name in cluster.recorded.nodes:
        if name not in written:
            seen = f"release {number} runs on it"
            also = here("sparkcluster down INVENTORY --also HOST", f"with the address of {name}: stops its ranks, too")
            remedy = (also, UP)
            yield Seen(f"{name} serves but is not in the inventory", seen, remedy, severity="warning")
    record = cluster.recorded.record
    selected: Mapping[str, Any] = next((each.get("selected", {}) for each in record.get("groups", {}).values()), {})
    if differing := cluster.spec.differs(selected):
        yield Seen(f"release {number}, which serves, {differing}", "its record", severity="warning")
    yield from _rotated(cluster)


def _rotated(cluster: RunningCluster) -> Iterator[Seen]:
    if cluster.running.key_lost:
        seen, make = cluster.running.key_lost
        remedy = [here(f"{make} && {RESTART}", "makes a new key and restarts with it")]
        yield Seen("the API key that the cluster requires is not on this machine", seen, remedy, severity="warning")
    for group, names in cluster.running.rotated.items():
        called = cluster.called(group)
        for variable in names:
            seen = f"{called} was started without {variable} or with a different value"
            if variable == cluster.engine.api_key:
                seen += f": {KEY_NOT_IN_USE}"
            remedy = [here(RESTART, "restarts with the new value")]
            yield Seen(f"{variable} has changed since {called} was started", seen, remedy, severity="warning")


@running_check(
    "RUN-021",
    "Logs of ranks show no known failure",
    source="signatures in sparkcluster/engines, each with its source",
    remedy=[LOGS_OF_NODE],
)
def explained(cluster: RunningCluster) -> Iterator[Seen]:
    """Causes of engine failures without a separate check: ports, files, versions, arguments."""
    for found in cluster.causes:
        if found.cause.code == EXPLAINED:
            how = "failed" if found.rank.state in ENDED or found.node != found.reporter else "reports an error"
            by = f", according to the log of {found.reporter}" if found.node != found.reporter else ""
            summary = f"the rank on {found.node} {how}{by}: {found.cause.summary}"
            remedy = [found.cause.hint] if found.cause.hint else None
            yield Seen(summary, clipped(found.cause.line), remedy, node=found.node)
