"""``sparkcluster releases``."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Mapping
from typing import Any

from sparkcluster.cli.common import at_least, emitted, inventory_argument, option, querying
from sparkcluster.cli.output import data, message, paint, table
from sparkcluster.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``releases``."""
    inventory_argument(parser, playbook=False, one="NUMBER")
    option(parser, "numbers NUMBER*", "two releases to compare", at_least(1))


def run(args: argparse.Namespace) -> int:
    """List verified releases, newest first, or compare two of them."""
    if len(args.numbers) not in {0, 2}:
        raise UsageError("give two releases to compare, or none to list all", hint="sparkcluster releases INVENTORY")
    from sparkcluster.inspect.releases import compared, history

    with querying(args) as (fleet, spec, _):
        found = compared(fleet, spec, *args.numbers) if args.numbers else history(fleet, spec)
    if emitted(args, {"cluster": spec.inventory.cluster, **found}):
        return 1 if found["errors"] else 0
    for name, why in found["errors"].items():
        message(f"{name}: {why.removeprefix(f'{name}: ')}", kind="warning")
    if args.numbers:
        same = f"no recorded difference between releases {found['old']} and {found['new']}"
        for line in found["differences"] or [same]:
            data(line)
    elif found["releases"]:
        table(("RELEASE", "VERIFIED", "BY", "MODEL", "CHANGED", "ROLLBACK"), list(map(_row, found["releases"])))
    else:
        data(f"{spec.inventory.cluster} has no releases")
    return 1 if found["errors"] else 0


def _row(release: Mapping[str, Any]) -> tuple[str, ...]:
    number = str(release["number"])
    return (
        paint(f"{number} *", "bold good") if release["running"] else number,
        dt.datetime.fromtimestamp(release["verified_at"], tz=dt.UTC).strftime("%Y-%m-%d %H:%M"),
        release["operator"].partition(" (pid")[0],
        str(release["model"]),
        _changed(release),
        _kept(release),
    )


def _changed(release: Mapping[str, Any]) -> str:
    """What a release changed compared with the previous one, or which release it restored."""
    if release["operation"] == "restart":
        return "restarted"
    if release["restores"]:
        how = {"rollback": "rollback to", "bench": "bench, restored"}.get(release["operation"])
        return f"{how or release['operation'] + ' failed, restored'} {release['restores']}"
    first, *more = release["changes"] or ["-"]
    return ("bench: " if release["operation"] == "bench" else "") + (f"{first}, {len(more)} more" if more else first)


def _kept(release: Mapping[str, Any]) -> str:
    """Whether a release is a rollback target: ``yes``, what was lost on which nodes, or ``-``."""
    lost = [f"{what} lost on {', '.join(nodes)}" for what, nodes in release["lost"].items() if nodes]
    return "; ".join(lost) or ("yes" if release["kept"] else "-")
