"""apt-get, apt-mark, dpkg and dpkg-query, as far as setup uses them; a virtual Spark has no mirror.

Only perftest can be installed (apt-get) or removed (dpkg): the lab provides its program. Other packages are the
machine's, and the real dpkg-query reports them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

from . import hardware

PERFTEST = "/usr/bin/ib_write_bw"
"""The program of the package perftest; exists if it is installed."""

PROGRAM = "/usr/local/lib/gb10/gb10"
HOLDS = "/var/lib/gb10/holds"
"""Packages on hold, one per line; missing if there are none."""

FIELDS = {
    "Package": "perftest",
    "Version": "24.01.0-1build2",
    "db:Status-Status": "installed",
    "db:Status-Want": "install",
}
"""dpkg-query's values for perftest; the version is Ubuntu 24.04's (launchpad.net/ubuntu/noble)."""

LOCKED = "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)"


def apt_get(args: list[str]) -> int:
    """``update``, and ``install`` of perftest; with ``-s`` only prints what would be done."""
    words = [arg for arg, before in zip(args, ["", *args], strict=False) if not arg.startswith("-") and before != "-o"]
    verb, names = (words or ["help"])[0], words[1:]
    if verb not in ("update", "install"):
        return hardware.refuse("E: Invalid operation " + verb, 100)
    if not hardware.is_root():
        return hardware.refuse(LOCKED, 100)
    unknown = [name for name in names if name != "perftest" and not _installed(name)]
    for name in unknown:
        hardware.refuse("E: Unable to locate package " + name)
    if unknown:
        return 100
    if "perftest" in names and not os.path.lexists(PERFTEST):
        if "-s" in args:
            sys.stdout.write("Inst perftest (%s Ubuntu:24.04/noble [arm64])\n" % FIELDS["Version"])
        else:
            os.symlink(PROGRAM, PERFTEST)
            sys.stdout.write("Setting up perftest (%s) ...\n" % FIELDS["Version"])
    return 0


def dpkg(args: list[str]) -> int:
    """``--purge`` of perftest; otherwise runs the real program."""
    if "--purge" not in args or "perftest" not in args:
        os.execv("/usr/bin/dpkg", ["dpkg", *args])
    if not hardware.is_root():
        return hardware.refuse("dpkg: error: requested operation requires superuser privilege", 2)
    if os.path.lexists(PERFTEST):
        os.unlink(PERFTEST)
        sys.stdout.write("Removing perftest (%s) ...\n" % FIELDS["Version"])
    return 0


def dpkg_query(args: list[str]) -> int:
    """``-W [-f FORMAT] PACKAGE...`` of perftest; the real program handles all other packages."""
    parser = argparse.ArgumentParser(prog="dpkg-query", add_help=False, allow_abbrev=False)
    parser.add_argument("-W", "--show", action="store_true")
    parser.add_argument("-f", "--showformat", default="${Package}\\t${Version}\\n")
    parser.add_argument("names", nargs="*")
    options, more = parser.parse_known_args(args)
    if not options.show or "perftest" not in options.names or more:
        os.execv("/usr/bin/dpkg-query", ["dpkg-query", *args])
    others = [name for name in options.names if name != "perftest"]
    code = 0
    if others:
        command = ["/usr/bin/dpkg-query", "-W", "-f", options.showformat, *others]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        code = done.returncode
        for line in done.stdout.decode().splitlines(keepends=True):
            held = line.split(" ")[0] in _holds()
            sys.stdout.write(line.replace(" installed install\n", " installed hold\n") if held else line)
    if not os.path.lexists(PERFTEST):
        return hardware.refuse("dpkg-query: no packages found matching perftest")
    text = re.sub(r"\$\{([^};]*)[^}]*\}", lambda field: FIELDS.get(field.group(1), ""), options.showformat)
    sys.stdout.write(text.replace("\\n", "\n").replace("\\t", "\t"))
    return code


def apt_mark(args: list[str]) -> int:
    """``hold``, ``unhold`` and ``showhold``; the state is a file."""
    verb, names = (args or ["help"])[0], [arg for arg in args[1:] if not arg.startswith("-")]
    held = _holds()
    if verb == "showhold":
        sys.stdout.write("".join(name + "\n" for name in held if not names or name in names))
        return 0
    if verb not in ("hold", "unhold"):
        return hardware.refuse("E: Invalid operation " + verb, 100)
    if not hardware.is_root():
        return hardware.refuse(LOCKED, 100)
    for name in names:
        if not _installed(name):
            return hardware.refuse("E: Unable to locate package " + name, 100)
    for name in names:
        if (name in held) is (verb == "hold"):
            sys.stdout.write("%s was already %s hold.\n" % (name, "set on" if verb == "hold" else "not on"))
        else:
            sys.stdout.write("%s\n" % ("%s set on hold." if verb == "hold" else "Canceled hold on %s.") % name)
    left = sorted(set(held) | set(names)) if verb == "hold" else [name for name in held if name not in names]
    if left:
        hardware.replace(HOLDS, "".join(name + "\n" for name in left))
    elif held:
        os.unlink(HOLDS)
    return 0


def _holds() -> list[str]:
    if not os.path.exists(HOLDS):
        return []
    with open(HOLDS) as file:
        return file.read().split()


def _installed(name: str) -> bool:
    if name == "perftest":
        return os.path.lexists(PERFTEST)
    command = ["/usr/bin/dpkg-query", "-W", "-f=${db:Status-Status}", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return done.stdout.decode() == "installed"
