"""``sparkcluster releases``."""

from __future__ import annotations

import argparse
import datetime as dt

from sparkcluster.cli.common import emitted, inventory_argument, querying
from sparkcluster.cli.output import note, say, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``releases``."""
    inventory_argument(parser, playbook=False)


def run(args: argparse.Namespace) -> int:
    """List verified releases, newest first."""
    from sparkcluster.inspect.history import history

    with querying(args) as (fleet, spec, _):
        found = history(fleet, spec)
    if emitted(args, {"cluster": spec.inventory.cluster, **found}):
        return 0
    for name, why in found["errors"].items():
        note(f"warning: {name}: {why.removeprefix(f'{name}: ')}")
    releases = found["releases"]
    if not releases:
        say(f"{spec.inventory.cluster} has no releases")
        return 0
    table(
        ("RELEASE", "VERIFIED", "MODEL", "IMAGE", "DIGEST", "PLAN", "NODES"),
        [
            (
                str(release["number"]) + (" *" if release["running"] else ""),
                dt.datetime.fromtimestamp(release["verified_at"], tz=dt.UTC).strftime("%Y-%m-%d %H:%M"),
                str(release["model"]),
                str(release["image"] or "-"),
                str(release["digest"] or "-"),
                release["plan_hash"][:12],
                ", ".join(release["nodes"]),
            )
            for release in releases
        ],
    )
    return 0
