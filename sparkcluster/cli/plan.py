"""``sparkcluster plan``, also run by ``up --dry-run``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.common import emitted, inventory_argument, option, querying
from sparkcluster.cli.output import message, show_finding, write
from sparkcluster.printable import LINES

if TYPE_CHECKING:
    from sparkcluster.inspect.cluster import View
    from sparkcluster.plan.cost import Difference
    from sparkcluster.release.states import GroupState

NOW = {
    "empty": "is down: up starts it",
    "unloaded": "is on demand and not loaded: up leaves it",
    "started": "is starting: up waits until it answers",
    "serving": "runs as planned: up keeps it if it answers",
    "drifted": "runs as planned, but addresses have changed: up keeps it; --replace restarts it",
    "other": "runs another plan: up refuses if it answers; --replace restarts it",
    "remains": "has stopped, or partly: up removes the rest and starts it",
    "taken": "has ranks here with another state_dir: up refuses",
}
"""The state of a group, by ``release.states.State``, and what ``up`` does then."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``plan``."""
    inventory_argument(parser)
    option(parser, "-v --verbose", "show every variable and command, ready to paste")


def run(args: argparse.Namespace) -> int:
    """Show what ``up`` would do; exit 1 if a finding would stop it."""
    from sparkcluster.findings import has_errors
    from sparkcluster.inspect.cluster import view_cluster
    from sparkcluster.release.serving import states
    from sparkcluster.release.states import differences

    with querying(args) as (fleet, spec, _):
        view = view_cluster(fleet, spec)
    if (plan := view.planned) is None:
        view.stop_on_errors()
        return 1
    groups = states(view)
    changes = {name: differences(view, group) for name, group in groups.items()}
    document = {
        **plan.as_json(),
        "provisional": view.plan is None,
        "findings": [finding.as_json() for finding in view.findings],
        "differences": [each.as_json() for found in changes.values() for each in found],
        "after_ready": view.spec.inventory.after_ready,
    }
    if not emitted(args, document):
        for line in lines(document, verbose=args.verbose):
            write(sys.stdout, line, keep=LINES)
        for finding in view.findings:
            if args.verbose or finding.severity == "error":
                show_finding(finding, indent="", why=args.verbose)
            else:
                message(finding.headline, kind=finding.severity)
        for line in _notes(view, groups, changes, verbose=args.verbose):
            message(line)
    return 1 if has_errors(view.findings) else 0


def _notes(
    view: View, groups: Mapping[str, GroupState], changes: Mapping[str, Sequence[Difference]], *, verbose: bool
) -> Iterator[str]:
    """Notes below the plan: what ``up`` finds, and what the playbook may do."""
    from sparkcluster.spec import library, powers

    spec = view.spec
    if not verbose:
        yield "every variable, mount and command: -v"
    if view.plan is None:
        yield f"provisional until every node has {spec.reference} (sparkcluster stage copies it)"
    for name, group in groups.items():
        state = "drifted" if group.state.value == "serving" and group.drift else group.state.value
        yield f"{spec.inventory.called(name)} {NOW[state]}"
        for each in changes[name]:
            yield from (f"  {line}" for line in (each.shown() if verbose else [each.brief]))
    yield from library.shadowing(spec)
    yield from powers.lines(spec.playbook, spec.inventory, head="permissions of the playbook:", whole=verbose)


def lines(document: dict[str, Any], *, verbose: bool) -> Iterator[str]:
    """A plan as lines: for each node what differs between nodes; ``verbose``: everything, ready to paste."""
    nodes = document["nodes"]
    yield f"cluster {document['cluster']}  plan {document['hash'][:12]}  model {document['model']}"
    yield f"image  {document['image'] or 'none, runtime process'}"
    several = len(document["endpoints"]) > 1
    for name, endpoint in document["endpoints"].items():
        yield f"{name if several else 'endpoint'}  {endpoint}"
    for name, node in nodes.items():
        role = f"{node['role']} of {node['group']}" if several else node["role"]
        yield f"{name}  rank {node['rank']} ({role})"
        for variable, value in sorted({**node["env"], **dict.fromkeys(node["secrets"], "(secret)")}.items()):
            if verbose or any(each["env"].get(variable) != node["env"].get(variable) for each in nodes.values()):
                yield f"  {variable}={value}"
        for container in node["containers"] if verbose else ():
            launcher = container["launcher"]
            inside = [(launcher.get("ray") or {}).get("start"), launcher.get("engine")]
            commands = [*launcher.get("setup", []), *(shlex.join(command) for command in inside if command)]
            yield f"  $ {shlex.join(container['argv'])}"
            yield from (f"    inside: {line}" for line in commands)
