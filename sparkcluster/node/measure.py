"""Measures the rate of a link. Nothing is written.

One end receives and the other sends, over several TCP connections that require a token; or a perftest command or a
container is run, and its output reported. Its children end with this program, which ends with its input.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, programs
from sparkcluster.node.machine import Machine
from sparkcluster.node.network import listening
from sparkcluster.node.wire import STALL_S, accept, dial, outcome

ACCEPT_S = 10.0
_CHUNK = 4 << 20

Request = dict[str, Any]


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Run ``request["do"]``; the answer is its ``outcome``."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    # Children are in this process group; Docker's client passes the signal on to its container.
    common.end_with(stdin, lambda _: os.killpg(0, signal.SIGTERM))
    return outcome(lambda: DO[request["do"]](request))


# TCP


def receive(request: Request) -> dict[str, Any]:
    """Listen on ``address``, report the port, echo ``messages``, then receive over ``streams`` connections."""
    socks = accept(request["address"], request["token"], count=request["streams"], limit_s=ACCEPT_S)
    socks[0].settimeout(STALL_S)
    for _ in range(request["messages"]):
        socks[0].sendall(socks[0].recv(1))
    together(take, socks)
    return {}


def take(sock: socket.socket) -> None:
    """Receive until the end of the stream; the sender waits for ours."""
    sock.settimeout(STALL_S)
    buffer = bytearray(_CHUNK)
    with sock:
        # Discarded in the kernel (tcp(7)), so that the link is measured, and not the memory.
        while sock.recv_into(buffer, len(buffer), socket.MSG_TRUNC):
            continue


def send(request: Request) -> dict[str, Any]:
    """The latency of ``messages``, and the bytes that ``streams`` connections transferred in about ``seconds``."""
    ends = request["address"], request["port"], request["token"], request["source"]
    socks = [dial(*ends) for _ in range(request["streams"])]
    latency_ms = round_trip_ms(socks[0], request["messages"])
    handle = os.memfd_create("measure")
    os.ftruncate(handle, _CHUNK)
    began = time.monotonic()

    def push(sock: socket.socket) -> int:
        sent = 0
        with open(os.dup(handle), "rb") as file:
            while time.monotonic() < began + request["seconds"]:
                sent += sock.sendfile(file, 0, _CHUNK)
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)
        return sent

    sent = sum(together(push, socks))
    return {"latency_ms": latency_ms, "bytes": sent, "seconds": time.monotonic() - began}


def round_trip_ms(sock: socket.socket, count: int) -> float:
    """Median round trip of a small message, in milliseconds."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        sock.sendall(b"x")
        sock.recv(1)
        taken.append(time.perf_counter() - begin)
    return round(statistics.median(taken) * 1000, 4)


def together(work: Callable[[socket.socket], Any], socks: list[socket.socket]) -> list[Any]:
    """Results of ``work`` for all of ``socks`` in parallel; the first error is raised once all have ended."""
    with concurrent.futures.ThreadPoolExecutor(len(socks)) as pool:
        return list(pool.map(work, socks))


# programs


def run(request: Request) -> dict[str, Any]:
    """Output and exit code of ``argv``; reports when port ``listens``, if given, is open.

    Raises:
        Failed: it is not installed, or takes longer than ``limit_s``.
    """
    argv, port, limit_s = request["argv"], request.get("listens"), request["limit_s"]
    with programs.started(argv) as child:
        if port:
            limit = time.monotonic() + ACCEPT_S
            while child.poll() is None and time.monotonic() < limit:
                if any(port == listened for _, listened, _, _ in listening(Machine())):
                    break
                time.sleep(0.02)
            common.emit({"port": port})
        try:
            output = child.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            raise programs.Failed("%s did not end within %.0f s" % (argv[0], limit_s)) from None
    return {"exit": child.returncode, "output": output.decode(errors="replace")}


def contain(request: Request) -> dict[str, Any]:
    """Run a container until it exits, under the lease; a leftover container of this ``name`` is removed first."""
    with common.changing(request):
        programs.succeeds(docker.remove(request["name"]), 20)
        return run(request)


DO: dict[str, Callable[[Request], dict[str, Any]]] = {
    "receive": receive,
    "send": send,
    "run": run,
    "contain": contain,
}
