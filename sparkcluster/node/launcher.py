"""The launcher of a rank: prepares it, waits for all ranks, then becomes the engine, or runs its node's Ray worker.

It is sent as one file with its imports (``hosts.program.standalone``) and runs as ``python3 entry.py LAUNCHER.json``,
in the serving container or directly on the host. Every step prints a line that starts with ``[sparkcluster] phase=``.
The last step is ``exec``, so that the container exits with the engine. A worker's Ray is a child process instead, which
ends after the engine's processes.

Exit codes before the engine starts: 2 invalid document, 3 a setup line failed, 4 a rank did not come up in time, 5 Ray
did not start or rejected the connection, 6 the model's files cannot be read, 127 no such engine, 143 SIGTERM; at any
time 90: killed to protect the memory of the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from sparkcluster.node import common, engine
from sparkcluster.node.bind import ADDRESS
from sparkcluster.node.machine import Machine
from sparkcluster.node.network import wildcards
from sparkcluster.node.prepare import (
    BAD_DOCUMENT,
    MARK,
    NO_ENGINE,
    RANK_MISSING,
    RAY_FAILED,
    TERMINATED,
    Stop,
    has_open_ray,
    interpreter_of,
    located,
    module_directory,
    prepare,
    say,
    tail,
)
from sparkcluster.node.programs import chunks, started
from sparkcluster.node.victim import protect

ENGINE_S, RAY_S = 20, 5
"""Seconds for a worker's engine processes, and then its Ray, to end; less than the rank's own grace period."""
# Process names of Ray and engines (``ray::RayWorkerProc``, ``NAME::Worker_TP1``). Ray's own agents are excluded: Ray
# ends its node when they end.
ACTOR = re.compile(rb"\w+::(?!(DashboardAgent|RuntimeEnvAgent)\b)")

# Runs in the image's Python: prints once a second which nodes are alive in Ray, by address. Uses the public API only,
# so that it works with any version of Ray.
_RAY_NODES = """
import json, os, sys, time
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
try:
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    while True:
        alive = sorted({n["NodeManagerAddress"] for n in ray.nodes() if n.get("Alive", n.get("alive"))})
        print(json.dumps({"alive": alive}), flush=True)
        time.sleep(1)
except Exception as error:
    print(json.dumps({"error": "%s: %s" % (type(error).__name__, error)}), flush=True)
    sys.exit(1)
"""


def ray_python(ray_path: str | None, program: str) -> str:
    """Interpreter that can import Ray.

    If Ray was brought along (``ray_path``), the interpreter of ``program``, or our own if ``program`` is not a script.
    Otherwise the first interpreter that has Ray: our own, of ``ray``, of ``program``.
    """
    if ray_path:
        return interpreter_of(program) or sys.executable
    for python in (sys.executable, interpreter_of("ray"), interpreter_of(program)):
        if python and module_directory("ray", python):
            return python
    raise Stop(RAY_FAILED, "No module named 'ray': the image has no Ray, and none was staged")


def ray_command(argv: list[str], python: str) -> list[str]:
    """``ray …`` as a command that works even if the script ``ray`` belongs to another interpreter."""
    if argv and argv[0] == "ray" and interpreter_of("ray") != python:
        return [python, "-m", "ray.scripts.scripts", *argv[1:]]
    return list(argv)


def start_ray_head(argv: list[str], env: dict[str, str], private: str, limit_s: float = 180) -> None:
    """Start Ray's head. It stays behind as daemons, so its output goes to a file instead of a pipe."""
    log = os.path.join(private, "ray-start.log")
    with open(log, "wb") as output:
        try:
            child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            code = child.wait(timeout=limit_s)
        except OSError as error:
            raise Stop(RAY_FAILED, "ray start failed: %s" % error) from error
        except subprocess.TimeoutExpired:
            child.kill()
            raise Stop(RAY_FAILED, "ray start took longer than %d s: %s" % (limit_s, tail(log))) from None
    if code != 0:
        sys.stderr.write(tail(log, 60) + "\n")
        raise Stop(RAY_FAILED, "ray start exited with %d: %s" % (code, tail(log, 4)))


