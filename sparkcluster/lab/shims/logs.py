"""dmesg, journalctl and modinfo of this Spark's kernel, never the machine's."""

from __future__ import annotations

import argparse
import glob
import re
import sys

from . import hardware


def dmesg(args: list[str]) -> int:
    """The kernel log from the lab; refused to plain users, as by Ubuntu."""
    del args
    if not hardware.is_root():
        return hardware.refuse("dmesg: read kernel buffer failed: Operation not permitted")
    sys.stdout.write("".join(line + "\n" for line in hardware.load()["kernel_log"]))
    return 0


def journalctl(args: list[str]) -> int:
    """The kernel's part of the journal (``-k``), of this boot or the one before (``-b -1``), to root alone.

    The whole journal of the boot before is the kernel's.
    """
    facts, words = hardware.load(), " ".join(args)
    kernel = any(arg in ("--dmesg", "_TRANSPORT=kernel") or _has(arg, "k") for arg in args)
    before = re.search(r"(?:-b|--boot)[ =]?-1\b", words) is not None
    if not hardware.is_root() or not (kernel or before):
        sys.stdout.write("-- No entries --\n")
        return 0
    stamp = "Nov 21 06:00:00 %s kernel: " % facts["hostname"]
    for line in facts["boot_before" if before else "kernel_log"]:
        seconds, _, text = line.partition("] ")
        if "short-monotonic" in words:
            stamp = "%s] %s kernel: " % (seconds, facts["hostname"])
        sys.stdout.write(("" if "cat" in words else stamp) + text + "\n")
    return 0


def _has(arg: str, letter: str) -> bool:
    return len(arg) > 1 and arg[0] == "-" and arg[1] != "-" and letter in arg


def modinfo(args: list[str]) -> int:
    """``modinfo [-k KERNEL] [-F FIELD] MODULE`` of modules that lie below /lib/modules."""
    parser = argparse.ArgumentParser(prog="modinfo")
    parser.add_argument("-k", "--set-version", dest="kernel", default=hardware.load()["kernel"])
    parser.add_argument("-F", "--field")
    parser.add_argument("-n", "--filename", action="store_const", const="filename", dest="field")
    parser.add_argument("module")
    options = parser.parse_args(args)
    if options.module.startswith("/"):
        found = glob.glob(options.module)
    else:
        found = glob.glob("/lib/modules/%s/**/%s.ko" % (options.kernel, options.module), recursive=True)
    if not found:
        return hardware.refuse("modinfo: ERROR: Module %s not found." % options.module)
    with open(found[0], "rb") as file:
        parts = [part.decode(errors="replace").partition("=") for part in file.read().split(b"\0") if b"=" in part]
    for key, value in [("filename", found[0])] + [(key, value) for key, _, value in parts]:
        if not options.field:
            sys.stdout.write("%-16s%s\n" % (key + ":", value))
        elif key == options.field:
            sys.stdout.write(value + "\n")
    return 0
