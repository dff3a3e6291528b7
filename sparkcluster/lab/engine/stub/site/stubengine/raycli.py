"""The `ray` command: start, stop, status, health-check, --version; other flags of `ray start` are accepted."""

import os
import signal
import sys
import threading
import time

from stubengine import RAY_VERSION, gcs, log, proc, rayclient
from stubengine.raylet import Raylet
from stubengine.wire import host_ip, setting

GCS_WAIT_S = 60.0  # how long a worker tries to reach its head
SWITCHES = frozenset(
    (
        "--head",
        "--block",
        "--disable-usage-stats",
        "--enable-usage-stats",
        "--no-monitor",
        "--autoscaling-config-off",
        "--no-redirect-output",
        "--verbose",
        "-v",
        "-y",
        "--yes",
        "--force",
        "-f",
        "--ray-debugger-external",
    )
)


def read_flags(argv):
    """{flag: value} of `ray start` arguments; a switch has the value "true". ValueError on what is no flag."""
    found, i = {}, 0
    while i < len(argv):
        key, equals, value = argv[i].partition("=")
        if not key.startswith("-"):
            raise ValueError("Got unexpected extra argument (%s)" % argv[i])
        if key in SWITCHES:
            value = "true"
        elif not equals:
            i += 1
            if i >= len(argv):
                raise ValueError("Option '%s' requires an argument." % key)
            value = argv[i]
        found[key] = value
        i += 1
    return found


def fail(message, code=1):
    """Prints an error as Ray's console does, and gives back the exit code."""
    print(message, file=sys.stderr, flush=True)
    return code


def note_pid():
    """Leaves this process's id where `ray stop` looks."""
    directory = os.path.join(rayclient.temp_dir(), "stub-pids")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, str(os.getpid())), "w"):
        return


def note_cluster(address):
    """Leaves the cluster's address where drivers of this host look."""
    os.makedirs(rayclient.temp_dir(), exist_ok=True)
    path = os.path.join(rayclient.temp_dir(), "ray_current_cluster")
    with open(path + ".new", "w") as f:
        f.write(address)
    os.replace(path + ".new", path)


def daemonise(work):
    """Runs ``work(ready)`` in a session of its own; returns (text it was ready with, or None, its complaint)."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        if os.fork():
            os._exit(0)
        logs = os.path.join(rayclient.temp_dir(), "session_latest", "logs")
        os.makedirs(logs, exist_ok=True)
        out = os.open(os.path.join(logs, "stub-%d.log" % os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (out, 1), (out, 2)):
            os.dup2(fd, target)

        def ready(text):
            os.write(writer, b"+" + text.encode())
            os.close(writer)

        code = 1
        try:
            code = work(ready)
        except BaseException as error:  # the parent waits to be told, whatever it was
            print(error, file=sys.stderr, flush=True)
            try:
                os.write(writer, b"-" + str(error).encode())
            except OSError:
                pass  # it was ready long ago
        os._exit(code)
    os.close(writer)
    os.wait()
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    return (said[1:], "") if said.startswith("+") else (None, said[1:] or "Ray did not start")


def run_head(address, port, gpus, ready):
    """GCS and the head's raylet in this process; returns an exit code when the raylet ends."""
    server = gcs.Gcs(address, port, gcs.token())
    threading.Thread(target=server.serve, daemon=True).start()
    where = "%s:%d" % (address, server.port)
    raylet = Raylet(where, address, gpus)
    proc.set_title("ray::gcs_server+raylet %s (stub)" % where)
    note_pid()
    note_cluster(where)
    ready(where)
    raylet.run()
    return 1


def join(gcs_address, address, gpus):
    """Registers as a worker, patiently; raises OSError or Refused when it cannot be."""
    deadline = time.monotonic() + setting("STUB_GCS_WAIT_S", GCS_WAIT_S)
    while True:
        try:
            return Raylet(gcs_address, address, gpus)
        except OSError as error:
            if time.monotonic() > deadline or error.errno in (99,):  # EADDRNOTAVAIL: not ours, and never will be
                raise
            time.sleep(0.2)


def run_worker(gcs_address, address, gpus, ready):
    """A worker's raylet in this process; returns non-zero when the head is gone."""
    raylet = join(gcs_address, address, gpus)
    proc.set_title("ray::raylet %s (stub)" % address)
    note_pid()
    note_cluster(gcs_address)
    ready(address)
    raylet.run()
    return fail(
        "Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=1]\n"
        "    The node lost its connection to GCS at %s: the head is gone or cannot be reached\n"
        "Remaining processes will be killed." % gcs_address
    )


