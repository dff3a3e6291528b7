"""Output on a terminal: progress, commands to paste, and no control sequences from nodes."""

from __future__ import annotations

import io
import sys

import pytest

from sparkcluster import hints
from sparkcluster.cli import findings_view, output, progress
from sparkcluster.errors import FoundErrors, LaunchError, Reason, StageError
from sparkcluster.findings import Finding, Remedy, edit, here, on_node, remedies
from sparkcluster.printable import LINES
from tests.unit.screen import Terminal


@pytest.mark.parametrize(("term", "kind"), [("dumb", progress.Lines), ("xterm", progress.Screen)])
def test_a_terminal_that_cannot_overwrite_lines_gets_plain_lines(
    term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(progress.reporter()) is kind


def test_logs_and_answers_cannot_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    hostile = "\x1b[31mred\x1b[0m\n\x1b]0;title\x07\x1b[2Jgone\rover"

    def shown(stream: io.StringIO) -> str:
        output.write(stream, *output.log_colours(hostile), keep=LINES)
        return stream.getvalue()

    assert shown(Terminal()) == "\x1b[31mred\x1b[0m\n�]0;title��[2Jgone�over\n"
    assert shown(io.StringIO()) == "red\n�]0;title��[2Jgone�over\n"
    output.write(line := io.StringIO(), "alpha: gone\rover")
    assert line.getvalue() == "alpha: gone�over\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal()) == "red\n�]0;title��[2Jgone�over\n"


def test_hints_name_the_inventory_and_the_program_as_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a virtual environment that is not on PATH, `sparkcluster` alone is not found."""
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/sparkcluster"])
    error = LaunchError("it died", hint="its log: sparkcluster logs INVENTORY spark-b; sparkcluster 0.1 is a version")
    hints.command_line = hints.CommandLine("my pair.yaml")
    output.show_error(error)
    hint = "hint: its log: /opt/venv/bin/sparkcluster logs 'my pair.yaml' spark-b; sparkcluster 0.1 is a version"
    assert capsys.readouterr().err.splitlines()[1] == hint
    found = FoundErrors([Finding("NET-006", "error", "MTU differs", node="a", step="netplan")])
    hints.command_line = hints.CommandLine("pair.yaml")
    output.show_error(found)
    assert "hint: /opt/venv/bin/sparkcluster setup pair.yaml --only netplan\n" in capsys.readouterr().err


def test_a_failed_start_shows_its_cause_the_log_line_the_remedy_and_the_path_of_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = LaunchError("beta ran out of memory", node="beta", log=["x"] * 40, hint="lower max-model-len")
    error.logs, error.reason = {"beta": ("x",)}, Reason("beta", "Tried to allocate 2.00 GiB", 31, "/failed/beta.log")
    hints.command_line = hints.CommandLine("pair.yaml")
    output.show_error(error)
    assert capsys.readouterr().err.splitlines() == [
        "error: beta ran out of memory",
        "  Tried to allocate 2.00 GiB",
        "  in /failed/beta.log:31",
        "hint: lower max-model-len",
        "log: sparkcluster logs pair.yaml --failed",
    ]


def test_an_error_common_to_several_nodes_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {name: f"{name} cannot pull it: read from port 4{at}33" for at, name in enumerate(("alpha", "beta"))}
    first, second = (StageError(text, node=name, hint="docker pull x") for name, text in texts.items())
    first.others = second, StageError("gamma has no space", node="gamma")
    output.show_error(first)
    assert capsys.readouterr().err.splitlines() == [
        "error: alpha cannot pull it: read from port 4033",
        "  the same on beta",
        "hint: docker pull x",
        "error: gamma has no space",
    ]


@pytest.mark.parametrize(
    ("step", "remedy", "labelled"),
    [
        ("netplan", ("a", "b"), ["hint: sparkcluster setup INVENTORY --only netplan", "or: a", "then: b"]),
        (None, ("a", edit("b", instead=True), "c"), ["hint: a", "or: b", "then: c"]),
        (None, ("", "order it", "a or b"), ["hint: order it", "then: a or b"]),
    ],
)
def test_steps_and_alternatives_of_a_remedy_are_distinguished(
    step: str | None, remedy: tuple[Remedy | str, ...], labelled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("NET-001", "error", "no link", node="a", seen="nothing", remedies=remedies(remedy), step=step)
    output.show_finding(finding)
    assert [line.strip() for line in capsys.readouterr().err.splitlines()[2:]] == labelled


@pytest.mark.parametrize(
    ("remedy", "shown"),
    [
        (on_node("sudo ip link set eth0 up"), "on spark-b: sudo ip link set eth0 up"),
        (on_node("sudo reboot", on="both nodes"), "on both nodes: sudo reboot"),
        (on_node("nvidia-smi", "what else uses it", on="every node"), "on every node: nvidia-smi   what else uses it"),
        (here("sparkcluster stage INVENTORY"), "sparkcluster stage INVENTORY"),
        (edit("sudo in words"), "sudo in words"),
    ],
)
def test_a_command_for_a_node_names_it_unless_the_heading_does(remedy, shown, capsys) -> None:
    finding = Finding("NET-006", "error", "MTU differs", node="spark-b", remedies=(remedy,))
    output.show_error(FoundErrors([finding]))
    assert f"    hint: {shown}\n" in capsys.readouterr().err
    assert f"  hint: {shown}" in finding.notes(hints.CommandLine())
    findings_view.show([finding], ["spark-b"], verbose=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "spark-b",
        "  error: NET-006 MTU differs",
        f"    hint: {remedy.shown()}",
    ]


HELD = "wait for the upgrade by ops@desk, which holds the lease and renewed it a moment ago; then "


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            f"echo 'a, b; {'x' * 60}' | sudo tee /etc/a; or reboot",
            [f"hint: echo 'a, b; {'x' * 60}' | sudo tee /etc/a", "or: reboot"],
        ),
        (
            "shorten the prompt, lower --max-tokens, or raise max-model-len in the playbook",
            ["hint: shorten the prompt, lower --max-tokens, or raise max-model-len in the", "  playbook"],
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
def test_a_hint_is_wrapped_between_words_but_a_command_in_it_stays_on_one_line(monkeypatch, text, lines) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    output.put(stream, text, kind="hint")
    assert stream.getvalue().splitlines() == lines
