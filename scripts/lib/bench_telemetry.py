"""The measurements of scripts/bench-telemetry, which runs this."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import ENVIRONMENT, PROGRAM, lab, show, ssh, timed, wait_until_quiet
from bench_gateway import free_port, running, used

from sparkcluster.lab import Spark, cgroups

SCRAPE_S, IDLE_S, PEER, PEER_PORT = 5, 60, "prometheus-node-exporter", 9100


def used_s(spark: Spark) -> float:
    """CPU seconds of all processes of a Spark since it booted."""
    for options, point in cgroups.hierarchies().items():
        group = point / spark.unit
        if "cpuacct" in options.split(","):
            return int((group / "cpuacct.usage").read_text()) / 1e9
        if not options:
            return int((group / "cpu.stat").read_text().split()[1]) / 1e6
    raise SystemExit("this machine has no control group that counts CPU time")


def shares(sparks: list[Spark], wait: Callable[[], object]) -> dict[str, float]:
    """The share of a core that each Spark uses while ``wait`` runs."""
    began, before = time.monotonic(), [used_s(spark) for spark in sparks]
    wait()
    seconds = time.monotonic() - began
    return {spark.name: (used_s(spark) - first) / seconds for spark, first in zip(sparks, before, strict=True)}


def get(host: str, port: int, path: str) -> bytes:
    """The body of an answer."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()


def scraped(host: str, port: int, seconds: float) -> list[float]:
    """Duration of each scrape in seconds; there is a scrape every ``SCRAPE_S``."""
    taken, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        get(host, port, "/metrics")
        taken.append(time.monotonic() - began)
        time.sleep(max(0.0, SCRAPE_S - taken[-1]))
    return taken


@contextlib.contextmanager
def peer(spark: Spark, inventory: Path) -> Iterator[None]:
    """Run Debian's node exporter on the last Spark; nothing is installed on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        timed(["apt-get", "download", PEER], cwd=folder)
        (package,) = Path(folder).glob("*.deb")
        timed(["dpkg", "-x", str(package), folder])
        program = Path(f"/proc/{spark.pid}/root/run/{PEER}")
        program.write_bytes((Path(folder) / "usr/bin" / PEER).read_bytes())
        program.chmod(0o755)
    # by SSH, so that it runs in the Spark's control group, as the exporter's processes there do
    login = ssh(inventory)[-1]
    started = f"setsid /run/{PEER} --web.listen-address=:{PEER_PORT} > /dev/null 2>&1 < /dev/null & echo $!"
    pid = subprocess.run([*login, started], capture_output=True, text=True, check=True).stdout.strip()
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                get(spark.host, PEER_PORT, "/metrics")
                break
            time.sleep(0.1)
        yield
    finally:
        subprocess.run([*login, f"kill {pid}"], check=True)


def ages(port: int, found: list[tuple[float, dict[str, float | None]]]) -> None:
    """For each tick of the exporter, append the time and the age of each node's newest sample to ``found``."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/events")
    event = ""
    with contextlib.suppress(OSError, http.client.HTTPException):  # the exporter closes the connection when it exits
        for line in connection.getresponse():
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "now":
                nodes: dict[str, Any] = json.loads(value)["document"]["nodes"]
                found.append((time.monotonic(), {node: each["age_s"] for node, each in nodes.items()}))


@contextlib.contextmanager
def hung(spark: Spark) -> Iterator[None]:
    """Pause all processes of a Spark; its kernel keeps connections open, as when memory runs out."""
    pids = cgroups.processes(spark.unit)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            yield


def measure(sparks: list[Spark], inventory: Path, seconds: float) -> bool:
    """Measure and print all rows; return whether all are within their bounds."""
    last, port = sparks[-1], free_port()
    wait_until_quiet()
    idle = shares(sparks, lambda: time.sleep(min(IDLE_S, seconds)))
    with peer(last, inventory):
        beside = shares([last], lambda: scraped(last.host, PEER_PORT, min(IDLE_S, seconds)))
    peer_share = beside[last.name] - idle[last.name]
    argv = [PROGRAM, "export", str(inventory), "--listen", f"127.0.0.1:{port}"]
    with running(argv, port) as pid:
        found: list[tuple[float, dict[str, float | None]]] = []
        threading.Thread(target=ages, args=(port, found), daemon=True).start()
        time.sleep(2 * SCRAPE_S)  # the start is not measured
        taken: list[float] = []
        cpu_s, _ = used(pid)
        began = time.monotonic()
        busy = shares(sparks, lambda: taken.extend(scraped("127.0.0.1", port, seconds)))
        exporter = (used(pid)[0] - cpu_s) / (time.monotonic() - began)
        rss = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
        hang = time.monotonic()
        with hung(last):
            slow = scraped("127.0.0.1", port, IDLE_S)
    others = [spark.name for spark in sparks[:-1]]
    before, during = (
        [each[name] or 0.0 for at, each in found if (at > hang) == while_hung for name in others]
        for while_hung in (False, True)
    )
    nodes = [busy[name] - idle[name] for name in busy]
    return all(
        [
            show("exporter: most memory, MiB", int(rss.split()[1]) / 1024, f"{len(sparks)} Sparks", at_most=150),
            show("exporter: % of a core", 100 * exporter, f"over {seconds:.0f} s", at_most=5),
            show("a Spark: % of a core", 100 * statistics.mean(nodes), f"most {100 * max(nodes):.2f}", at_most=2),
            show(
                f"{last.name} / the same with {PEER}",
                nodes[-1] / peer_share,
                f"{100 * nodes[-1]:.2f} % / {100 * peer_share:.2f} % of a core",
            ),
            show("a scrape, ms", 1000 * statistics.median(taken), f"at most {1000 * max(taken):.0f}"),
            show("a scrape while one hangs, ms", 1000 * statistics.median(slow), f"at most {1000 * max(slow):.0f}"),
            show(
                "age of others' newest sample while one hangs, s",
                max(during),
                f"before {max(before):.2f}; one is taken each second",
                at_most=1.5,
            ),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-telemetry")
    parser.add_argument("--minutes", type=float, default=10, help="duration of the measurement (10)")
    parser.add_argument("--sparks", type=int, default=8, help="virtual Sparks (8)")
    args = parser.parse_args()
    with lab(args.sparks, "stub") as made:
        timed([PROGRAM, "up", str(made.inventory), "--yes"])
        whole = measure(list(made.sparks), made.inventory, args.minutes * 60)
        subprocess.run([PROGRAM, "down", str(made.inventory)], env=ENVIRONMENT, capture_output=True, check=False)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
