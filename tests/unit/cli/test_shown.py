"""What a person sees: signs of life, commands that can be pasted, and nothing that takes the terminal over."""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from pathlib import Path

import pytest

from sparkcluster.cli import common, findings_view, output, progress
from sparkcluster.cli import main as frame
from sparkcluster.errors import FoundErrors, LaunchError
from sparkcluster.findings import Finding
from sparkcluster.printable import LINES


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def test_a_phase_that_lasts_is_repeated_with_its_age() -> None:
    """A log that stands still for a minute looks like a hang."""
    now, stream = [0.0], io.StringIO()
    lines = progress.Lines(stream, clock=lambda: now[0])
    for second in range(40):
        now[0] = float(second)
        lines.progress("a", "loading")
    assert stream.getvalue().splitlines() == [
        "  a: loading",
        "  a: loading, for 15 s now",
        "  a: loading, for 30 s now",
    ]


def test_waiting_reports_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = io.StringIO(), Said()
    with progress.Waiting("asking 2 nodes", quick):
        pass
    assert quick.getvalue() == ""
    monkeypatch.setattr(progress, "SILENT_S", 0)
    with progress.Waiting("asking 2 nodes", slow) as waiting:
        assert slow.something.wait(10)
        waiting.end()
        waiting.end()
    assert slow.getvalue() == "asking 2 nodes, 0 s\n"


class Said(io.StringIO):
    """A stream that tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.something = threading.Event()

    def flush(self) -> None:
        """Called after each line."""
        self.something.set()


@pytest.mark.parametrize(("term", "kind"), [("dumb", progress.Lines), ("xterm", progress.Screen)])
def test_a_terminal_that_cannot_overwrite_lines_gets_plain_lines(
    term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(progress.reporter(as_json=False, json_lines=False, stream=Terminal())) is kind


def test_logs_and_answers_cannot_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    hostile = "\x1b[31mred\x1b[0m\n\x1b]0;title\x07\x1b[2Jgone\rover"

    def shown(stream: io.StringIO) -> str:
        output.write(stream, *output.coloured(hostile), keep=LINES)
        return stream.getvalue()

    assert shown(Terminal()) == "\x1b[31mred\x1b[0m\n�]0;title��[2Jgone�over\n"
    assert shown(io.StringIO()) == "red\n�]0;title��[2Jgone�over\n"
    output.write(line := io.StringIO(), "alpha: gone\rover")
    assert line.getvalue() == "alpha: gone�over\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal()) == "red\n�]0;title��[2Jgone�over\n"


def test_soft_hyphens_and_tags_are_left_out_of_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is visible, and tags can hide a text; honest answers have both, tags in the flag of England."""
    answer = "hyphen\u00adation, \U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
    output.write(sys.stdout, answer, keep=LINES)
    output.say(answer[:8])
    assert capsys.readouterr().out == "hyphenation, \U0001f3f4\nhyphen�a\n"


