"""``sparkcluster lab``: virtual Sparks on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.output import message, write
from sparkcluster.errors import UsageError
from sparkcluster.printable import LINES

if TYPE_CHECKING:
    from sparkcluster.lab import Lab


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands of ``lab`` and their flags."""
    commands = parser.add_subparsers(dest="lab_command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start virtual Sparks; the last line is the path of their inventory")
    up.add_argument("--sparks", type=int, metavar="N", help="number of Sparks (default: 2, or as in the spec)")
    up.add_argument("--engine", choices=("vllm", "stub", "none"), default="vllm", help="engine (default: vllm)")
    up.add_argument("--spec", type=Path, metavar="FILE", help="description of each Spark, see docs/lab.md")
    up.add_argument("--bare", action="store_true", help="Sparks as they come out of the box, without inventory")
    up.add_argument("--login", choices=("key", "password"), help="with --bare: what sshd accepts (default: key)")
    up.add_argument(
        "--sudo", choices=("free", "password", "refused"), help="with --bare: what sudo asks for (default: free)"
    )

    down = commands.add_parser("down", help="remove the Sparks and everything of theirs, also after a crash")

    fault = commands.add_parser(
        "fault",
        help="inject a fault",
        usage="sparkcluster lab fault [-h] [--name NAME] [--json] NODE KIND [ARG ...]",
    )
    fault.add_argument("node", metavar="NODE", help="name, address or number of a Spark")
    fault.add_argument("kind", nargs="?", metavar="KIND", help="kind of fault; without it, they are listed")
    fault.add_argument("argument", nargs="*", metavar="ARG", default=[], help="arguments of that kind")

    heal = commands.add_parser("heal", help="undo the faults of one Spark or of all")
    heal.add_argument("node", nargs="?", metavar="NODE", help="name, address or number of a Spark (default: all)")

    run_on = commands.add_parser("run", help="run a command on a Spark as root, without SSH")
    run_on.add_argument("node", metavar="NODE", help="name, address or number of a Spark")
    about = "the command and its arguments, after --, or one text for sh (default: a shell); --name comes before NODE"
    run_on.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help=about)

    for command in (up, down, fault, heal, run_on):
        command.add_argument("--name", default="lab", help="name of the lab (default: lab)")
    for command in (up, down, fault, heal):
        command.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _kinds() -> str:
    from sparkcluster.lab.faults import FAULTS

    return ", ".join(f"{kind} {fault.argument or ''}".strip() for kind, fault in FAULTS.items())


def run(args: argparse.Namespace) -> int:
    """Run a command of the lab; its exit code.

    Raises:
        SparkclusterError: it failed.
    """
    from sparkcluster.lab import core

    if args.lab_command == "up":
        flags = {"bare": args.bare, "login": args.login, "sudo": args.sudo}
        lab = core.Lab.up(args.sparks, engine=args.engine, spec=args.spec, name=args.name, report=message, **flags)
        _print(args, _document(lab), [str(lab.directory if lab.state.spec.bare else lab.inventory)])
        if lab.state.spec.bare:
            message(f"log in as spark with {lab.identity}, or where the spec says so with the password {lab.password}")
            message("sparkcluster discover finds them")
    elif args.lab_command == "down":
        found = core.down(args.name, report=message)
        _print(args, {"lab": args.name, "removed": found}, [])
        if found:
            from sparkcluster.lab.engine.install import cache_directory

            message(f"what every lab is made of stays for the next one: {cache_directory() / 'lab'}")
        else:
            message(f"there is no lab {args.name}")
            if hint := core.another(args.name):
                message(hint, kind="hint")
    elif args.lab_command == "fault":
        if args.kind is None:
            raise UsageError("KIND is missing", hint=f"one of: {_kinds()}")
        done = core.Lab.open(args.name).fault(args.node, args.kind, *args.argument)
        _print(args, {"lab": args.name, "fault": done}, [done])
    elif args.lab_command == "heal":
        lines = core.Lab.open(args.name).heal(args.node)
        _print(args, {"lab": args.name, "healed": lines}, lines)
    else:
        return _run_on(core.Lab.open(args.name), args)
    return 0


def _document(lab: Lab) -> dict[str, Any]:
    """What ``lab up --json`` prints; a bare lab has no inventory, and its user a password."""
    return {
        "lab": lab.name,
        "inventory": None if lab.state.spec.bare else str(lab.inventory),
        "directory": str(lab.directory),
        "playbook": str(lab.playbook),
        "identity": str(lab.identity),
        "password": lab.password,
        "sparks": [{"name": spark.name, "host": spark.host} for spark in lab.sparks],
    }


def _run_on(lab: Lab, args: argparse.Namespace) -> int:
    import subprocess

    argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if len(argv) == 1 and " " in argv[0]:
        argv = ["sh", "-c", *argv]
    return subprocess.run(lab.spark(args.node).enter(argv or ["bash"]), check=False).returncode


def _print(args: argparse.Namespace, document: dict[str, Any], lines: list[str]) -> None:
    text = json.dumps(document) if args.json else "\n".join(lines)
    if text:
        write(sys.stdout, text, keep=LINES)
