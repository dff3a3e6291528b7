"""Logs of several nodes in the order of time, under a clock that the test holds."""

from __future__ import annotations

import pytest

from sparkcluster.inspect import logs
from sparkcluster.inspect.logs import HOLD_S, LogLine, Merge


def line(text: str, at_s: float | None = None) -> LogLine:
    return LogLine(text[0], text, at_s)


def texts(lines: list[LogLine]) -> list[str]:
    return [each.text for each in lines]


@pytest.fixture
def live() -> Merge:
    """Nodes a and b, both up to date."""
    merge = Merge("ab")
    merge.behind.clear()
    return merge


def test_what_the_nodes_had_is_held_until_all_have_sent_it_and_then_in_order():
    merge = Merge("ab")
    merge.add([line("a1", 10.0), line("a2", 30.0)], 0.0, 99.0)
    merge.behind.discard("a")
    assert merge.due(100.0) == []
    merge.add([line("b1", 20.0)], 100.0, 99.0)
    merge.behind.discard("b")
    assert texts(merge.due(100.0 + HOLD_S)) == ["a1", "b1", "a2"]
    assert not merge.held


def test_a_line_waits_for_older_ones_of_other_nodes_and_never_longer_than_that(live):
    live.add([line("a1", 20.0)], 0.0, 0.0)
    assert live.due(HOLD_S - 0.01) == []
    live.add([line("b1", 10.0)], HOLD_S - 0.01, 0.0)
    assert texts(live.due(HOLD_S)) == ["b1", "a1"]
    live.add([line("b2", 5000.0), line("b3", 21.0)], 1.0, 0.0)
    live.add([line("a2", 22.0)], 1.1, 0.0)
    assert texts(live.due(1.0 + HOLD_S)) == ["a2", "b2", "b3"]  # lines of one node keep their order


def test_no_more_lines_are_held_than_memory_allows(monkeypatch):
    monkeypatch.setattr(logs, "MOST", 3)
    merge = Merge("ab")
    merge.add([line(f"a{at}", float(at)) for at in range(4)], 0.0, 0.0)
    assert texts(merge.due(0.0)) == ["a0", "a1", "a2", "a3"]
