"""Running and following the scripts of setup on scripted nodes."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from sparkcluster import errors
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.report import Report
from sparkcluster.setup import run as module
from sparkcluster.setup.run import CONFIRM_S, Outcome, Scripts, run
from tests.unit.setup.test_changes import bare

READY = "\nsparkcluster: root\n"
DONE = Result(0, f"{READY}netplan: confirm: 17-1\nnetplan: done\n".encode(), b"")


class Node(FakeHost):
    """A node whose scripts end as in ``ends``, in order; on a new connection, as in ``reconnected``."""

    def __init__(self, *ends: Result | Exception, reconnected: tuple[Result | Exception, ...] = ()) -> None:
        super().__init__("spark-a")
        left = iter(ends)
        self.on("sh", answer=lambda *_: self.end(next(left)))
        self.fresh: list[Node] = []
        self._reconnected = reconnected

    @staticmethod
    def end(found: Result | Exception) -> Result:
        if isinstance(found, Exception):
            raise found
        return found

    def separate_connection(self) -> contextlib.closing[Node]:
        self.fresh.append(Node(*self._reconnected))
        return contextlib.closing(self.fresh[-1])


class Notes(Report):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def outcome(node: Node, report: Report) -> Outcome:
    scripts = {"spark-a": Scripts("", "the script of root")}
    return run(
        Fleet({"spark-a": node}),  # type: ignore[dict-item]
        {"spark-a": bare(sudo="root")},
        scripts,
        report,
        password=lambda *_: None,
    )["spark-a"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Slept seconds."""
    slept: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    return slept


UNKNOWN = errors.HostUnknown("spark-a: spark-a.local does not resolve", node="spark-a")


@pytest.mark.parametrize("silent", [0, 4])
def test_a_node_unreachable_for_seconds_is_confirmed_after_its_return(clock, silent):
    node, report = Node(DONE, reconnected=(*[UNKNOWN] * silent, Result(0, READY.encode(), b""))), Notes()
    assert outcome(node, report).done == ["netplan"]
    assert report.notes == []
    (fresh,) = node.fresh
    assert len(fresh.calls) == silent + 1
    assert fresh.closed


@pytest.mark.parametrize(
    ("error", "until_s"), [(UNKNOWN, CONFIRM_S), (errors.AuthFailed("spark-a: no key was accepted"), 0)]
)
def test_a_node_that_stays_unreachable_is_given_up(clock, error, until_s):
    node, report = Node(DONE, reconnected=(error,) * 100), Notes()
    outcome(node, report)
    assert until_s <= sum(clock) <= until_s + 5
    assert report.notes == [f"spark-a: netplan: not confirmed: {error.message}"]
