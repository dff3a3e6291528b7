"""The frame of the program: commands are found, results become lines and exit codes, and few modules are imported."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.cli import main as frame
from sparkcluster.cli.commands import COMMANDS
from sparkcluster.errors import HostTimeout, LeaseHeld, Problem, SpecError

ROOT = Path(__file__).resolve().parents[3]
Command = Callable[[Callable[[Any], int]], None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Replaces the command ``status`` by a function."""

    def put(run: Callable[[Any], int]) -> None:
        module = types.ModuleType("sparkcluster.cli.status")
        module.add_arguments = lambda parser: (  # type: ignore[attr-defined]
            parser.add_argument("inventory", nargs="?"),
            parser.add_argument("--json", action="store_true"),
            parser.add_argument("--timeout", type=float),
        )
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "sparkcluster.cli.status", module)

    return put


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_within_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.guarded([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: sparkcluster {name}" in out
    assert max(map(len, out.splitlines())) <= 80
    assert frame.guarded(["--help"]) == 0
    assert f"\n  {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["a; touch /tmp/x\n"], "unknown command: a; touch /tmp/x", "sparkcluster --help"),
        (["--json", "status"], "unknown flag before the command: --json", "flags come after the command"),
        (["status", "a", "b"], "unexpected argument: b", "sparkcluster status --help"),
        (["status", "--timeout"], "--timeout: expected one argument", "sparkcluster status --help"),
        (["status", "--js"], "unknown flag of sparkcluster status: --js", "did you mean --json?"),
        (["lab", "upp"], "COMMAND: invalid choice: 'upp'", "did you mean up?"),
    ],
)
def test_usage_errors(
    words: list[str], error: str, hint: str, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda _: pytest.fail("it ran"))
    assert frame.guarded(words) == 2
    if "--json" in words:
        document = json.loads(capsys.readouterr().out)["error"]
        assert (document["kind"], document["message"], document["hint"]) == ("UsageError", error, hint)
        return
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: {error}"
    assert second.startswith(f"hint: {hint}")


def raises(error: BaseException) -> Callable[[Any], int]:
    def run(_: Any) -> int:
        raise error

    return run


def test_an_error_has_node_step_and_hint(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command(raises(HostTimeout("no answer within 10 s", node="spark-2", step="connect", hint="ping spark-2")))
    assert frame.guarded(["status"]) == 1
    assert capsys.readouterr() == (
        "",
        "error: spark-2: no answer within 10 s (during connect)\nhint: ping spark-2\n",
    )


def test_a_json_error_is_the_only_text_on_stdout(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command(raises(LeaseHeld("held by ann", hint="wait")))
    assert frame.guarded(["status", "--json"]) == 3
    out, err = capsys.readouterr()
    assert not err
    assert json.loads(out) == {
        "error": {"kind": "LeaseHeld", "message": "held by ann", "node": None, "step": None, "hint": "wait"}
    }


def test_every_problem_of_a_file_has_a_line(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem("a.yaml", 1, 2, "x", "is missing", "add x"), Problem("a.yaml", 3, 4, "", "no YAML")]
    command(raises(SpecError(problems)))
    assert frame.guarded(["status"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: a.yaml:1:2: x: is missing",
        "  hint: add x",
        "error: a.yaml:3:4: no YAML",
    ]


def test_an_unexpected_error_is_one_line_and_a_file(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command(raises(ZeroDivisionError("a\nb")))
    assert frame.guarded(["status"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    (report,) = tmp_path.iterdir()
    assert error == "error: internal error: ZeroDivisionError: a"
    assert hint == f"hint: please report it and attach {report}"
    assert "Traceback" in report.read_text()
    assert report.stat().st_mode & 0o077 == 0


def test_a_bad_file_exits_2_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "inventory.yaml"
    bad.write_text('cluster: "a; touch x"\n')
    for name in ("lint", "plan", "up", "down", "status"):
        assert frame.guarded([name, str(bad)]) == 2
        err = capsys.readouterr().err
        assert f"{bad}:1:10: cluster: " in err
        assert "Traceback" not in err
