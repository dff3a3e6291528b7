"""``sparkcluster lab``: virtual Sparks on this machine."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from sparkcluster.cli.common import emitted, option
from sparkcluster.cli.output import data, message
from sparkcluster.engines import DEFAULT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands of ``lab`` and their flags."""
    commands = parser.add_subparsers(dest="lab_command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start virtual Sparks; the last line of output is the path of their inventory")
    option(up, "--sparks N", "number of Sparks (default: 2, or as in the spec)", int)
    option(up, "--engine E", f"engine: {DEFAULT}, stub or none", choices=(DEFAULT, "stub", "none"), default=DEFAULT)
    option(up, "--spec FILE", "description of each Spark, see docs/lab.md", Path)
    option(up, "--bare", "Sparks in factory state, without an inventory")
    option(up, "--login HOW", "with --bare: what sshd accepts, key or password", choices=("key", "password"))
    option(up, "--sudo HOW", "with --bare, sudo: free, password or refused", choices=("free", "password", "refused"))

    down = commands.add_parser("down", help="remove the Sparks and all their files, also after a crash")

    fault = commands.add_parser("fault", help="inject a fault")
    option(fault, "node NODE", "name, address or number of a Spark")
    option(fault, "kind KIND?", "kind of fault; if omitted, an error lists the kinds")
    option(fault, "argument ARG*", "arguments of that kind")

    heal = commands.add_parser("heal", help="undo the faults of one Spark or of all")
    option(heal, "node NODE?", "name, address or number of a Spark (default: all)")

    run_on = commands.add_parser("run", help="run a command on a Spark as root, without SSH")
    option(run_on, "node NODE", "name, address or number of a Spark")
    about = "command and arguments after --, or one string for sh (default: a shell); put --name before NODE"
    run_on.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help=about)

    for command in (up, down, fault, heal, run_on):
        option(command, "--name NAME", "name of the lab (default: lab)", default="lab")
    for command in (up, down, fault, heal):
        option(command, "--json", "one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """Run a command of the lab; returns its exit code.

    Raises:
        SparkclusterError: it failed.
    """
    from sparkcluster.lab import core

    if args.lab_command == "up":
        _up(args)
    elif args.lab_command == "down":
        found = core.down(args.name, report=message)
        emitted(args, {"lab": args.name, "removed": found})
        if not found:
            message(f"there is no lab {args.name}")
            message(core.another(args.name) or "sparkcluster lab up", kind="hint")
    elif args.lab_command == "run":
        argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
        if len(argv) == 1 and " " in argv[0]:
            argv = ["sh", "-c", *argv]
        return subprocess.run(core.Lab.open(args.name).spark(args.node).enter(argv or ["bash"]), check=False).returncode
    else:
        if args.lab_command == "fault" and args.kind is None:
            from sparkcluster.errors import UsageError
            from sparkcluster.lab.faults import FAULTS

            kinds = (f"{kind} {fault.argument or ''}".strip() for kind, fault in FAULTS.items())
            raise UsageError("KIND is missing", hint=f"one of: {', '.join(kinds)}")
        lab, healing = core.Lab.open(args.name), args.lab_command == "heal"
        done = lab.heal(args.node) if healing else [lab.fault(args.node, args.kind, *args.argument)]
        if not emitted(args, {"lab": args.name, **({"healed": done} if healing else {"fault": done[0]})}):
            for line in done:
                data(line)
    return 0


def _up(args: argparse.Namespace) -> None:
    """Start a lab, and print commands to try."""
    from sparkcluster.lab import builds, core

    flags = {"bare": args.bare, "login": args.login, "sudo": args.sudo}
    lab = core.Lab.up(args.sparks, engine=args.engine, spec=args.spec, name=args.name, report=message, **flags)
    bare, logins = lab.state.spec.bare, {spark.login for spark in lab.state.spec.sparks}
    images = {} if bare else builds.to_try(lab)
    document = {
        "lab": lab.name,
        "inventory": None if bare else str(lab.inventory),
        **{key: str(getattr(lab, key)) for key in ("directory", "playbook", "identity")},
        "password": lab.password,
        "sparks": [{"name": spark.name, "host": spark.host} for spark in lab.sparks],
    }
    if not emitted(args, document):
        data(str(lab.directory if bare else lab.inventory))
    key = f" -i {lab.identity}" if "key" in logins else ""
    password = f"   the password is {lab.password}" if "password" in logins else ""
    begin = f"discover --user spark{key} -o mine.yaml{password}" if bare else f"up {lab.inventory} --yes"
    command = "sudo sparkcluster" if "SUDO_USER" in os.environ else "sparkcluster"
    message(f"{command} {begin}", kind="next")
    for image, about in images.items():
        message(f"{command} upgrade {lab.inventory} --image {image}   {about}", kind="then")
