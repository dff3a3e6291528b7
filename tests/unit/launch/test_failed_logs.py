"""The logs of a failed launch outlive its ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.launch.failed_logs import directory, keep, pointed


def test_every_node_has_a_file_that_only_the_user_reads(tmp_path):
    place = tmp_path / "failed" / "pair"
    assert keep(place, {"alpha": ("first", "last"), "beta": ()})
    assert (place / "alpha.log").read_text() == "first\nlast\n"
    assert (place / "beta.log").read_text() == ""
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    assert place.stat().st_mode & 0o777 == 0o700


def test_the_next_failure_replaces_the_one_before(tmp_path):
    assert keep(tmp_path, {"alpha": ("old",), "gone": ("old",)})
    assert keep(tmp_path, {"alpha": ("new",)})
    assert [path.name for path in tmp_path.iterdir()] == ["alpha.log"]
    assert (tmp_path / "alpha.log").read_text() == "new\n"


def test_a_name_is_no_path_and_a_broken_letter_no_failure(tmp_path):
    assert keep(tmp_path / "in", {"../a b": ("\udcff",)})
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["..-a-b.log"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_disk_that_takes_nothing_is_no_failure_of_the_launch(tmp_path):
    (tmp_path / "file").write_text("")
    assert not keep(tmp_path / "file" / "below", {"alpha": ("x",)})


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (None, "last log lines: /x/"),
        ("its log: sparkcluster logs INVENTORY beta", "its log: /x/"),
        ("why: sparkcluster logs INVENTORY NODE, and sudo dmesg there", "why: /x/, and sudo dmesg there"),
        ("reseat the cable", "reseat the cable; last log lines: /x/"),
    ],
)
def test_a_hint_points_to_what_was_kept(hint, expected):
    assert pointed(hint, Path("/x")) == expected


def test_the_place_follows_the_users_state_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert directory("pair") == tmp_path / "sparkcluster" / "failed" / "pair"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert directory("pair") == Path("/home/someone/.local/state/sparkcluster/failed/pair")
