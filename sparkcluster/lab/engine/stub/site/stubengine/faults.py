"""Faults of the stub: STUB_FAULT and the file named by STUB_CONTROL.

A fault is ``kind`` or ``kind=value``, either with ``@host`` for a single host. STUB_FAULT is a comma-separated
list. The control file is read at every query; its lines add up, ``clear`` drops all before it (those of
STUB_FAULT too). Removing a line heals.
"""

import os
import socket
import time

KINDS = frozenset(
    (
        "hang-load",
        "hang-serve",
        "die-load",
        "die-serve",
        "exit0",
        "garbage",
        "lie-health",
        "slow",
        "slow-start",
        "null-content",
        "oom",
        "tcp-fallback",
        "nccl-memlock",
        "nccl-gid",
        "hang-rendezvous",
        "hang-compile",
        "hang-after",
        "nan-scales",
        "moe-backend",
        "eager",
        "ray-dead",
    )
)


def parse(text, hostname):
    """{kind: value} of the faults in ``text`` that affect this host; ValueError names an unknown one."""
    active = {}
    for entry in text.replace("\n", ",").split(","):
        entry = entry.strip()
        if entry == "clear":
            active = {}
            continue
        if not entry or entry.startswith("#"):
            continue
        body, _, host = entry.partition("@")
        kind, _, value = body.partition("=")
        if kind not in KINDS:
            raise ValueError("unknown fault %r; faults: %s" % (kind, ", ".join(sorted(KINDS))))
        if not host or host == hostname:
            active[kind] = value or "1"
    return active


def active():
    """The active faults of this host."""
    text = os.environ.get("STUB_FAULT", "")
    path = os.environ.get("STUB_CONTROL")
    if path:
        try:
            with open(path, encoding="utf-8") as f:
                text += "\n" + f.read()
        except OSError:
            pass  # not written yet: no fault
    return parse(text, socket.gethostname()) if text.strip() else {}


def wait_while(kind, stop=None, poll_s=0.05):
    """Blocks while the fault is active; healing lets the engine continue."""
    while kind in active():
        if stop is not None and stop():
            return
        time.sleep(poll_s)
