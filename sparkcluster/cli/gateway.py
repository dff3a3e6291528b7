"""What commands do with the gateway of an inventory, in addition to its models."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import common
from sparkcluster.cli.output import data, message, paint, table
from sparkcluster.cli.progress import reporter
from sparkcluster.report import duration, size

if TYPE_CHECKING:
    from sparkcluster.spec import Spec

STARTS = ("up", "upgrade", "rollback", "restart")
_DONE = {"down": "gateway is down", "preflight": "gateway can run"}
TAKES = (*STARTS, *_DONE, "status")
"""Commands that also act on the gateway."""


def run(name: str, args: argparse.Namespace, specs: Sequence[Spec], done: Collection[str]) -> int:
    """Run the command ``name`` for the gateway, after it succeeded for the models ``done``; returns the exit code."""
    from sparkcluster.inspect import gateway as seen
    from sparkcluster.inspect.cluster import see
    from sparkcluster.release import gateway
    from sparkcluster.release.stopping import remove_gateway

    spec, yes = seen.of_inventory(specs), vars(args).get("yes")
    found: dict[str, Any] = {"node": spec.gateway_node, "endpoint": None}
    with (
        reporter(as_json=args.json, json_lines=args.json_lines) as report,
        common.connect_fleet(spec, report, yes=yes) as fleet,
    ):
        if name == "status":
            found = seen.document(fleet, specs)
        elif name == "preflight":
            seen.with_packages(fleet, see(fleet, spec, also=specs), specs, staged=False)
        elif name == "down":
            remove_gateway(fleet, see(fleet, spec), report)
        else:
            found["endpoint"] = gateway.ensure(fleet, specs, done, report)
    if not common.emitted(args, found):
        show(found, _DONE.get(name, "gateway address unknown"))
    return 1 if found.get("why") else 0


def show(found: dict[str, Any], otherwise: str) -> None:
    """The gateway as text: its address, or ``otherwise``, and for ``status`` a line for each model."""
    data(paint(found["endpoint"] or otherwise, "bold"), f" on {found['node']}")
    if found.get("why"):
        message(found["why"], kind="warning")
    if models := found.get("models"):
        table(("MODEL", "STATE", "WAITING", "LAST USED", "MEMORY"), [_row(each) for each in models])


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    used, planned, measured = model.get("last_used_s"), model["planned_bytes"], model["measured_bytes"]
    return (
        model["name"],
        " ".join(filter(None, [model["state"], model.get("progress") or model.get("why")])),
        str(model.get("waiting", 0)),
        "-" if used is None else f"{duration(used)} ago",
        (size(planned) if planned else "unknown") + (f", measured {size(measured)}" if measured else ""),
    )
