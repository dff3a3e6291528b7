"""Measures what a link carries. Nothing is written.

One end receives and the other sends, over several TCP connections that know a token; or one command of perftest, or one
container, is run and its output reported. What was started ends with this program, and this program with its input.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, programs
from sparkcluster.node.machine import Machine
from sparkcluster.node.network import listening
from sparkcluster.node.wire import STALL_S, Failed, accept, dial, link_errors, report

ACCEPT_S = 10.0
_CHUNK = 4 << 20
_OUTPUT_BYTES = 1 << 20
_LIVE_S = 1.0
_SILENCE = "no data was sent or received"

Request = dict[str, Any]

containers: list[str] = []
ending = threading.Event()


def main(request: Request, stdin: BinaryIO) -> None:
    """Do ``request["do"]`` and report the result: ``{"done": {...}}`` or ``{"failed": why}``."""

    def stop(number: int, frame: Any) -> None:
        if not ending.is_set():
            end(1)

    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # what is started ends with this group
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)

    report(stdin, lambda: DO[request["do"]](request), end)


def end(code: int) -> None:
    """End this program and all that it started."""
    ending.set()
    for name in tuple(containers):
        remove(name)
    sys.stdout.flush()
    os.killpg(0, signal.SIGTERM)
    os._exit(code)


def tools(request: Request) -> dict[str, Any]:
    """Which measuring programs are installed here."""
    return {name: shutil.which(name) is not None for name in request["names"]}


# TCP


def receive(request: Request) -> dict[str, Any]:
    """Listen on ``address``, report the port, echo small messages, then receive over ``streams`` connections."""
    with link_errors(_SILENCE):
        accepted = accept(request["address"], request["token"], count=request["streams"] + 1, limit_s=ACCEPT_S)
        for sock in accepted:
            sock.settimeout(STALL_S)
        echo(accepted[0])
        received = [each for each in together(take, accepted[1:]) if each[0]]
    if not received:
        raise Failed("measure", "received no data")
    seconds = max(last for _, _, last in received) - min(first for _, first, _ in received)
    return {"bytes": sum(size for size, _, _ in received), "seconds": seconds}


def take(sock: socket.socket) -> tuple[int, float, float]:
    """Receive until the end: bytes, and when the first and the last of them came."""
    moved, first, last = 0, 0.0, 0.0
    buffer = bytearray(_CHUNK)
    while True:
        # Discarded in the kernel (tcp(7)): what is measured is the link, not this processor's memory.
        size = sock.recv_into(buffer, len(buffer), socket.MSG_TRUNC)
        if not size:
            return moved, first, last
        last = time.monotonic()
        first = first or last
        moved += size


def echo(sock: socket.socket) -> None:
    """Echo every message until the other side is done."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        data = sock.recv(64)
        if not data:
            return
        sock.sendall(data)


def send(request: Request) -> dict[str, Any]:
    """Measure the latency of small messages, then send for ``seconds`` over ``streams`` connections in parallel."""
    ends = request["address"], request["port"], request["token"], request["source"]
    handle = os.memfd_create("measure")
    os.ftruncate(handle, _CHUNK)

    def push(sock: socket.socket) -> None:
        with open(os.dup(handle), "rb") as file:
            while time.monotonic() < until:
                sock.sendfile(file, 0, _CHUNK)
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)

    with link_errors(_SILENCE):
        socks = [dial(*ends) for _ in range(request["streams"] + 1)]
        for sock in socks:
            sock.settimeout(STALL_S)
        latency_ms = round_trips(socks[0], request["messages"])
        socks[0].close()
        until = time.monotonic() + request["seconds"]
        together(push, socks[1:])
    return {"latency_ms": latency_ms}


def round_trips(sock: socket.socket, count: int) -> float:
    """Median round trip of a small message, in milliseconds."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        sock.sendall(b"x" * 64)
        got = 0
        while got < 64:
            more = sock.recv(64 - got)
            if not more:
                raise Failed("measure", "the other side closed the connection")
            got += len(more)
        taken.append(time.perf_counter() - begin)
    return round(statistics.median(taken) * 1000, 4)


def together(work: Callable[[socket.socket], Any], socks: list[socket.socket]) -> list[Any]:
    """Results of ``work`` for all of ``socks`` in parallel; the first error is raised once all have ended."""
    with concurrent.futures.ThreadPoolExecutor(len(socks)) as pool:
        return list(pool.map(work, socks))


# programs


def run(request: Request) -> dict[str, Any]:
    """Output and exit code of ``argv``, ended after ``limit_s``; reports when port ``listens``, if any, is open."""
    with programs.started(request["argv"]) as child:
        port = request.get("listens")
        if port:
            limit = time.monotonic() + ACCEPT_S
            while child.poll() is None and time.monotonic() < limit:
                if any(port == listened for _, listened, _, _ in listening(Machine())):
                    break
                time.sleep(0.02)
            common.emit({"port": port})
        return finished(child, request["limit_s"])


def finished(child: subprocess.Popen[bytes], limit_s: float) -> dict[str, Any]:
    """Output and exit code of ``child``, None for one that had to be ended; a sign of life every second."""
    output = bytearray()
    reported = time.monotonic()
    limit = reported + limit_s
    for chunk in programs.chunks(child, min(_LIVE_S, limit_s)):
        output.extend(chunk)
        # The first and last bytes matter; output may be endless.
        if len(output) > 2 * _OUTPUT_BYTES:
            del output[_OUTPUT_BYTES:-_OUTPUT_BYTES]
        if time.monotonic() >= limit:
            break
        if time.monotonic() - reported >= _LIVE_S:
            reported = time.monotonic()
            common.emit({"alive": True})
    code: int | None = None
    try:
        code = child.wait(timeout=max(0.0, limit - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
    return {"exit": code, "output": bytes(output).decode(errors="replace")}


def contain(request: Request) -> dict[str, Any]:
    """Run a container to its end, under the lease; ``name`` is removed before and after, in any case."""
    with common.changing(**common.lease_of(request)):
        remove(request["name"])
        containers.append(request["name"])
        try:
            return run(request)
        finally:
            remove(request["name"])
            containers.remove(request["name"])


def remove(name: str) -> None:
    """Remove a container, if it exists."""
    with contextlib.suppress(programs.Failed):
        programs.run(docker.remove(name), 20)


DO: dict[str, Callable[[Request], dict[str, Any]]] = {
    "tools": tools,
    "receive": receive,
    "send": send,
    "run": run,
    "contain": contain,
}
