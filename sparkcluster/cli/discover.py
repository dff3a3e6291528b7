"""``sparkcluster discover``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import common_flags
from sparkcluster.cli.output import emit_json, message, write
from sparkcluster.printable import LINES

if TYPE_CHECKING:
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.hosts.resolve import SshSettings
    from sparkcluster.setup import inventory_file
    from sparkcluster.setup.cabling import Cabling
    from sparkcluster.setup.discover import Spark, Target
    from sparkcluster.setup.mdns import Candidate
    from sparkcluster.setup.networks import Attached
    from sparkcluster.spec import Spec
    from sparkcluster.spec.inventory import Ssh

_COMMENT_COLUMNS = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``discover``."""
    parser.add_argument(
        "--host",
        metavar="A",
        action="append",
        default=[],
        help="address or name of a Spark, or USER@A, instead of looking for Sparks by mDNS; repeatable",
    )
    parser.add_argument("--user", metavar="U", help="login name on the Sparks (default: that of ~/.ssh/config)")
    parser.add_argument("-i", "--identity", metavar="KEY", type=Path, help="private key file to log in with")
    parser.add_argument("--known-hosts", metavar="K", type=Path, help="known_hosts file instead of ~/.ssh/known_hosts")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster (default: sparks; of one, its own)")
    file = parser.add_mutually_exclusive_group()
    file.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the inventory to FILE, not to stdout")
    file.add_argument("--into", metavar="FILE", type=Path, help="add Sparks that are not in it to the inventory FILE")
    parser.add_argument("--yes", action="store_true", help="overwrite or change FILE without being asked")
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Find Sparks and write an inventory; exit 1 if none was found, or one was not reached."""
    from sparkcluster.cli import discover_view
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.setup import networks
    from sparkcluster.setup.cabling import cabling
    from sparkcluster.setup.discover import by_name, discover

    spec = _checked(args)
    with Waiting("looking for Sparks") as waiting, Terminal(waiting, silent=args.json) as terminal:
        _may_write(args, terminal.confirm)
        attached = networks.attached()
        targets = _targets(args, spec, attached, terminal, waiting)
        hf_home = {"hf_home": spec.inventory.hf_home} if spec else {}
        found = discover(targets, attached, terminal, confirm=terminal.confirm, **hf_home)
        waiting.end()
        sparks = by_name(found.sparks)
        cables = cabling({name: spark.survey for name, spark in sparks.items()})
        file: Path | None = args.output or args.into
        # Without a file, stdout has the inventory and nothing else.
        report = contextlib.nullcontext() if file or args.json else contextlib.redirect_stdout(sys.stderr)
        if not args.json:
            with report:
                discover_view.show(found, sparks, cables)
                missing = [node.label for node in spec.inventory.nodes if node.label in found.failed] if spec else []
                if missing:
                    message(f"not reached, and left in {args.into}: {', '.join(missing)}")
        text = _text(args, spec, sparks, cables)
        if text is not None and file is not None:
            _write(args, text, terminal.confirm)
    if args.json:
        emit_json(discover_view.document(found, sparks, cables, text, file if text is not None else None))
    elif text is None:
        discover_view.show_nothing_new(found, args.into)
    elif file is None:
        write(sys.stdout, text, end="", keep=LINES)
        message("next: save it as mine.yaml, or add -o mine.yaml, then: sparkcluster setup mine.yaml")
    else:
        discover_view.show_written(file)
    return 0 if sparks and not discover_view.unreached(found) else 1


def _checked(args: argparse.Namespace) -> Spec | None:
    """The spec of ``--into``, if it is given; raises UsageError for arguments that cannot be."""
    from sparkcluster import output_file
    from sparkcluster.errors import UsageError
    from sparkcluster.setup.targets import login_name
    from sparkcluster.spec import load

    if args.cluster is not None and args.into:
        raise UsageError("--into keeps the name of the cluster", hint="leave out --cluster")
    if args.cluster is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", args.cluster):
        raise UsageError(f"not a name: {args.cluster[:60]!r}", hint="--cluster lab: letters, digits, dots and dashes")
    if args.user is not None:
        login_name(args.user)
    file = args.output or args.into
    if file is not None:
        output_file.check_path(file, "-o" if args.output else "--into", "mine.yaml")
    return load.load(args.into, starts=False) if args.into else None


def _may_write(args: argparse.Namespace, confirm: Callable[[str], bool]) -> None:
    """Raise UsageError, before any Spark is contacted, where ``FILE`` must not be written or nobody can be asked."""
    from sparkcluster.errors import UsageError

    if args.yes:
        return
    if args.output and args.output.expanduser().exists() and not confirm(f"{args.output} exists; overwrite it?"):
        hint = f"add --yes to overwrite it, or add the Sparks to it: --into {args.output}"
        raise UsageError(f"{args.output} already exists", hint=hint)
    if args.into and (args.json or not sys.stdin.isatty()):
        raise UsageError(f"nobody can be asked whether to change {args.into}", hint="add --yes")


def _settings(args: argparse.Namespace, spec: Spec | None) -> SshSettings:
    """How Sparks are reached that the inventory does not have: as its others, unless flags say otherwise."""
    from sparkcluster.hosts.resolve import SshSettings

    settings = SshSettings(**spec.inventory.ssh.model_dump()) if spec else SshSettings()
    flags = {"user": args.user, "identity": _absolute(args.identity), "known_hosts": _absolute(args.known_hosts)}
    return dataclasses.replace(settings, **{key: value for key, value in flags.items() if value is not None})


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _targets(
    args: argparse.Namespace, spec: Spec | None, attached: Sequence[Attached], terminal: Terminal, waiting: Waiting
) -> list[Target]:
    """The machines to try."""
    from sparkcluster.setup import targets

    ssh = _settings(args, spec)
    listed = targets.of_inventory(spec.inventory) if spec else []
    if args.host:
        found = targets.given(args.host, ssh)
    else:
        found = targets.this_machine() + targets.announced(_candidates(args, attached, terminal, waiting), ssh)
    chosen = targets.joined(listed, found)
    unnamed = targets.without_login([each for each in chosen if each.how != "inventory"])
    answer = (terminal.ask("login name on the Sparks (Enter: yours): ") or "").strip() if unnamed else ""
    if answer:
        targets.login_name(answer)
    return [targets.with_login(each, answer) if answer and each.label in unnamed else each for each in chosen]


def _candidates(
    args: argparse.Namespace, attached: Sequence[Attached], terminal: Terminal, waiting: Waiting
) -> list[Candidate]:
    """Machines that announce SSH: those that the operator picks, or else those that are named like a Spark."""
    from sparkcluster.setup.mdns import browse

    browsed = browse(attached)
    with waiting.paused():
        if browsed.problem:
            message(f"{browsed.problem}; name the Sparks: sparkcluster discover --host A --host B")
        for line in browsed.dropped:
            message(f"not tried: {line}")
    likely = [each for each in browsed.candidates if each.looks_like_spark]
    if not browsed.candidates or args.yes:
        return likely
    lines = [
        f"  {number} {'*' if each in likely else ' '} {each.name}  {each.addresses[0]}"
        for number, each in enumerate(browsed.candidates, 1)
    ]
    which = "which are yours? (numbers or ranges, 0: none, Enter: those with *) "
    question = "\n".join(["these announce SSH (*: named like a Spark):", *lines, which])
    while (answer := terminal.ask(question) or "").strip():
        picked = _picked(answer, len(browsed.candidates))
        if picked is not None:
            return [browsed.candidates[number - 1] for number in picked]
        question = f"answer with numbers of the list, such as 1 3 or 1-3\n{which}"
    return likely


def _picked(answer: str, among: int) -> list[int] | None:
    """The numbers, from 1 to ``among``, in an answer such as ``1 3`` or ``1-3``; ``0`` is none; None for no answer."""
    words = answer.replace(" - ", "-").replace(",", " ").split()
    picked: set[int] = set()
    for word in words if words != ["0"] else ():
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", word)
        low, high = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= low <= high <= among:
            return None
        picked |= set(range(low, high + 1))
    return sorted(picked)


def _text(args: argparse.Namespace, spec: Spec | None, sparks: dict[str, Spark], cables: Cabling) -> str | None:
    """The inventory to write, checked; None where there is nothing to write."""
    from sparkcluster.cli import cabling_view
    from sparkcluster.setup import inventory_file

    new = {name: spark for name, spark in sparks.items() if spark.how != "inventory"}
    if not new:
        return None
    cabled = {frozenset(pair) for segment in cables.segments for pair in itertools.combinations(segment.nodes, 2)}
    if spec is not None:
        return _added(args.into, spec, new, cabled)
    entries = [inventory_file.Entry(name, spark.host, spark.user) for name, spark in new.items()]
    surveys = {name: spark.survey for name, spark in sparks.items()}
    return inventory_file.new_text(
        args.cluster or ("sparks" if len(entries) > 1 else entries[0].name),
        entries,
        cabled=cabled,
        ssh=inventory_file.Ssh(_absolute(args.identity), _absolute(args.known_hosts)),
        drawing=cabling_view.draw(surveys, cables, width=_COMMENT_COLUMNS) if len(entries) > 1 else (),
    )


def _added(into: Path, spec: Spec, new: Mapping[str, Spark], cabled: Collection[frozenset[str]]) -> str:
    """The inventory ``into`` with the Sparks that are ``new`` in it, checked."""
    from sparkcluster.errors import SpecError
    from sparkcluster.setup import existing, inventory_file

    ssh = spec.inventory.ssh
    entries = [
        inventory_file.Entry(name, spark.host, spark.user, _other_files(spark.address.ssh, ssh))
        for name, spark in new.items()
    ]
    names = [*(node.label for node in spec.inventory.nodes), *new]
    text = inventory_file.with_nodes(existing.read(into), str(into), entries, user=ssh.user)
    made = inventory_file.for_more(text, names, cabled)
    if made != text:
        message(f"playbook {inventory_file.PAIR} replaces {inventory_file.ONE_SPARK}, which is for one Spark")
    try:
        existing.check(into, made)
    except SpecError as error:
        # at its nodes: the playbook is not for so many, and groups cannot name nodes that the file lacks
        way_on = f"set another playbook in {into}, such as {inventory_file.PAIR}, and run this again"
        hint = f"{way_on}; sparkcluster playbooks --sparks {len(names)} lists others"
        raise SpecError(
            [dataclasses.replace(each, hint=hint) if each.path == "nodes" else each for each in error.problems]
        ) from None
    return made


def _other_files(used: SshSettings, inventory: Ssh) -> inventory_file.Ssh:
    """Of the files with which a Spark was reached those that are not of the ``inventory`` for every node."""
    from sparkcluster.setup import inventory_file

    def other(file: str | None, listed: str | None) -> str | None:
        return file if file and Path(file).expanduser() != Path(listed or "").expanduser() else None

    return inventory_file.Ssh(other(used.identity, inventory.identity), other(used.known_hosts, inventory.known_hosts))


def _write(args: argparse.Namespace, text: str, confirm: Callable[[str], bool]) -> None:
    """Write the inventory to its file; raise UsageError where the operator does not want that."""
    from sparkcluster import output_file
    from sparkcluster.errors import UsageError
    from sparkcluster.setup import existing

    if args.output:
        output_file.write(args.output, lambda file: file.write(text.encode()))
        return
    for line in existing.difference(args.into, existing.read(args.into), text):
        message(line)
    if not args.yes and not confirm(f"change {args.into}?"):
        raise UsageError(f"{args.into} is left as it is", hint="answer y, or add --yes")
    existing.replace(args.into, text)
