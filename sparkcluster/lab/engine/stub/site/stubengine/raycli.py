"""The `ray` command: start and --version; other flags of `ray start` are accepted."""

import argparse
import os
import signal
import sys

from stubengine import RAY_VERSION, log, proc, rayclient
from stubengine.gcs import Gcs
from stubengine.raylet import Raylet
from stubengine.wire import host_ip


def read_flags(argv):
    """The flags of `ray` that the stub uses."""
    parser = argparse.ArgumentParser(prog="ray", allow_abbrev=False)
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--block", action="store_true")
    parser.add_argument("--address", default="")
    parser.add_argument("--node-ip-address", default=host_ip())
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--num-gpus", type=float, default=1.0)
    parser.add_argument("--temp-dir", default=os.environ.get("RAY_TMPDIR") or "/tmp/ray")
    return parser.parse_known_args(argv)[0]


def fail(message, code=1):
    """Prints an error in the format of Ray's console; returns the exit code."""
    print(message, file=sys.stderr, flush=True)
    return code


def in_background(work, directory):
    """Runs ``work(ready)`` in a new session; returns 0 when it calls ``ready``, 1 if it exits before."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.setsid()

    def ready():
        path = os.path.join(directory, "session_latest", "logs", "stub-%d.log" % os.getpid())
        os.makedirs(os.path.dirname(path), exist_ok=True)
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(fd, target)
        os.write(writer, b"+")

    return work(ready)


def in_foreground(work):
    """`ray start --block`."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    return work(lambda: None)


def start(flags):
    """`ray start`."""
    address = flags.node_ip_address

    def work(ready):
        try:
            rayclient.token()
            if flags.head:
                flags.address = "%s:%d" % (address, Gcs(address, flags.port).port)
            raylet = Raylet(address, flags.num_gpus)
            raylet.join(flags.address)
        except (OSError, ValueError, rayclient.Refused) as error:
            return fail("RuntimeError: Failed to start Ray at %s, or to connect to its GCS: %s" % (address, error))
        role = "gcs_server+raylet %s" % flags.address if flags.head else "raylet %s" % address
        proc.set_title("ray::%s (stub)" % role)
        log.ray("scripts.py:1250", "Ray runtime started.")
        ready()
        raylet.wait()
        return fail(
            "Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=1]\n"
            "    The node lost its connection to GCS at %s: the head is gone or cannot be reached\n"
            "Remaining processes will be killed." % flags.address
        )

    return in_foreground(work) if flags.block else in_background(work, flags.temp_dir)


def main(argv):
    """Entry point of the `ray` command; returns the exit code."""
    if argv[:1] == ["--version"]:
        print("ray, version %s" % RAY_VERSION)
        return 0
    if argv[:1] != ["start"]:
        return fail("Usage: ray [OPTIONS] COMMAND [ARGS]...\n\nError: No such command '%s'." % " ".join(argv[:1]), 2)
    return start(read_flags(argv[1:]))
