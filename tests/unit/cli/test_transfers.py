"""What is shown of transfers: rows and chain within 80 columns, lines in a pipe, JSON lines, the last line."""

from __future__ import annotations

import io
import json

import pytest
from docgen import json_schemas

from sparkcluster.cli import progress, transfers
from sparkcluster.report import Transfer
from tests.unit.screen import Terminal

GB = 10**9


def moving(node, source, gb=12.3, **more):
    return Transfer(node, "weights", int(gb * GB), int(63.4 * GB), source, **more)


def by_key(*all_of_them):
    return {(each.what, each.node): each for each in all_of_them}


def drawn(*all_of_them, width=80):
    return transfers.chain(by_key(*all_of_them), width=width)


@pytest.mark.parametrize(
    ("edges", "line"),
    [
        (["cb", "ba", "dc"], "a ═ b ═ c ═ d"),  # in any order
        (["fd", "ba", "cb", "db", "ec"], "a ═ b ═ c ═ e   b ═ d ═ f"),
        (["ab", "bc", "ca"], "a ═ c ═ b ═ a"),  # a ring: each lacks what another one has
    ],
)
def test_every_shape_is_drawn_whole(edges, line):
    shown = drawn(*(moving(node, source) for node, source in edges))
    assert shown == [f"weights: {line}"]
    assert sum(shown[0].count(link) for link in "═┄") == len(edges)


def test_rows_are_aligned_within_80_columns():
    shown = by_key(
        moving("spark-0002", "spark-0001"),
        moving("spark-0003", "spark-0002", 9.7),
        moving("a-name-of-more-than-sixteen", "spark-0003", 0),
        moving("d", "spark-0003", 63.4, state="complete"),
        Transfer("f", "image", 2 * 10**6, 0, "download"),
    )
    rates = dict.fromkeys(shown, 1.21 * GB) | {("weights", "spark-0003"): 9.6e7}
    table = [
        "spark-0002         19 %  12.3 of 63.4 GB  1.21 GB/s        42 s left  from spark-0001",
        "spark-0003         15 %   9.7 of 63.4 GB    96 MB/s  9 min 19 s left  from spark-0002",
        "a-name-of-more-…    0 %   0.0 of 63.4 GB  1.21 GB/s        52 s left  from spark-0003",
        "d                 100 %  63.4 of 63.4 GB   complete                   from spark-0003",
        "f                                 2.0 MB  1.21 GB/s                   downloaded",
    ]
    assert transfers.rows(shown, rates, width=100) == table
    lines = transfers.rows(shown, rates, width=80)  # the chain says from whom
    assert lines == [line[:70].rstrip() for line in table]


def test_a_rate_is_that_of_the_last_ten_seconds_and_falls_to_nothing():
    rates = transfers.Rates()
    assert rates.add(moving("b", "a", 5.0), 0.0) is None  # of an earlier run
    for second in range(1, 31):
        rate = rates.add(moving("b", "a", 5.0 + second * (2.0 if second < 15 else 1.0)), float(second))
    assert rate == pytest.approx(GB, rel=0.15)
    stalled = moving("b", "a", 35.0)
    assert rates.rate(stalled, 31.0) > 0
    for second in range(31, 45):
        rate = rates.add(stalled, float(second))
    assert rate == 0.0
    assert rates.add(moving("b", "a", 1.0), 45.0) is None  # a file starts over: not a negative rate


def test_a_pipe_gets_a_line_every_few_seconds_and_at_once_where_something_changes():
    now, stream = [100.0], io.StringIO()
    lines = progress.Lines(stream, clock=lambda: now[0])
    for second in range(12):
        now[0] = 100.0 + second
        lines.transfer(moving("b", "a" if second < 8 else "c", 10.0 + second))
    for state in ("complete", "complete"):
        lines.transfer(moving("b", "c", 63.4, state=state))
    assert [line.strip() for line in stream.getvalue().splitlines()] == [
        "b: weights 10.0 of 63.4 GB from a",
        "b: weights 15.0 of 63.4 GB from a, 1.00 GB/s, 48 s left",
        "b: weights 18.0 of 63.4 GB from c, 1.00 GB/s, 45 s left",
        "b: weights complete, 63.4 GB",
    ]


def test_json_lines_are_as_documented():
    stream, now = io.StringIO(), [100.0]
    lines = progress.JsonLines(stream, clock=lambda: now[0])
    for transfer in (moving("b", "a"), moving("b", None), moving("b", "c", 63.4, state="complete")):
        now[0] += 0.1
        lines.transfer(transfer)
        lines.transfer(transfer)
    documents = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["source"], each["medium"], each["state"]) for each in documents] == [
        ("a", "rail", "copying"), (None, None, "copying"), ("c", "rail", "complete"),
    ]  # fmt: skip
    assert documents[0]["bytes"] == 12.3 * GB
    assert (documents[0]["rate_bytes_s"], documents[0]["remaining_s"]) == (None, None)
    for document in documents:
        json_schemas.validate("event", document)


def test_a_terminal_shows_chain_and_rows_and_nothing_that_controls_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    screen = progress.Screen(stream := Terminal())
    with screen:
        screen.step("stage", "weights")
        screen.transfer(moving("b", "a"))
        screen.transfer(moving("c\x1b]52;c;YQ==\x07", "b", medium="wire", encrypted=True))
        screen.note("a line, above which all is drawn again")
    written = stream.getvalue()
    assert "weights: a ═ b ┄ c" in written
    assert "19 %  12.3 of 63.4 GB" in written
    assert "\x1b]" not in written
