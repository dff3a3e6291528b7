"""Logs of several nodes in order of time, with a clock controlled by the test."""

from __future__ import annotations

from sparkcluster.inspect.logs import HOLD_S, LogLine, Merge


def line(text: str, at_s: float | None = None) -> LogLine:
    return LogLine(text[0], text, at_s)


def texts(lines: list[LogLine]) -> list[str]:
    return [each.text for each in lines]


def test_a_line_waits_for_older_lines_of_other_nodes_up_to_a_limit():
    live = Merge()
    live.add([line("a1", 20.0)], 0.0, 0.0)
    assert live.take(-0.01) == []
    live.add([line("b1", 10.0)], HOLD_S - 0.01, 0.0)
    assert texts(live.take(0.0)) == ["b1", "a1"]
    live.add([line("b2", 5000.0), line("b3", 21.0)], 1.0, 0.0)
    live.add([line("a2", 22.0)], 1.1, 0.0)
    assert texts(live.take(1.0)) == ["a2", "b2", "b3"]  # lines of one node keep their order


def test_lines_without_a_time_get_the_previous_lines_time_or_their_arrival():
    live = Merge()
    live.add([line("a1", 10.0), line("a2"), line("b1")], 0.0, 15.0)
    live.add([line("c1", 12.0)], 0.0, 15.0)
    assert texts(live.take()) == ["a1", "c1", "a2", "b1"]
    assert not live.held
