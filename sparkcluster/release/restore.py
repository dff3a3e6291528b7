"""Let groups run again as a kept release has them, as soon as all nodes answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from sparkcluster.errors import FoundErrors
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.plan.release_record import KEEP, KEEP_IMAGES, kept_rank, next_number, recorded_groups
from sparkcluster.release import journal
from sparkcluster.release.deploy import Deployment
from sparkcluster.release.rollback_target import Kept
from sparkcluster.release.states import GroupState, group_states
from sparkcluster.report import Report
from sparkcluster.runtime.ranks import DRAIN_MOST_S, GRACE_S
from sparkcluster.spec import Spec, consent

# A node that was rebooted is back within minutes: a Spark takes about two.
RETURN_S = 600.0
AGAIN_S = 5.0
# A change waits half of its limit for the one before: for the longest stop of a head that drains.
STOP_S = 2.0 * (DRAIN_MOST_S + GRACE_S) + 60

T = TypeVar("T")


def restore(
    new: Deployment, kept: Kept, names: Sequence[str], *, stopped: Collection[str], former: Mapping[str, Any]
) -> int:
    """Let ``names`` run as ``kept`` has them, in place of ``new``; the number under which that is recorded.

    Of ``stopped`` a stop was begun, so that what runs of them may be about to end. ``former`` as in ``finish``.

    Raises:
        SparkclusterError: that failed too.
    """
    number = 0
    for spec, part in kept.parts(names):
        consent.require(spec)
        old = _reached(new, spec, kept)
        # It waits until a stop has ended that was sent before; what runs is seen only then.
        write_journal(old, names, kept.number, timeout_s=STOP_S)
        old.look()
        groups = group_states(old.view)
        remaining = [name for name in part if name in stopped or not _still_runs(groups[name], kept)]
        dirty = {name: groups[name] for name in remaining if groups[name].ranks}
        if dirty:
            old.clean(dirty)
            old.look()
            groups = group_states(old.view)
        if not remaining:
            continue
        old.prepare(remaining)
        outcomes, hashes = old.launch({name: groups[name] for name in remaining})
        others = recorded_groups(old.view.newest.record) if old.view.newest else {}
        others = {name: each for name, each in others.items() if name not in remaining}
        old.finish(outcomes, hashes, kept=others, former=former)
        number = old.number
    return number or kept.number


def keep(deployment: Deployment, kept: Kept, names: Sequence[str]) -> None:
    """Keep image and secrets of those of ``names`` that run as ``kept`` has them, as a version before kept none."""
    groups = [kept.groups[name] for name in names]
    ours = deployment.view.ranks.ours.items()
    running = {(node, rank.name) for node, found in ours for rank in found if rank.state == "running"}
    step = {
        "do": "record",
        "number": kept.number,
        "record": dict(kept.document),
        "keep": KEEP,
        "keep_images": KEEP_IMAGES,
    }
    deployment.changer.apply(
        {
            node: [step | kept_rank(groups, node)]
            for group in groups
            for node, ranks in group.ranks.items()
            if {(node, rank) for rank in ranks} <= running
        }
    )


def write_journal(deployment: Deployment, groups: Collection[str], source: int, *, timeout_s: float = 120) -> None:
    """Write on every node that ``deployment`` replaces what runs of ``groups``; nothing is stopped before."""
    facts = deployment.view.facts
    switch = journal.document(
        deployment.spec,
        number=next_number(facts),
        source=source,
        groups=groups,
        back=deployment.kept.number if deployment.kept else None,
    )
    deployment.changer.apply(journal.write(deployment.spec, facts, switch), timeout_s=timeout_s)


def _still_runs(group: GroupState, kept: Kept) -> bool:
    """Whether the ranks of a group are those of ``kept``, which were not stopped."""
    running = {
        node: frozenset(rank.name for rank in ranks if rank.state == "running") for node, ranks in group.ranks.items()
    }
    return running == kept.groups[group.name].ranks


def _reached(new: Deployment, spec: Spec, kept: Kept) -> Deployment:
    """The deployment of ``spec``, once all nodes answer: one of them may be starting again."""
    return once_reached(
        new.fleet,
        lambda: Deployment(
            new.changer,
            spec,
            dataclasses.replace(new.options, clear_caches=False),
            new.report,
            staging=new.staging,
            doing=new.doing,
            kept=kept,
        ),
        new.report,
    )


def once_reached(fleet: Fleet, look: Callable[[], T], report: Report) -> T:
    """What ``look`` returns, as soon as all nodes of ``fleet`` answer.

    Raises:
        FoundErrors: a node does not answer for ten minutes.
    """
    until = time.monotonic() + RETURN_S
    while True:
        try:
            return look()
        except FoundErrors as error:
            if time.monotonic() > until:
                raise
            report.progress(error.node or "", f"waiting for all nodes to answer: {error.message}")
            time.sleep(AGAIN_S)
            for host in fleet.hosts.values():
                host.renew()
