"""Progress of transfers: rows within 80 columns, lines in a pipe, JSON lines."""

from __future__ import annotations

import io
import json
import re

import pytest
from docgen import json_schemas
from rich.console import Console

from sparkcluster.cli import progress, transfers
from sparkcluster.report import Transfer
from tests.unit.screen import Terminal

GB = 10**9


def moving(node, source, gb=12.3, **more):
    return Transfer(node, "weights", int(gb * GB), int(63.4 * GB), source, **more)


def drawn(*transfers_with_rates, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(transfers.table(transfers_with_rates))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_rows_are_aligned_and_truncated_to_the_width():
    moves = (
        (moving("spark-0002", "spark-0001"), 1.21 * GB),
        (moving("spark-0003", "spark-0002", 9.7, medium="wifi", encrypted=True), 9.6e7),
        (moving("spark-0004", "spark-0003", 0), 0.0),
        (moving("d", "spark-0003", 63.4, state="complete"), 1.21 * GB),
        (Transfer("f", "image", 2 * 10**6, 0, "download"), 1.21 * GB),
    )
    columns = [
        "spark-0002  12.3 of 63.4 GB        1.21 GB/s   42 s left  from spark-0001",
        "spark-0003   9.7 of 63.4 GB          96 MB/s   9 min left  from spark-0002 over WiFi, encrypted",
        "spark-0004   0.0 of 63.4 GB  stalled                      from spark-0003",
        "d           63.4 of 63.4 GB         complete              from spark-0003",
        "f                    2.0 MB        1.21 GB/s              downloaded",
    ]
    wide, narrow = drawn(*moves, width=120), drawn(*moves, width=74)
    assert [re.sub("[━╸]+", "", line).split() for line in wide] == [line.split() for line in columns]
    assert max(map(len, narrow)) <= 74
    assert len({line.find(" GB  ") for line in narrow[:4]}) == 1
    assert all(line.endswith("…") for line in narrow[:4])  # from whom it comes


def test_a_rate_covers_the_last_ten_seconds_and_drops_to_zero():
    rates = transfers.Rates()
    assert rates.add(moving("b", "a", 5.0), 0.0) is None  # of an earlier run
    for second in range(1, 31):
        rate = rates.add(moving("b", "a", 5.0 + second * (2.0 if second < 15 else 1.0)), float(second))
    assert rate == pytest.approx(GB, rel=0.15)
    stalled = moving("b", "a", 35.0)
    assert rates.add(stalled, 31.0) > 0
    for second in range(32, 45):
        rate = rates.add(stalled, float(second))
    assert rate == 0.0
    assert rates.add(moving("b", "a", 1.0), 45.0) is None  # a file starts over: not a negative rate


def test_a_pipe_gets_a_line_per_step_and_per_long_wait():
    now, stream = [100.0], io.StringIO()
    lines = progress.Lines(stream, clock=lambda: now[0])

    def report(node, text):
        return lambda: lines.progress(node, text)

    script = {
        0: lambda: lines.step("connect", "2 Sparks"),
        1: lambda: lines.step("copy", "weights"),
        **{second: lambda second=second: lines.transfer(moving("b", "a", 10.0 + second)) for second in range(2, 25)},
        25: lambda: lines.step("copy", "63.4 GB to 1 Spark"),
        26: lambda: lines.step("connect", "again, which is part of the copy"),
        27: lambda: lines.step("start", "2 ranks"),
        28: report("a", "starting"),
        29: report("a", "loading weights 10 %"),
        33: report("a", "loading weights 40 %"),
        34: report("b", ""),
    }
    for second in range(36):
        now[0] = 100.0 + second
        script.get(second, lines.tell)()
    lines.failed()
    lines.__exit__(None, None, None)
    lines.note("late")
    assert stream.getvalue().splitlines() == [
        "✓ connect  2 Sparks                                            1.0 s",
        "  b: weights 12.0 of 63.4 GB from a",
        "  b: weights 17.0 of 63.4 GB from a, 1.00 GB/s, 46 s left",
        "  b: weights 22.0 of 63.4 GB from a, 1.00 GB/s, 41 s left",
        "  b: weights 27.0 of 63.4 GB from a, 1.00 GB/s, 36 s left",
        "  b: weights 32.0 of 63.4 GB from a, 1.00 GB/s, 31 s left",
        "✓ copy     63.4 GB to 1 Spark                                 26.0 s",
        "  a: loading weights 10 %",
        "✗ start    2 ranks                                             8.0 s",
    ]


def test_json_lines_match_the_documentation():
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


def test_a_terminal_shows_rows_without_control_characters(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    screen = progress.Screen(stream := Terminal())
    with screen:
        screen.step("copy", "weights")
        screen.transfer(moving("b", "a"))
        screen.transfer(moving("c\x1b]52;c;YQ==\x07", "b", medium="wire", encrypted=True))
        screen.note("a line, above which all is drawn again")
    written = stream.getvalue()
    assert "12.3 of 63.4 GB" in written
    assert "\x1b]" not in written
