"""dmesg, journalctl and modinfo for this Spark's kernel, never the machine's."""

from __future__ import annotations

import glob
import re
import sys
import time

from . import hardware


def dmesg(args: list[str]) -> int:
    """The kernel log from the lab; denied to plain users, as on Ubuntu."""
    del args
    if not hardware.is_root():
        return hardware.refuse("dmesg: read kernel buffer failed: Operation not permitted")
    sys.stdout.write("".join(line + "\n" for line in hardware.load()["kernel_log"]))
    return 0


def journalctl(args: list[str]) -> int:
    """The kernel's part of the journal (``-k``), of this boot or the previous one (``-b -1``), for root only.

    The complete journal of the previous boot is the kernel's. Times as with ``-o short-iso --utc``.
    """
    facts, words = hardware.load(), " ".join(args)
    kernel = any(arg in ("--dmesg", "_TRANSPORT=kernel") or _has(arg, "k") for arg in args)
    before = re.search(r"(?:-b|--boot)[ =]?-1\b", words) is not None
    if not hardware.is_root() or not (kernel or before):
        sys.stdout.write("" if "-q" in args else "-- No entries --\n")
        return 0
    booted_s = time.time() - time.monotonic()
    for line in facts["boot_before" if before else "kernel_log"]:
        seconds, _, text = line.lstrip("[ ").partition("] ")
        at = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(booted_s + float(seconds)))
        sys.stdout.write("%s %s kernel: %s\n" % (at, facts["hostname"], text))
    return 0


def _has(arg: str, letter: str) -> bool:
    return len(arg) > 1 and arg[0] == "-" and arg[1] != "-" and letter in arg


def modinfo(args: list[str]) -> int:
    """``modinfo -F FIELD -k KERNEL MODULE`` for a module below /lib/modules."""
    options = dict(zip(args[:-1:2], args[1:-1:2], strict=True))
    found = glob.glob("/lib/modules/%s/**/%s.ko" % (options["-k"], args[-1]), recursive=True)
    if not found:
        return hardware.refuse("modinfo: ERROR: Module %s not found." % args[-1])
    with open(found[0]) as file:
        fields = dict(line.rstrip("\n").partition("=")[::2] for line in file)
    sys.stdout.write(fields[options["-F"]] + "\n")
    return 0
