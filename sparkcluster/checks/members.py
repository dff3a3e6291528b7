"""Checks of a running cluster's members: every rank there, counted by Ray, recorded, and of one release."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.diagnosis import (
    DOWN,
    ENDED,
    KILLED,
    LOGS,
    UP,
    by_group,
    causes,
    clipped,
    ended_ranks,
    groups,
    node_at,
    of,
    unplaced,
)
from sparkcluster.checks.registry import Context, Seen, running_check
from sparkcluster.engines.signature import EXPLAINED, plain
from sparkcluster.facts.model import Unread
from sparkcluster.facts.running import RankSeen
from sparkcluster.node.shared import LABEL_RELEASE


@running_check(
    "RUN-005",
    "Every rank is running",
    remedy="read that rank's log and its kernel's, then `sparkcluster down` and `up`: all ranks or none",
)
def ranks(context: Context) -> Iterator[Seen]:
    """A group needs all its ranks: if one is gone, the others wait for it, sometimes forever.

    If several exited together, the first is reported, or the one whose log has the reason.
    """
    explained = {found.rank.group for found in causes(context)}
    for group, ended in by_group(ended_ranks(context)).items():
        # Only a person or the kernel does either: other ranks that exited did so because of it.
        taken = [(name, rank) for name, rank in ended if rank.exit_code in KILLED or rank.state == "gone"]
        if not taken and (group in explained or _false_success(context, ended)):
            continue
        for name, rank in taken or ended[:1]:
            others = [f"{other}: {peer.state}" for other, peer in groups(context).get(group, []) if other != name]
            what = KILLED.get(rank.exit_code or 0) or {"gone": "its container no longer exists"}.get(rank.state)
            what = what or f"it exited with code {rank.exit_code}"
            ended_as = f"{rank.name}: {rank.state}" + (f" ({rank.exit_code})" if rank.exit_code is not None else "")
            seen = "; ".join([ended_as, *others, *(part for part in (rank.error, _last_line(rank)) if part)])
            remedy = (f"{LOGS} {name}", f"{DOWN}, then {UP}")
            yield Seen(name, f"the rank of {group} on {name} is not running: {what}", clipped(seen), remedy)


def _last_line(rank: RankSeen) -> str:
    return next((line.strip() for line in reversed(plain(rank.lines)) if line.strip()), "")


@running_check(
    "RUN-006",
    "No rank restarts repeatedly",
    remedy="remove the restart policy, then `sparkcluster down` and `up`",
)
def restarting(context: Context) -> Iterator[Seen]:
    """A rank that restarts alone cannot join its group: it fails again, and leaks memory each time."""
    for name, rank in of(context).ranks():
        if rank.state == "restarting" or rank.restarts > 0:
            seen = f"{rank.name}: {rank.state}, restarted {rank.restarts} times"
            remedy = (f"on {name}: docker update --restart=no {rank.name}", f"{DOWN}, then {UP}")
            yield Seen(name, f"the rank on {name} restarts repeatedly", seen, remedy)


@running_check(
    "RUN-007",
    "Ray has every node, by its address",
    remedy="read that node's log, then `sparkcluster down` and `up`",
)
def ray(context: Context) -> Iterator[Seen]:
    """A node that is not in Ray gets no rank: the placement group waits forever."""
    lost = {name for name, _ in ended_ranks(context)}
    for head, look in of(context).seen():
        if not isinstance(look.ray, dict) or isinstance(look.ranks, Unread):
            continue
        launchers = [rank.launcher for rank in look.ranks if rank.launcher.get("role") == "head"]
        missing = []
        for address in launchers[0].get("members") or () if launchers else ():
            if look.ray.get(address):
                continue
            missing.append(address)
            node = node_at(context, address)
            if node in lost:
                continue
            alive = ", ".join(member for member, alive in look.ray.items() if alive) or "none"
            state = "dead" if address in look.ray else "not there"
            remedy = (LOGS if node is None else f"{LOGS} {node}", f"{DOWN}, then {UP}")
            yield Seen(
                node or head,
                f"Ray has no alive node at {address}",
                f"Ray on {head} lists {address} as {state}; alive: {alive}",
                remedy,
            )
        group = launchers[0].get("group") if launchers else None
        line = unplaced(context, str(group)) if not missing else None
        if line:
            remedy = ("nvidia-smi on every node: what else uses its GPU", f"{DOWN}, then {UP}")
            yield Seen(head, "Ray has every node and still cannot place all ranks", line, remedy)


@running_check(
    "RUN-019",
    "Every record can be read",
    severity="warning",
    source="sparkcluster's own records: docs/architecture.md",
    remedy="run `sparkcluster up` again: it continues with the running ranks and records them",
)
def records(context: Context) -> Iterator[Seen]:
    """`down`, `status` and later changes use the record on each node to find what runs."""
    for name, facts in context.facts.items():
        if isinstance(facts.release, Unread):
            look = (UP, f"ls -l {facts.state_dir}/clusters/{context.spec.inventory.cluster}/releases on {name}")
            yield Seen(name, f"the newest record on {name} cannot be read", facts.release.unread, look)
    running = of(context)
    unreadable = any(isinstance(facts.release, Unread) for facts in context.facts.values())
    if running.recorded is None and not unreadable and not running.lease:
        alive = [name for name, rank in running.ranks() if rank.running]
        if alive:
            seen = f"ranks run on {', '.join(alive)}"
            yield Seen(None, "the running ranks are not recorded as a release", seen, (f"{UP}, which records them",))


@running_check(
    "RUN-020",
    "The running release matches the inventory",
    source="sparkcluster's own records: docs/architecture.md",
    remedy="`sparkcluster down`, then `up`",
)
def same(context: Context) -> Iterator[Seen]:
    """Ranks of two releases never join, and a changed node or playbook takes effect only after the next start."""
    running = of(context)
    releases: dict[str, list[str]] = {}
    for name, rank in running.ranks():
        if rank.running:
            releases.setdefault(rank.labels.get(LABEL_RELEASE, "?"), []).append(name)
    if len(releases) > 1:
        seen = "; ".join(f"release {number} on {', '.join(names)}" for number, names in sorted(releases.items()))
        yield Seen(None, "ranks of several releases run", seen, (DOWN, UP))
    if running.recorded is None or not releases:
        return
    record = running.recorded.record
    written = {node.label for node in context.spec.inventory.nodes}
    for name in record.get("plan", {}).get("nodes", {}):
        if name not in written:
            seen = f"release {running.recorded.number} runs on it"
            remedy = (f"{DOWN}, which stops it there as well", UP)
            yield Seen(None, f"{name} serves but is not in the inventory", seen, remedy, severity="warning")
    served, named = record.get("playbook", {}).get("name"), context.spec.playbook.name
    if served and served != named:
        seen = f"release {running.recorded.number} is {served}"
        compare = (f"{UP}, which shows the difference and changes nothing",)
        yield Seen(None, f"{served} is served, but the inventory specifies {named}", seen, compare, severity="warning")


@running_check(
    "RUN-021",
    "No rank's log shows a known failure",
    source="every signature names its thread in sparkcluster/engines",
    remedy="in the finding",
)
def explained(context: Context) -> Iterator[Seen]:
    """Causes of failed engines that no other check reports: ports, files, versions, arguments."""
    for found in causes(context):
        if found.cause.code == EXPLAINED:
            how = "failed" if found.rank.state in ENDED else "reports an error"
            summary = f"the rank on {found.node} {how}: {found.cause.summary}"
            remedy = (found.cause.hint or f"{LOGS} {found.node}",)
            yield Seen(found.node, summary, clipped(found.cause.line), remedy)


@running_check(
    "RUN-024",
    "An engine that died did not exit with code 0",
    source="sparkrun PR #121",
    remedy="`sparkcluster down` and `up`; judge by an answer, never by an exit code",
)
def false_success(context: Context) -> Iterator[Seen]:
    """An API server may exit with 0 after its engine died, so a restart policy on failure does nothing."""
    explained = {found.rank.group for found in causes(context)}
    for group, ended in by_group(ended_ranks(context)).items():
        if group in explained or any(rank.exit_code in KILLED or rank.state == "gone" for _, rank in ended):
            continue
        for name, line in _false_success(context, ended).items():
            remedy = (f"{LOGS} {name}", f"{DOWN}, then {UP}")
            summary = f"the engine of {group} on {name} died and its server exited with code 0"
            yield Seen(name, summary, clipped(line), remedy)


def _false_success(context: Context, ended: list[tuple[str, RankSeen]]) -> dict[str, str]:
    """Nodes whose rank exited with code 0 after its engine died, with the line about it."""
    found: dict[str, str] = {}
    if context.engine.dead is None:
        return found
    pattern = re.compile(context.engine.dead)
    for name, rank in ended:
        line = next((line for line in reversed(plain(rank.lines)) if pattern.search(line)), None)
        if rank.exit_code == 0 and line:
            found[name] = line.strip()
    return found
