"""``logs`` at the keyboard: what its flags refuse, and what stands on the terminal."""

from __future__ import annotations

import json
import time

import pytest

from sparkcluster.cli import common
from sparkcluster.cli import logs as command
from sparkcluster.cli.main import guarded
from sparkcluster.errors import LaunchError, Reason
from sparkcluster.launch import failed_logs
from sparkcluster.runtime import observed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grep", "("], "--grep: not a regular expression: missing )"),
        (["--since", "yesterday"], "--since: must be as 10m or 2026-11-26T04:10:00Z, is yesterday"),
        (["--since", "9999-01-01"], "--since: 9999-01-01 is in the future"),
        (["--failed", "-f"], "--failed and --follow cannot be combined"),
        (["--failed", "--since", "1m"], "--failed and --since cannot be combined"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(capsys, words, said):
    assert guarded(["logs", "x.yaml", *words]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "hint: " in told.err
    assert told.out == ""


@pytest.fixture
def failed(world, monkeypatch, tmp_path):
    """The spec of a cluster whose last launch failed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    site = world()
    error = LaunchError("the rank on alpha ended", node="alpha", hint="set less; then sparkcluster up INVENTORY")
    error.logs = {"alpha": ("one", "why \x1b[2J", "three"), "beta": ()}
    error.reason = Reason("alpha", "why \x1b[2J", 2)
    assert failed_logs.keep(failed_logs.directory(site.spec.inventory.cluster), [error])
    for module in (common, command):
        monkeypatch.setattr(module, "load_spec", lambda _: site.spec)
    return failed_logs.directory(site.spec.inventory.cluster)


def test_the_kept_log_is_printed_with_the_line_that_says_why(failed, capsys):
    assert guarded(["logs", "my(pair).yaml", "--failed"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == ["alpha | one", "alpha | why �[2J", "alpha | three"]
    assert told.err.splitlines() == [
        "the last launch of atlas that failed, 0 s ago: the rank on alpha ended",
        f"{failed}/alpha.log:2: why �[2J",
        "hint: set less; then sparkcluster up 'my(pair).yaml'",
    ]


def test_a_success_since_the_failure_is_said(failed, capsys, monkeypatch):
    said = "`up` from this machine has succeeded since"
    for at, known in ((time.gmtime(time.time() - 60), False), (time.gmtime(time.time() + 60), True)):
        monkeypatch.setattr(observed.time, "gmtime", lambda at=at: at)
        observed.note("atlas", "up")
        assert guarded(["logs", "x.yaml", "--failed"]) == 0
        assert (said in capsys.readouterr().err.splitlines()) is known


@pytest.mark.parametrize(("words", "lines"), [(["-n", "0"], []), (["-n", "1"], ["three"]), (["--grep", "^o"], ["one"])])
def test_the_kept_log_is_cut_and_searched_as_any_other(failed, capsys, words, lines):
    assert guarded(["logs", "x.yaml", "--failed", "--json", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [line["line"] for line in document["lines"]] == lines
    assert document["failed"]["reason"]["number"] == 2


@pytest.mark.parametrize(("words", "said"), [([], True), (["--json"], False), (["--json-lines"], False)])
def test_a_pattern_without_a_match_is_said_so(failed, capsys, words, said):
    assert guarded(["logs", "x.yaml", "--failed", "--grep", "nosuchthing", *words]) == 0
    assert ("no line matches" in capsys.readouterr().err.splitlines()) is said


def test_a_message_about_a_node_is_no_match(capsys):
    given = {"json": False, "json_lines": False, "follow": False, "grep": True}
    for own, said in ((True, "no line matches\n"), (False, "")):
        printer = command._Printer(common.argparse.Namespace(**given), ["a"])
        printer.show("a", "x", None, own=own)
        printer.tell_none()
        assert capsys.readouterr().err == said


def test_each_node_has_a_colour_on_a_terminal_and_its_name_everywhere(monkeypatch, capsys):
    printer = command._Printer(common.argparse.Namespace(json=False, json_lines=False), ["a", "beta"])
    printer.show("a", "x", None)
    monkeypatch.setattr("sparkcluster.cli.output.in_colour", lambda _: True)
    printer.show("a", "x", None)
    printer.show("beta", "y", None, marked=True)
    plain, first, second = capsys.readouterr().out.splitlines()
    assert plain == "a    | x"
    assert first == "\x1b[36ma    | \x1b[0mx"
    assert second == "\x1b[33mbeta | \x1b[0m\x1b[1;31my\x1b[0m"
