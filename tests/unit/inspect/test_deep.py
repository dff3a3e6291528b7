"""Real measuring programs on this machine's loopback, with a script that imitates perftest."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sparkcluster.errors import HostLost
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import Conversation, command
from sparkcluster.inspect.deep import deep
from sparkcluster.report import Report
from tests.unit.inspect.conftest import NET

# Listens and connects as the real one does, and prints a row unless disabled.
PERFTEST = """#!{python} -IS
import os, socket, sys
words = sys.argv[1:]
port = int(words[words.index("-p") + 1])
mode = open({mode!r}).read()
if words[-2] == "-p":
    with socket.create_server(("0.0.0.0", port)) as listener:
        listener.settimeout(10)
        listener.accept()[0].recv(1)
else:
    socket.create_connection((words[-1], port), 10).close()
    if mode == "hang":
        import time
        time.sleep(600)
print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
if mode == "row":
    print(" 1048576    65000            0.00               108.50               0.012935")
"""


class RecordingReport(Report):
    def __init__(self):
        self.steps = []

    def step(self, name, text=""):
        self.steps.append((name, text))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("sparkcluster.inspect.deep.SECONDS", 0.1)


@pytest.fixture
def two(loopback):
    return loopback("alpha", "beta")


@pytest.fixture
def perftest(tmp_path, monkeypatch):
    """Puts an ``ib_write_bw`` on PATH; call it with ``row``, ``none`` or ``hang``."""
    mode = tmp_path / "mode"
    tool = tmp_path / "bin" / "ib_write_bw"
    tool.parent.mkdir()
    # Concurrent tests in other workers share the machine and the port.
    apart = 50 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    monkeypatch.setattr("sparkcluster.inspect.perftest.PORT", 18515 + apart)
    tool.write_text(PERFTEST.format(python=sys.executable, mode=str(mode)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return mode.write_text


def measure(lab, report=None, epochs=None):
    lease = {"epochs": epochs or {}, "refused": None if epochs else "another operator holds the lease"}
    return deep(lab.fleet, lab.spec, lab.facts, lab.topology, report or Report(), **lease)


def by_kind(found):
    kinds = {}
    for rate in found.rates:
        kinds.setdefault(rate.kind, []).append(rate)
    return kinds


def test_tcp_is_measured_in_both_directions_on_every_rail(two, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    report = RecordingReport()
    found = measure(two, report)
    rates = by_kind(found)["tcp"]
    assert {(rate.nodes, rate.subnet) for rate in rates} == {
        (nodes, subnet)
        for nodes in (("alpha", "beta"), ("beta", "alpha"))
        for subnet in (f"{NET}.77.0/24", f"{NET}.78.0/24")
    }
    assert all(rate.gbit_s > 0 for rate in rates)
    assert all(rate.latency_ms > 0 for rate in rates)
    assert found.without_perftest == ("alpha", "beta")
    assert report.steps[0][0] == "measure"
    assert report.steps[0][1].startswith("1 pair, about ")
    assert json.loads(json.dumps(dataclasses.asdict(found)))["rates"]


def test_rdma_is_measured_per_twin_and_for_both_concurrently(two, perftest):
    perftest("row")
    kinds = by_kind(measure(two))
    assert [rate.gbit_s for rate in kinds["rdma"]] == [108.5] * 4
    assert [(rate.gbit_s, rate.over) for rate in kinds["rdma-both"]] == [(217.0, "rocep1s0f1 and roceP2p1s0f1")]


def test_a_missing_result_row_is_a_failure_with_any_exit_code(loopback, perftest):
    perftest("none")
    rates = by_kind(measure(loopback("alpha", "beta", rails=1)))["rdma"]
    assert {rate.gbit_s for rate in rates} == {None}
    assert "alpha rocep1s0f1 to beta rocep1s0f1" in rates[0].seen
    assert "no result row, exit code 0" in rates[0].seen


def test_a_lost_node_is_reported_and_the_others_are_measured(loopback, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    lab = loopback("alpha", "beta", "gamma")
    lab.fleet.hosts["beta"] = FakeHost("beta").on("python3", answer=HostLost("connection to beta broke", node="beta"))
    lab.fleet.hosts["beta"].run = lost
    found = measure(lab)
    assert found.unasked == {"beta": "connection to beta broke"}
    assert {frozenset(rate.nodes) for rate in found.rates} == {frozenset({"alpha", "gamma"})}


def lost(*words, **options):
    raise HostLost("connection to beta broke", node="beta")


def test_an_interruption_ends_programs_on_the_nodes(two, perftest, tmp_path):
    perftest("hang")

    class InterruptingReport(Report):
        def __init__(self):
            self.begun = []
            self.timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))

        def progress(self, node, text):
            self.begun.append(text)
            if text.startswith("RDMA") and self.timer.ident is None:
                self.timer.start()

    impatient = InterruptingReport()
    # A shell that starts the tests in the background has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            measure(two, impatient)
    finally:
        impatient.timer.cancel()  # a later one would end another test
        signal.signal(signal.SIGINT, before)
    assert [text[:4] for text in impatient.begun].count("RDMA") == 1, "nothing else is started"
    assert not running(str(tmp_path / "bin" / "ib_write_bw"))


def running(path, limit_s=30):
    """Processes whose command line contains ``path``, after some time to exit."""
    until = time.monotonic() + limit_s
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if path.encode() in (entry / "cmdline").read_bytes():
                        found.append(entry.name)
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def program(request):
    return Conversation(LocalHost("alpha"), "measure", request, silence_s=20)


def test_an_endless_program_is_ended_at_its_limit():
    conversation = program({"do": "run", "argv": ["sleep", "60"], "limit_s": 0.3})
    assert conversation.answer(dict)["failed"] == "sleep did not end within 0 s"
    conversation.close()


def test_a_program_that_is_being_started_ends_with_its_controller(tmp_path):
    """The input ends before the program has started its child."""
    marker = str(tmp_path / "marker")
    request = {"do": "run", "argv": [sys.executable, "-c", "import time; time.sleep(30)", marker], "limit_s": 30}
    argv, stdin = command("measure", request)
    for _ in range(5):
        subprocess.run(argv, input=stdin, stdout=subprocess.DEVNULL, check=False, timeout=20)
    assert not running(marker)


def test_a_connection_without_the_token_is_not_served():
    conversation = program({"do": "receive", "address": "127.0.0.1", "token": "right", "streams": 1, "messages": 3})
    port = conversation.answer(dict)["port"]
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        assert len(stranger.recv(100)) == 32
        stranger.sendall(b"wrong" * 20)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    sender = program(
        {
            "do": "send", "address": "127.0.0.1", "port": port, "source": "127.0.0.1", "token": "right", "streams": 1,
            "seconds": 0.1, "messages": 3,
        }
    )  # fmt: skip
    sent = sender.answer(dict)["done"]
    assert sent["latency_ms"] > 0
    assert sent["bytes"] > 0
    for each in (conversation, sender):
        each.close()


def test_no_container_is_started_without_the_lease(tmp_path):
    request = {
        "do": "contain", "state_dir": str(tmp_path), "cluster": "atlas", "epoch": 3, "name": "x", "argv": ["false"],
        "limit_s": 5,
    }  # fmt: skip
    conversation = program(request)
    assert "is over" in conversation.answer(dict)["refused"]
    conversation.close()
