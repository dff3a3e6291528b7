"""The work of ``discover``: find Sparks, show them and their cables, and write the inventory."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkcluster import output_file
from sparkcluster.cli import cabling_view, findings_view
from sparkcluster.cli.output import data, emit_json, message, paint, show_error, table, write
from sparkcluster.cli.progress import Shown, awaiting
from sparkcluster.cli.prompts import Terminal
from sparkcluster.errors import UsageError
from sparkcluster.facts.base import read
from sparkcluster.hosts.resolve import SshSettings
from sparkcluster.printable import LINES, shell
from sparkcluster.report import count
from sparkcluster.setup import existing, networks, targets
from sparkcluster.setup.cabling import Cabling, cabling
from sparkcluster.setup.discover import Discovered, Spark, Target, by_name, discover
from sparkcluster.setup.inventory_file import Entry, for_more, new_text, with_nodes
from sparkcluster.setup.ports import Trouble
from sparkcluster.spec import Spec, consent, load, powers


def run(args: argparse.Namespace) -> int:
    """Find Sparks and write an inventory; exit 1 if none was found, or if one could not be reached."""
    spec = _checked(args)
    file: Path | None = args.output or args.into
    with awaiting("looking for Sparks") as waiting, Terminal(waiting.paused, silent=args.json) as terminal:
        if spec:
            consent.accept_inventory(spec, waiting, yes=args.yes)
        machines = _targets(args, spec, terminal, waiting)
        found = discover(machines, networks.attached(), terminal)
        waiting.end()
        sparks = by_name(found.sparks)
        cables = cabling({name: spark.survey for name, spark in sparks.items()})
        if not args.json:
            # Without FILE, stdout carries only the inventory.
            with contextlib.nullcontext() if file else contextlib.redirect_stdout(sys.stderr):
                _show(found, sparks, cables)
        text = _text(args, spec, sparks, cables)
        if text is not None and file is not None:
            existing.check(file, text)
            _write(args, text, terminal.confirm)
        if text is not None:
            files = {"identity": args.identity, "known_hosts": args.known_hosts}
            consent.remember(powers.Power(key, path).digest for key, path in files.items() if path)
    if args.json:
        written = str(file) if file and text is not None else None
        emit_json({**_document(found, sparks, cables), "inventory": text, "file": written})
    elif text is None and args.into:
        message(f"{args.into} already has every Spark that was found")
    elif text is None:
        message("no usable Spark was found", kind="error")
        if not (found.failed or found.skipped):
            message("switch them on, connect them to your LAN, or: sparkcluster discover --host ADDRESS", kind="hint")
    elif file is None:
        write(sys.stdout, text, end="", keep=LINES)
        message("save it as mine.yaml, or add -o mine.yaml, then: sparkcluster setup mine.yaml", kind="next")
    else:
        message(f"wrote {file}")
        message(shell("sparkcluster setup", file), kind="next")
    unreached = found.failed or any(trouble.name == "not-reached" for trouble in found.troubles)
    return 0 if sparks and not unreached else 1


def _checked(args: argparse.Namespace) -> Spec | None:
    """The spec of ``--into``, if given; raises UsageError for invalid arguments."""
    if args.cluster is not None and args.into:
        raise UsageError("--into keeps the name of the cluster", hint="remove --cluster")
    if args.user is not None:
        targets.login_name(args.user)
    if file := args.output or args.into:
        output_file.check_path(file, "-o" if args.output else "--into", "mine.yaml")
    overwrites = args.output and args.output.expanduser().exists() and not args.yes
    if overwrites and not Terminal(silent=args.json).confirm(f"{args.output} already exists: overwrite it?"):
        hint = f"add --yes to overwrite it, or add the Sparks to it: --into {args.output}"
        raise UsageError(f"{args.output} already exists", hint=hint)
    return load.load(args.into, starts=False) if args.into else None


def _targets(args: argparse.Namespace, spec: Spec | None, terminal: Terminal, waiting: Shown) -> list[Target]:
    """The machines to try; new machines use the inventory's SSH settings, unless flags override them."""
    flags = {key: value for key in ("user", "identity", "known_hosts") if (value := getattr(args, key)) is not None}
    ssh = dataclasses.replace(SshSettings(**spec.inventory.ssh.model_dump()) if spec else SshSettings(), **flags)
    listed = targets.of_inventory(spec.inventory) if spec else []
    if args.host:
        found = targets.given(args.host, ssh)
    else:
        found = targets.this_machine() + _announced(ssh, terminal, waiting, ask=not args.yes)
    chosen = targets.joined(listed, found)
    unnamed = targets.without_login([each for each in chosen if each.how != "inventory"])
    answer = (terminal.ask("login name on the Sparks (Enter: yours): ") or "").strip() if unnamed else ""
    if answer:
        targets.login_name(answer)
    return [targets.with_login(each, answer) if answer and each.label in unnamed else each for each in chosen]