def test_hints_name_the_inventory_and_the_program_as_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a virtual environment that is not on PATH, `sparkcluster` alone is not found."""
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/sparkcluster"])
    error = LaunchError("it died", hint="its log: sparkcluster logs INVENTORY spark-b; sparkcluster 0.1 is a version")
    error.others = (LaunchError("it died, too", hint="sparkcluster logs INVENTORY spark-c"),)
    error.inventory = "'my pair.yaml'"
    output.render_error(error)
    told = capsys.readouterr().err.splitlines()
    assert (
        told[1]
        == "hint: its log: /opt/venv/bin/sparkcluster logs 'my pair.yaml' spark-b; sparkcluster 0.1 is a version"
    )
    assert told[-1] == "hint: /opt/venv/bin/sparkcluster logs 'my pair.yaml' spark-c"
    found = FoundErrors([Finding("NET-006", "error", "MTU differs", node="a", step="netplan")])
    found.inventory = "pair.yaml"
    output.render_error(found)
    assert "hint: /opt/venv/bin/sparkcluster setup pair.yaml --only netplan\n" in capsys.readouterr().err


def test_the_hint_of_a_finding_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    output.render_error(FoundErrors([Finding("NET-001", "error", "no link", node="a", remedy=("plug it in",))]))
    assert capsys.readouterr().err.count("plug it in") == 1


@pytest.mark.parametrize(
    ("step", "remedy", "labelled"),
    [
        (None, ("a", "b"), ["hint: a", "then: b"]),
        ("netplan", ("a", "b"), ["hint: sparkcluster setup INVENTORY --only netplan", "or: a", "then: b"]),
        ("netplan", (), ["hint: sparkcluster setup INVENTORY --only netplan"]),
        (None, ("a", "or b", "c"), ["hint: a", "or: b", "then: c"]),
        (None, ("a", "or, for all: b"), ["hint: a", "or: for all: b"]),
        (None, ("", "order it", "a or b"), ["hint: order it", "then: a or b"]),
    ],
)
def test_steps_and_alternatives_of_a_remedy_are_told_apart(
    step: str | None, remedy: tuple[str, ...], labelled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("NET-001", "error", "no link", node="a", seen="nothing", remedy=remedy, step=step)
    output.render_finding(finding, "INVENTORY")
    assert [line.strip() for line in capsys.readouterr().err.splitlines()[2:]] == labelled


def test_json_lines_stay_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    output.emit_json({"a": {"b": 1}}, line=True)
    assert stream.getvalue() == '{"a": {"b": 1}}\n'
    output.emit_json({"a": {"b": 1}})
    assert json.loads(stream.getvalue().split("\n", 1)[1]) == {"a": {"b": 1}}


def test_help_of_a_command_in_the_other_order(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        frame.guarded(["help", "up"])
    assert capsys.readouterr().out.startswith("usage: sparkcluster up")


def test_following_as_one_document_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory = Path(__file__).resolve().parents[3] / "inventory" / "localhost.yaml"
    assert frame.guarded(["logs", str(inventory), "-f", "--json"]) == 2
    assert "--json-lines" in json.loads(capsys.readouterr().out)["error"]["hint"]


@pytest.mark.parametrize("kind", [progress.Lines, progress.JsonLines])
def test_what_a_thread_reports_after_the_end_is_not_shown(kind):
    """The result or the error comes after it, as the last line."""
    stream = io.StringIO()
    with kind(stream) as report:
        report.step("launch")
    before = stream.getvalue()
    report.step("verify")
    report.progress("left", "loading")
    report.note("late")
    assert stream.getvalue() == before


HELD = "wait for the upgrade by ops@desk, which holds the lease and renewed it a moment ago; then "


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"sparkcluster up {'x' * 80}.yaml", [f"hint: sparkcluster up {'x' * 80}.yaml"]),
        (f"du -sh '/mnt/{'x' * 60}'/hub/* | sort -h", [f"hint: du -sh '/mnt/{'x' * 60}'/hub/* | sort -h"]),
        (
            f"echo 'a, b; {'x' * 60}' | sudo tee /etc/a; or reboot",
            [f"hint: echo 'a, b; {'x' * 60}' | sudo tee /etc/a", "or: reboot"],
        ),
        (
            "shorten the prompt, lower --max-tokens, or raise max-model-len in the playbook",
            ["hint: shorten the prompt, lower --max-tokens, or raise max-model-len in the", "  playbook"],
        ),
        (
            f"{HELD}sparkcluster up a.yaml --replace, or leave it",
            [
                "hint: wait for the upgrade by ops@desk, which holds the lease and renewed it a",
                "  moment ago; then sparkcluster up a.yaml --replace, or leave it",
            ],
        ),
        (
            f"{HELD}remember to type sparkcluster up a.yaml --replace --yes --json-lines",
            [
                "hint: wait for the upgrade by ops@desk, which holds the lease and renewed it a",
                "  moment ago; then remember to type",
                "  sparkcluster up a.yaml --replace --yes --json-lines",
            ],
        ),
    ],
)
def test_a_hint_is_folded_between_words_and_a_command_in_it_stays_on_one_line(monkeypatch, text, lines) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    output.write_remedy(stream, "hint", text)
    assert stream.getvalue().splitlines() == lines


def test_a_warning_of_a_command_that_continues_names_its_node_and_can_be_pasted(monkeypatch) -> None:
    finding = Finding(
        "HOST-029",
        "warning",
        "link to spark-10 is slow",
        node="spark-1",
        remedy=("sparkcluster models INVENTORY --prune",),
    )
    assert list(finding.notes(Path("my desk.yaml"))) == [
        "warning: HOST-029 spark-1: link to spark-10 is slow",
        "  hint: sparkcluster models 'my desk.yaml' --prune",
    ]
    for summary in ("spark-1 is slow", "the disk of spark-1", "spark-1: slow", "it is spark-1."):
        assert Finding("X", "error", summary, node="spark-1").headline == f"X {summary}"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress.Screen(stream) as screen:
        screen.note(f"  hint: sparkcluster up {'x' * 50}.yaml --yes")
    assert f"  hint: sparkcluster up {'x' * 50}.yaml --yes\n" in stream.getvalue()


def test_what_is_wrapped_fits_with_its_indent(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for letters in range(1, 9):
        findings_view.say_wrapped("    ", "seen", " ".join(["x" * letters] * 60))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_default_inventory_is_named_in_whole_words(monkeypatch, tmp_path) -> None:
    path = tmp_path / "the inventory of the two machines in the machine room.yaml"
    path.write_text("cluster: a")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("SPARKCLUSTER_INVENTORY", str(path))
    monkeypatch.setattr(sys, "stderr", Terminal())
    common.fill_in_inventory(argparse.Namespace(json=False, json_lines=False))
    lines = sys.stderr.getvalue().splitlines()
    assert " ".join(line.strip() for line in lines) == f"inventory: {path} (from SPARKCLUSTER_INVENTORY)"
    assert len(lines) > 1


@pytest.mark.parametrize("name", frame.COMMANDS)
def test_the_help_of_a_command_fits_80_columns(monkeypatch, capsys, name) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        frame.main([name, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
