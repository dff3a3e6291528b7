"""Observations of commands are stored, bounded and private, and never the reason why a command fails."""

from __future__ import annotations

import stat

import pytest

from sparkcluster.runtime import observed


def lines():
    return [entry.get("number") for entry in observed.read("atlas")]


def test_lines_are_kept_in_order_and_the_oldest_are_dropped(monkeypatch):
    monkeypatch.setattr(observed, "LINES", 3)
    assert observed.read("atlas") == []
    for number in range(5):
        observed.note("atlas", "up", number=number)
    assert lines() == [2, 3, 4]
    assert observed.read("other") == []
    entry = observed.read("atlas")[0]
    assert (entry["what"], entry["time"][-1]) == ("up", "Z")


def test_only_its_owner_may_read_it_and_no_temporary_file_remains():
    observed.note("atlas", "up")
    path = observed.path("atlas")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe\n"])
def test_a_damaged_file_is_replaced(damage):
    observed.note("atlas", "up", number=1)
    path = observed.path("atlas")
    path.write_bytes(path.read_bytes() + damage)
    assert lines() == []
    observed.note("atlas", "up", number=2)
    assert lines() == [2]


@pytest.mark.parametrize("blocked", ["a file in the way", "a directory in the way"])
def test_an_unwritable_directory_is_not_an_error(blocked):
    path = observed.path("atlas")
    if blocked == "a file in the way":
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.write_text("")
    else:
        path.mkdir(parents=True)
    observed.note("atlas", "up")
    assert observed.read("atlas") == []