def _announced(ssh: SshSettings, terminal: Terminal, waiting: Shown, *, ask: bool) -> list[Target]:
    """Machines that announce SSH and are named like a Spark; asks the operator, since one may be a neighbour's."""
    from sparkcluster.setup.mdns import browse

    browsed = browse(networks.attached())
    likely = [each for each in browsed.candidates if each.looks_like_spark]
    others = [each.name for each in browsed.candidates if not each.looks_like_spark]
    with waiting.paused():
        if others:
            message(f"skipped, not named like a Spark: {', '.join(others)}; use --host to try them")
        if browsed.problem:
            message(f"{browsed.problem}; name each Spark with --host", kind="warning")
    shown = ", ".join(f"{each.name} ({each.address})" for each in likely)
    if ask and likely and (terminal.ask(f"log in to {shown}? [Y/n] ") or "y").strip().lower() not in {"y", "yes"}:
        raise UsageError("no machine was selected", hint="sparkcluster discover --host A --host B   names yours")
    return targets.announced(likely, ssh)


def _text(args: argparse.Namespace, spec: Spec | None, sparks: dict[str, Spark], cables: Cabling) -> str | None:
    """The inventory to write; None if there is nothing to write.

    Raises:
        UsageError, SpecError: the inventory of ``--into`` cannot be extended.
    """
    new = [name for name, spark in sparks.items() if spark.how != "inventory"]
    if not new:
        return None
    files = {"identity": args.identity, "known_hosts": args.known_hosts}
    entries = [Entry(name, sparks[name].host, sparks[name].user, files if spec else {}) for name in new]
    cabled = {frozenset(pair) for segment in cables.segments for pair in itertools.combinations(segment.nodes, 2)}
    if spec is not None:
        names = [*(node.label for node in spec.inventory.nodes), *new]
        text = with_nodes(existing.read(args.into), str(args.into), entries, user=spec.inventory.ssh.user)
        return for_more(text, names, cabled)
    cluster = args.cluster or ("sparks" if len(new) > 1 else new[0])
    return new_text(cluster, entries, cabled=cabled, files=files)


def _write(args: argparse.Namespace, text: str, confirm: Callable[[str], bool]) -> None:
    """Write the inventory to its file; raise UsageError if the operator declines."""
    if args.output:
        output_file.write(args.output, lambda file: file.write(text.encode()))
        return
    for line in existing.difference(args.into, existing.read(args.into), text):
        message(line)
    if not args.yes and not confirm(f"change {args.into}?"):
        raise UsageError(f"{args.into} was not changed", hint="answer y, or add --yes")
    existing.replace(args.into, text)


def _show(found: Discovered, sparks: Mapping[str, Spark], cables: Cabling) -> None:
    """Write the Sparks that were found to stdout, and the others to stderr."""
    if sparks:
        data(paint(f"found {count(len(sparks), 'Spark')}", "bold good"))
        rows = [[value or "unknown" for key, value in row.items() if key != "hostname"] for row in _rows(sparks)]
        table(("SPARK", "ADDRESS", "LOGIN", "DGX OS", "FOUND BY"), rows)
        data()
        surveys = {name: spark.survey for name, spark in sparks.items()}
        for line in cabling_view.draw(surveys, cables, findings_view.width()):
            data(*line)
    for each in found.skipped:
        message(f"skipped {each.label} ({each.host}): {each.why}")
    for error in found.failed.values():
        show_error(error)
    for trouble in _troubles(found, sparks, cables):
        message(trouble.text, kind="warning")
        message(trouble.hint, kind="hint", indent="  ")


def _document(found: Discovered, sparks: Mapping[str, Spark], cables: Cabling) -> dict[str, Any]:
    """The document of ``--json``."""
    failed = [Trouble("not-reached", name, error.message, error.hint or "") for name, error in found.failed.items()]
    return {
        "sparks": list(_rows(sparks)),
        "skipped": [{"name": each.label, "host": each.host, "why": each.why} for each in found.skipped],
        "cabling": [
            {
                "kind": segment.kind,
                "ports": [
                    {"node": port.node, "port": port.name, "interfaces": [twin.name for twin in port.twins]}
                    for port in segment.ports
                ],
            }
            for segment in cables.segments
        ],
        "troubles": [dataclasses.asdict(each) for each in [*failed, *_troubles(found, sparks, cables)]],
    }


def _rows(sparks: Mapping[str, Spark]) -> Iterator[dict[str, str | None]]:
    for name, spark in sparks.items():
        release = read(spark.survey.dgx)
        yield {
            "name": name,
            "host": spark.host,
            "user": spark.user,
            "hostname": spark.survey.hostname,
            "dgx_os": (release.ota_version or release.swbuild_version) if release else None,
            "found_by": spark.how,
        }


def _troubles(found: Discovered, sparks: Mapping[str, Spark], cables: Cabling) -> list[Trouble]:
    """Problems, without duplicates: a port that leads to an unreachable machine is reported only once."""
    names = {spark.label: name for name, spark in sparks.items()}
    troubles = [dataclasses.replace(each, node=names.get(each.node or "", each.node)) for each in found.troubles]
    unreached = {each.node for each in troubles if each.name == "not-reached"}
    return troubles + [each for each in cables.troubles if each.name != "unknown-end" or each.node not in unreached]
