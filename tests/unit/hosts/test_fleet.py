"""Concurrent calls to many hosts, and the fake host."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from sparkcluster.errors import CommandTimeout, HostRefused
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Calls, Fleet, failures, values


def fleet(*names: str) -> Fleet:
    return Fleet({name: FakeHost(name).on("hostname", answer=name) for name in names})


def test_calls_run_concurrently_and_all_results_are_returned():
    barrier = threading.Barrier(3, timeout=10)

    def ask(host: Host) -> bytes:
        barrier.wait()
        if host.name == "b":
            raise HostRefused("b: connection refused", node="b")
        return host.run(["hostname"]).stdout

    outcomes = fleet("a", "b", "c").each(ask)
    assert list(outcomes) == ["a", "b", "c"]
    assert values(outcomes) == {"a": b"a", "c": b"c"}
    assert list(failures(outcomes)) == ["b"]


def test_a_bug_is_raised_after_all_calls_have_ended():
    ended = []

    def ask(host: Host) -> None:
        if host.name == "a":
            raise KeyError("defect")
        ended.append(host.name)

    with pytest.raises(KeyError):
        fleet("a", "b", "c").each(ask)
    assert sorted(ended) == ["b", "c"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [SystemExit, MemoryError])
def test_any_exception_in_a_thread_is_raised(kind):
    def fail(host: Host) -> None:
        raise kind("the reason")

    with pytest.raises(kind, match="the reason"):
        fleet("a", "b").each(fail, limit_s=5)


def test_an_endless_host_is_a_time_out_and_the_others_are_returned():
    release = threading.Event()

    def ask(host: Host) -> str:
        if host.name == "a":
            release.wait(10)
        return host.name

    outcomes = fleet("a", "b").each(ask, limit_s=0.2)
    release.set()
    assert isinstance(outcomes["a"], CommandTimeout)
    assert outcomes["b"] == "b"


def test_ctrl_c_ends_a_wait_that_the_signal_does_not_interrupt():
    """Like one between Python's last check and the wait; here another thread gets it."""
    over, ended = threading.Event(), []

    def interrupt(_):
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        over.wait(60)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        Calls(interrupt, {"spark-1": None}).wait(60)
    assert not ended
    over.set()


def test_after_ctrl_c_in_a_wait_running_calls_are_waited_for():
    """The started ranks are stopped then, by the thread that started them."""
    release = threading.Event()

    def work(name: str) -> str:
        release.wait(60)
        return name

    calls = Calls(work, {"default": "stopped"})
    threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        calls.wait(60)
    assert calls.pending() == ["default"]
    release.set()
    assert calls.wait(60) == {"default": "stopped"}
