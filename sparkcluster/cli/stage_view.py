"""Output of ``stage``, and of ``upgrade --dry-run``: what was or would be copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkcluster.cli.output import data, table
from sparkcluster.cli.transfers import OUTSIDE
from sparkcluster.report import duration, size

if TYPE_CHECKING:
    from sparkcluster.staging.plan import Staging
    from sparkcluster.staging.run import StageReport


def copied(done: StageReport) -> None:
    """Write a line for each copy, or for what is complete."""
    for staging in done.stagings:
        head, copies = _head(staging), [copy for copy in done.copied if copy.what == staging.what]
        verified = done.verified.get(staging.name) if staging.what == "weights" else None
        for each in done.corrupt if verified else ():
            if each.model == staging.name:
                data(f"{head}: {each}")
        if not copies and verified:
            data(f"{head}: every byte verified on {', '.join(verified)}")
        elif not copies:
            data(f"{head}: {'nothing had to be copied' if staging.missing else 'nothing is missing'}")
        for copy in copies:
            amount = f", {size(copy.bytes)}" if copy.bytes else ""
            rate = f", {size(copy.bytes / copy.seconds)}/s" if copy.bytes and copy.seconds > 0 else ""
            origin = OUTSIDE.get(copy.source, f"from {copy.source}")
            data(f"{head}: {copy.node} {origin}{amount} in {duration(copy.seconds)}{rate}")


def planned(done: StageReport) -> None:
    """Write a line for each artifact, and a table: which node gets it from where, over which network, in what time."""
    rows: list[tuple[str, ...]] = []
    for staging in done.stagings:
        lacks = ", ".join(f"{node}: {why}" for node, why in staging.missing)
        data(f"{_head(staging)}: {lacks or 'nothing is missing'}")
        for node, _ in staging.missing:
            rows += [
                (
                    staging.what,
                    node,
                    each.source,
                    "unknown" if each.bytes is None else size(each.bytes),
                    "unknown" if each.seconds is None else duration(each.seconds),
                    f"{each.over}, encrypted" if each.encrypted and each.medium != "download" else each.over,
                )
                for each in done.expected.get(staging.name, ())
                if each.node == node
            ] or [(staging.what, node, *["unknown"] * 3, "no network reaches a node that has it")]
    if rows:
        table(("WHAT", "NODE", "FROM", "SIZE", "TIME", "OVER"), rows)


def _head(staging: Staging) -> str:
    """Artifact and name; and if a node already had it, that the local copy was not used."""
    unused = staging.given and staging.sources
    why = f" ({staging.sources[0]} has it, {staging.given} was not used)" if unused else ""
    return f"{staging.what}  {staging.name}{why}"