def wait_for_members(
    document: dict[str, Any],
    python: str,
    env: dict[str, str],
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until every member is alive in Ray, by address: a count would include foreign nodes."""
    address, members = document["ray"]["address"], document["members"]
    until, shown, shown_at, missing = clock() + limit_s, "", 0.0, list(members)
    error = None
    alive: list[str] = []
    with started([python, "-u", "-c", _RAY_NODES, address], env=env, stderr=None) as child:
        output = chunks(child, 1)
        while missing and clock() < until:
            line = "phase=ray-wait %d/%d missing %s" % (
                len(members) - len(missing),
                len(members),
                " ".join(missing),
            )
            if line != shown or clock() - shown_at >= 10:
                say(line)
                shown, shown_at = line, clock()
            data = next(output, None)
            if data is None:
                raise Stop(RAY_FAILED, "cannot query Ray at %s: %s" % (address, error or "no answer"))
            for text in data.splitlines():  # each is written in one piece, shorter than a pipe would split
                try:
                    answer = json.loads(text.decode(errors="replace"))
                except ValueError:
                    continue
                error = answer.get("error", error)
                alive = answer.get("alive", alive)
            missing = [member for member in members if member not in alive]
        child.kill()
    if missing:
        raise Stop(
            RANK_MISSING,
            "after %d s Ray at %s has no %s (alive: %s)"
            % (limit_s, address, " ".join(missing), " ".join(alive) or "none"),
        )
    say("phase=ray-formed %d/%d" % (len(members), len(members)))


def wait_for_head(
    address: str,
    source: str,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the head's Ray accepts connections from ``source``, this node's interconnect address."""
    host, _, port = address.rpartition(":")
    until = clock() + limit_s
    reported_at = float("-inf")
    while True:
        try:
            socket.create_connection((host, int(port)), 3, source_address=(source, 0)).close()
            return
        except OSError as error:
            last = error.strerror or str(error)
        if clock() >= until:
            raise Stop(
                RANK_MISSING,
                "after %d s Ray's head at %s is not reachable from %s: %s" % (limit_s, address, source, last),
            )
        if clock() - reported_at >= 10:
            say("phase=ray-join waiting for %s (%s)" % (address, last))
            reported_at = clock()
        pause(1)


def end_started(mark: str) -> None:
    """End all processes that this launcher started, found by the mark in their environment; not other users' Ray."""
    needle = ("%s=%s" % (MARK, mark)).encode()
    for sent in (signal.SIGTERM, signal.SIGKILL):
        alive = False
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in (1, os.getpid()):
                continue
            try:
                with open("/proc/%s/environ" % name, "rb") as file:
                    if needle in file.read().split(b"\0"):
                        os.kill(int(name), sent)
                        alive = True
            except OSError:
                continue
        if not alive:
            return
        time.sleep(1)


def watch_sockets(document: dict[str, Any], mark: str) -> None:
    """Fork a process that looks for sockets on all addresses for as long as this process, or the engine, runs.

    The library of ``bind`` confines programs that use libc. Others are reported; if Ray has no token, they end the
    rank.
    """
    parent = os.getpid()
    if os.fork():
        return

    def report(text: str) -> None:
        if not has_open_ray(document):
            say("phase=bind open: %s" % text)
            return
        say("error: %s, and Ray has no token" % text)
        end_started(mark)
        os.kill(parent, signal.SIGKILL)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        needle = "%s=%s" % (MARK, mark) if document.get("runtime") == "process" else None
        allowed = set(document.get("open_ports") or [])
        pause_s = 0.2
        while os.getppid() == parent:
            for port, process in sorted(wildcards(Machine(), needle, allowed).items()):
                report("%s listens on all addresses with port %d" % (process, port))
                allowed.add(port)
            time.sleep(pause_s)
            pause_s = min(5, pause_s * 1.2)
    except Exception as error:
        report("sockets cannot be checked: %s" % error)
    finally:
        os._exit(0)


def become(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Execute ``argv`` in place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        raise Stop(NO_ENGINE, "%s: command not found (%s)" % (argv[0], error.strerror)) from error


def descendants(ancestor: int) -> dict[int, bytes]:
    """Every process below ``ancestor``, with its command line, since Ray's titles overwrite the environment."""
    parents, found, level = common.processes(), {}, {ancestor}
    while level:
        level = {pid for pid, (parent, _) in parents.items() if parent in level}
        for pid in level:
            with contextlib.suppress(OSError), open("/proc/%d/cmdline" % pid, "rb") as file:
                found[pid] = file.read()
    return found


def kill_rank(document: dict[str, Any], mark: str) -> None:
    """Kill every other process of this rank. Ray's daemons and their children are not descendants of this process."""
    if document.get("runtime") == "docker" and os.getppid() == 1:
        os.kill(-1, signal.SIGKILL)  # everything in the container except its first process
        return
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    end_started(mark)


def end_worker(ray: subprocess.Popen[bytes], engine_s: float = ENGINE_S, ray_s: float = RAY_S) -> None:
    """End the engine's processes below ``ray``, then Ray itself.

    Ray would kill them one second after its own SIGTERM, before they can release the GPU's memory.
    """
    actors = {pid for pid, line in descendants(ray.pid).items() if ACTOR.match(line)}
    for pid in actors:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + engine_s
    while actors & set(descendants(ray.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    ray.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        ray.wait(ray_s)


def supervise(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Run ``argv``, a worker's Ray, and exit like it; on SIGTERM, end the engine before it."""
    try:
        ray = subprocess.Popen(argv, env=env)
    except OSError as error:
        raise Stop(NO_ENGINE, "%s: command not found (%s)" % (argv[0], error.strerror)) from error
    try:
        code = ray.wait()
    except Stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        end_worker(ray)
        raise Stop(TERMINATED, "received SIGTERM") from None
    sys.exit(code if code >= 0 else 128 - code)


def launch(document: dict[str, Any], folder: str, env: dict[str, str], mark: str) -> NoReturn:
    """Run the steps of this rank; does not return."""
    limit_s = document.get("join_timeout_s", 300)
    private = prepare(document, folder, env)
    if ADDRESS in env:
        watch_sockets(document, mark)
    if document["executor"] == "ray":
        ray = document["ray"]
        if ray.get("token"):
            if not (env.get("RAY_AUTH_TOKEN") or env.get("RAY_AUTH_TOKEN_PATH")):
                raise Stop(RAY_FAILED, "RAY_AUTH_TOKEN is not set, and Ray requires it")
            env["RAY_AUTH_MODE"] = "token"
        env["RAY_ADDRESS"] = ray["address"]
        python = ray_python(document.get("ray_path"), document["engine"][0])
        start = ray_command(ray["start"], python)
        # For the engine only: ray start gets the address in its arguments.
        starting = {name: value for name, value in env.items() if name != "RAY_ADDRESS"}
        if document["role"] == "worker":
            wait_for_head(ray["address"], document["address"], limit_s)
            say("phase=ray-start worker %s" % document["address"])
            # The head is gone when a worker is stopped: Ray would wait 30 s for it.
            starting.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
            supervise(start, starting)
        say("phase=ray-start head %s" % ray["address"])
        start_ray_head(start, starting, private)
        wait_for_members(document, python, env, limit_s)
    say("phase=engine %s" % os.path.basename(document["engine"][0]))
    try:
        words = engine.command(located(document, env), env, private)
    except ValueError as error:
        raise Stop(BAD_DOCUMENT, str(error)) from error
    become(words, env)


def checked(path: str) -> dict[str, Any]:
    """The launcher document, after checking that it is complete."""
    try:
        with open(path) as file:
            document: dict[str, Any] = json.load(file)
        missing = [name for name in ("executor", "role", "address", "members", "engine") if not document.get(name)]
        if document.get("executor") == "ray" and not document.get("ray"):
            missing.append("ray")
        version = document.get("version")
    except (OSError, ValueError, AttributeError) as error:
        raise Stop(BAD_DOCUMENT, "%s: %s" % (path, error)) from error
    if missing or version != 1:
        what = "lacks " + ", ".join(missing) if missing else "has version %r, expected 1" % (version,)
        raise Stop(BAD_DOCUMENT, "%s %s" % (path, what))
    return document


def terminated(_signal: int, _frame: object) -> NoReturn:
    """Handle SIGTERM and SIGINT before the engine starts."""
    raise Stop(TERMINATED, "received SIGTERM before the engine started")


def main(argv: list[str]) -> int:
    """Run the launcher document in ``argv[1]``; returns only if the engine was not started."""
    if len(argv) != 2:
        sys.stderr.write("usage: entry.py LAUNCHER.json\n")
        return BAD_DOCUMENT
    mark = "%d-%x" % (os.getpid(), int(time.time() * 1000))
    env = dict(os.environ, PYTHONUNBUFFERED="1")
    env[MARK] = mark
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, terminated)
    try:
        document = checked(argv[1])
        victim = document.get("victim")
        if victim:
            protect(victim["order"], victim["floor_bytes"], lambda: kill_rank(document, mark))
        launch(document, os.path.dirname(os.path.abspath(argv[1])), env, mark)
    except Stop as stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        say("error: %s" % stop)
        end_started(mark)
        return stop.code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
