"""The `ray` command: start, stop, status, health-check, --version; other flags of `ray start` are accepted."""

import argparse
import contextlib
import os
import signal
import sys
import time

from stubengine import RAY_VERSION, faults, log, proc, rayclient
from stubengine.gcs import Gcs
from stubengine.raylet import Raylet
from stubengine.wire import host_ip


def read_flags(argv):
    """The flags of `ray` that mean something here."""
    parser = argparse.ArgumentParser(prog="ray", allow_abbrev=False)
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--block", action="store_true")
    parser.add_argument("--address", default="")
    parser.add_argument("--node-ip-address", default=host_ip())
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--num-gpus", type=float, default=1.0)
    parser.add_argument("--temp-dir")
    return parser.parse_known_args(argv)[0]


def fail(message, code=1):
    """Prints an error as Ray's console does, and gives back the exit code."""
    print(message, file=sys.stderr, flush=True)
    return code


def note(path, text=""):
    """Leaves a file where the other commands of this host look."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w") as f:
        f.write(text)
    os.replace(path + ".new", path)


def pid_directory():
    """Where each `ray start` leaves its process id for `ray stop`."""
    return os.path.join(rayclient.temp_dir(), "stub-pids")


def in_background(work):
    """Runs ``work(ready)`` in a session of its own: 0 once it calls ``ready``, 1 if it ends before."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.setsid()

    def ready():
        path = os.path.join(rayclient.temp_dir(), "session_latest", "logs", "stub-%d.log" % os.getpid())
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
    return work(
        lambda: print("--block\n  This command will now block forever until terminated by a signal.", flush=True)
    )


def explain(error, flags):
    """Ray's message for a start that failed."""
    address = flags.node_ip_address
    if isinstance(error, rayclient.Refused):
        return "RuntimeError: %s" % error
    if flags.head:
        return "ConnectionError: Ray is trying to start at %s:%d, but it cannot: %s" % (address, flags.port, error)
    return (
        "RuntimeError: Failed to connect to GCS. Unable to connect to GCS at %s from %s (%s). Check that "
        "(1) Ray GCS with matching version started successfully at the specified address, and (2) there is no "
        "firewall setting preventing access." % (flags.address, address, error)
    )


def banner(flags):
    """What `ray start` prints when it is up."""
    log.ray("scripts.py:1234", "Local node IP: %s" % flags.node_ip_address)
    for line in ("-" * 20, "Ray runtime started.", "-" * 20):
        log.ray("scripts.py:1250", line)
    if flags.head:
        log.ray("scripts.py:1089", "To add another node to this Ray cluster, run")
        log.ray("scripts.py:1092", "  ray start --address='%s'" % flags.address)
    log.ray("scripts.py:1254", "To terminate the Ray runtime, run")
    log.ray("scripts.py:1255", "  ray stop")


def start(flags):
    """`ray start`."""
    address = flags.node_ip_address
    if flags.temp_dir:
        os.environ["RAY_TMPDIR"] = flags.temp_dir

    def work(ready):
        try:
            rayclient.token()
            if "die-ray" in faults.active() and not flags.head:
                time.sleep(float(faults.active()["die-ray"]))
                return fail("Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=1]")
            if flags.head:
                flags.address = "%s:%d" % (address, Gcs(address, flags.port).port)
            raylet = Raylet(address, flags.num_gpus)
            raylet.join(flags.address)
        except (OSError, ValueError, rayclient.Refused) as error:
            return fail(explain(error, flags))
        role = "gcs_server+raylet %s" % flags.address if flags.head else "raylet %s" % address
        proc.set_title("ray::%s (stub)" % role)
        note(os.path.join(pid_directory(), str(os.getpid())))
        note(rayclient.cluster_file(), flags.address)
        banner(flags)
        ready()
        raylet.wait()
        return fail(
            "Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=1]\n"
            "    The node lost its connection to GCS at %s: the head is gone or cannot be reached\n"
            "Remaining processes will be killed." % flags.address
        )

    return in_foreground(work) if flags.block else in_background(work)


def stop():
    """`ray stop`: ends what was started on this host with the same temporary directory."""
    directory = pid_directory()
    names = os.listdir(directory) if os.path.isdir(directory) else []
    pids = [int(name) for name in names if is_ray(name)]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 3
    while any(map(is_ray, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in filter(is_ray, pids):
        os.kill(pid, signal.SIGKILL)
    for path in [*(os.path.join(directory, name) for name in names), rayclient.cluster_file()]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    print("Stopped all %d Ray processes." % len(pids) if pids else "Did not find any active Ray processes.")
    return 0


def is_ray(pid):
    """Whether the process runs, and is Ray's (the command line of a zombie is empty)."""
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as f:
            return b"ray" in f.read()
    except OSError:
        return False


def inspect(flags, health):
    """`ray status` and `ray health-check`."""
    address = flags.address or rayclient.current_cluster()
    if not address:
        return fail("ConnectionError: Could not find any running Ray instance")
    try:
        channel = rayclient.connect(address)
        nodes, free = rayclient.ask(channel, "nodes"), rayclient.ask(channel, "free")
    except (OSError, ValueError, rayclient.Refused) as error:
        return fail("ConnectionError: %s" % error)
    if health:
        return 0
    alive = [n for n in nodes if n["Alive"]]
    total = sum(n["Resources"]["GPU"] for n in alive)
    print("======== Autoscaler status ========\nNode status\n-----------------------------------\nActive:")
    for node in alive:
        print(" 1 node_%s" % node["NodeID"])
    print("Resources\n-----------------------------------\nTotal Usage:\n %.1f/%.1f GPU" % (total - free, total))
    return 0


def main(argv):
    """Entry of the `ray` command; returns the exit code."""
    if argv[:1] == ["--version"]:
        print("ray, version %s" % RAY_VERSION)
        return 0
    if argv[:1] == ["stop"]:
        return stop()
    if argv[:1] not in (["start"], ["status"], ["health-check"]):
        return fail("Usage: ray [OPTIONS] COMMAND [ARGS]...\n\nError: No such command '%s'." % " ".join(argv[:1]), 2)
    flags = read_flags(argv[1:])
    if argv[0] == "start":
        return start(flags)
    return inspect(flags, argv[0] == "health-check")