def banner(address, gcs_address, head):
    """What `ray start` prints when it is up."""
    log.ray("scripts.py:1234", "Local node IP: %s" % address)
    for line in ("-" * 20, "Ray runtime started.", "-" * 20):
        log.ray("scripts.py:1250", line)
    if head:
        log.ray("scripts.py:1089", "To add another node to this Ray cluster, run")
        log.ray("scripts.py:1092", "  ray start --address='%s'" % gcs_address)
    log.ray("scripts.py:1254", "To terminate the Ray runtime, run")
    log.ray("scripts.py:1255", "  ray stop")


def start(argv):
    """`ray start`."""
    try:
        flags = read_flags(argv)
        gpus = float(flags.get("--num-gpus", 1))
        port = int(flags.get("--port", 6379))
        head, target = "--head" in flags, flags.get("--address")
        if not head:
            rayclient.split(target or "")
    except ValueError as error:
        return fail("Usage: ray start [OPTIONS]\n\nError: %s" % error, 2)
    if flags.get("--temp-dir"):
        os.environ["RAY_TMPDIR"] = flags["--temp-dir"]
    address = flags.get("--node-ip-address") or host_ip()

    def work(ready):
        if head:
            return run_head(address, port, gpus, ready)
        return run_worker(target, address, gpus, ready)

    try:
        gcs.token()
        if "--block" in flags:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
            return work(
                lambda where: (
                    banner(address, where, head),
                    print("--block\n  This command will now block forever until terminated by a signal.", flush=True),
                )
            )
    except (OSError, rayclient.Refused, gcs.TokenError) as error:
        return fail(explain(error, head, address, port, target))
    where, complaint = daemonise(work)
    if where is None:
        return fail(explain(complaint, head, address, port, target))
    banner(address, where, head)
    return 0


def explain(error, head, address, port, target):
    """Ray's words for a start that failed."""
    if isinstance(error, (rayclient.Refused, gcs.TokenError)) or "Unauthenticated" in str(error):
        return "RuntimeError: %s" % error
    if head:
        return "ConnectionError: Ray is trying to start at %s:%d, but it cannot: %s" % (address, port, error)
    return (
        "RuntimeError: Failed to connect to GCS. Unable to connect to GCS at %s from %s (%s). Check that "
        "(1) Ray GCS with matching version started successfully at the specified address, and (2) there is no "
        "firewall setting preventing access." % (target, address, error)
    )


def stop():
    """`ray stop`: ends what was started on this host with the same temporary directory."""
    directory = os.path.join(rayclient.temp_dir(), "stub-pids")
    pids = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        try:
            with open("/proc/%s/cmdline" % name, "rb") as f:
                ours = b"ray" in f.read()
        except OSError:
            ours = False
        if ours:
            os.kill(int(name), signal.SIGTERM)
            pids.append(name)
        os.unlink(os.path.join(directory, name))
    try:
        os.unlink(os.path.join(rayclient.temp_dir(), "ray_current_cluster"))
    except FileNotFoundError:
        pass  # nothing ran here
    deadline = time.monotonic() + 3
    while any(running(p) for p in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in filter(running, pids):
        os.kill(int(pid), signal.SIGKILL)
    print("Stopped all %d Ray processes." % len(pids) if pids else "Did not find any active Ray processes.")
    return 0


def running(pid):
    """Whether the process lives (a zombie does not)."""
    try:
        with open("/proc/%s/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def inspect(argv, health):
    """`ray status` and `ray health-check`."""
    try:
        flags = read_flags(argv)
        address = flags.get("--address") or rayclient.current_cluster()
        if not address:
            raise OSError("Could not find any running Ray instance")
        channel = rayclient.connect(address, "client")
        nodes = rayclient.ask(channel, "nodes")["nodes"]
        free = rayclient.ask(channel, "free")["gpus"]
    except (OSError, ValueError, rayclient.Refused, gcs.TokenError) as error:
        return fail("ConnectionError: %s" % error)
    if health:
        return 0
    alive = [n for n in nodes if n["Alive"]]
    total = sum(n["Resources"].get("GPU", 0.0) for n in alive)
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
    if argv[:1] == ["start"]:
        return start(argv[1:])
    if argv[:1] == ["stop"]:
        return stop()
    if argv[:1] in (["status"], ["health-check"]):
        return inspect(argv[1:], argv[0] == "health-check")
    return fail("Usage: ray [OPTIONS] COMMAND [ARGS]...\n\nError: No such command '%s'." % " ".join(argv[:1]), 2)
