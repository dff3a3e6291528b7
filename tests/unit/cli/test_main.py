"""The frame of the program: commands found, outcomes turned into lines and exit codes, and little imported."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.cli import main as frame
from sparkcluster.cli import output
from sparkcluster.errors import FoundErrors, HostTimeout, LaunchError, LeaseHeld, Problem, SpecError
from sparkcluster.findings import Finding

ROOT = Path(__file__).resolve().parents[3]
Command = Callable[[Callable[[Any], int]], None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Puts a function in place of the command ``status``."""

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


def program(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sparkcluster", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_help_fits_80_columns_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.guarded(["--help"]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert max(map(len, out.splitlines())) <= 80
    for name in frame.COMMANDS:
        assert f"\n  {name} " in out


@pytest.mark.parametrize("name", sorted(frame.COMMANDS))
def test_every_command_has_its_module_and_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not (ROOT / f"{frame.module(name).replace('.', '/')}.py").exists():
        pytest.fail(f"the table names {name}, but {frame.module(name)} is not there")
    with pytest.raises(SystemExit) as caught:
        frame.guarded([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: sparkcluster {name}" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    """What decides the start of ``--help`` is what is imported; the ratio itself is measured by the bench."""
    code = (
        "import sys\nfrom sparkcluster.cli.main import guarded\nguarded(['--help'])\n"
        "print(*sorted({'argparse','dataclasses','fabric','paramiko','pydantic','ray','rich','yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_help_of_a_command_imports_no_engine() -> None:
    code = (
        "import sys\nfrom sparkcluster.cli.main import guarded\n"
        "try: guarded(['lint', '--help'])\nexcept SystemExit: pass\n"
        "print(*sorted({'fabric','paramiko','pydantic','ray','rich','yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.guarded(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sparkcluster ")


def test_without_a_command_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.guarded([]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("usage: sparkcluster")


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["statsu"], "unknown command: statsu", "did you mean status?"),
        (["frobnicate"], "unknown command: frobnicate", "sparkcluster --help lists the commands"),
        (["a; touch /tmp/x\n"], "unknown command: 'a; touch /tmp/x\\n'", "sparkcluster --help"),
        (["--json", "status"], "unknown flag before the command: --json", "flags come after the command"),
        (["status", "--jsn"], "unknown flag of sparkcluster status: --jsn", "did you mean --json?"),
        (["status", "a", "b"], "unexpected argument: b", "sparkcluster status --help"),
        (["status", "--timeout", "x"], "--timeout: invalid float value: 'x'", "sparkcluster status --help"),
        (["status", "--timeout"], "--timeout: expected one argument", "sparkcluster status --help"),
        (["status", "--js"], "unknown flag of sparkcluster status: --js", "did you mean --json?"),
        (["lint"], "FILE is missing", "sparkcluster lint --help"),
        (["lab", "upp"], "invalid COMMAND: upp", "did you mean up?"),
    ],
)
def test_wrong_usage(
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


def test_exit_code_of_the_command_is_passed_on(command: Command) -> None:
    command(lambda args: 7 if args.inventory == "x" else 8)
    assert frame.guarded(["status", "x"]) == 7


def raises(error: BaseException) -> Callable[[Any], int]:
    def run(_: Any) -> int:
        raise error

    return run


def test_error_names_node_step_and_hint(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command(raises(HostTimeout("no answer within 10 s", node="spark-2", step="probe", hint="ping spark-2")))
    assert frame.guarded(["status"]) == 1
    assert capsys.readouterr() == (
        "",
        "error: spark-2: no answer within 10 s (during probe)\nhint: ping spark-2\n",
    )


def test_error_names_its_step_once(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: Any) -> int:
        raise HostTimeout("connection to spark-2 broke during record", node="spark-2", step="record")

    command(run)
    assert frame.guarded(["status"]) == 1
    assert capsys.readouterr().err == "error: connection to spark-2 broke during record\n"


def test_error_as_json_is_the_only_thing_on_stdout(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_findings_and_logs_belong_to_their_error(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(
        "NET-014", "error", "MTU differs", node="spark-2", seen="1500", why="deadlock", remedy=("ip link",)
    )
    command(raises(FoundErrors([finding])))
    assert frame.guarded(["status"]) == 1
    err = capsys.readouterr().err
    assert "  error: NET-014 spark-2: MTU differs\n    seen: 1500\n    why: deadlock\n    hint: ip link\n" in err
    command(raises(LaunchError("rank died", node="spark-1", log=["one", "\x1b[2Jtwo"])))
    assert frame.guarded(["status"]) == 1
    assert capsys.readouterr().err == "error: spark-1: rank died\n  | one\n  | �[2Jtwo\n"


def test_interrupt(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command(raises(KeyboardInterrupt()))
    assert frame.guarded(["status"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_unexpected_error_is_one_line_and_a_file(
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


def test_debugging_shows_the_traceback(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SPARKCLUSTER_DEBUG", "1")
    command(raises(ZeroDivisionError()))
    frame.guarded(["status"])
    assert "Traceback" in capsys.readouterr().err


def test_broken_pipe_of_an_engine_is_an_error_and_not_silence(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command(raises(BrokenPipeError(32, "Broken pipe")))
    assert frame.guarded(["status"]) == 1
    assert "internal error: BrokenPipeError" in capsys.readouterr().err


def test_bad_file_ends_with_2_and_no_traceback(tmp_path: Path) -> None:
    bad = tmp_path / "inventory.yaml"
    bad.write_text('cluster: "a; touch x"\n')
    for name in ("lint", "plan", "up", "down", "status"):
        done = program(name, str(bad))
        assert done.returncode == 2, done.stderr
        assert f"{bad}:1:10: cluster: must be letters" in done.stderr
        assert "Traceback" not in done.stderr


def test_file_names_that_are_not_utf8() -> None:
    done = program("lint", os.fsdecode(b"/nonexistent/\xff\n"), env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 2
    assert "no such file" in done.stderr


def test_lint_as_json_has_the_shape_that_others_rely_on(tmp_path: Path) -> None:
    bad = tmp_path / "inventory.yaml"
    bad.write_text("cluster: x\nplaybook: tiny-llama-cpu\nnodse: []\n")
    done = program("lint", str(bad), "inventory/localhost.yaml", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 2
    assert not document["ok"]
    assert document["nodes"] == {}
    told = {(one["code"], one["severity"], one["file"], one["line"], one["summary"]) for one in document["findings"]}
    assert ("SPEC-002", "error", str(bad), 3, "nodse: unknown key") in told
    assert done.stderr == ""


def test_lint_of_good_files() -> None:
    done = program("lint", "inventory/two-spark.yaml", "playbooks/gpt-oss-120b.yaml", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"], document["nodes"]) == (0, True, {})
    assert {one["severity"] for one in document["findings"]} <= {"info"}


def test_playbooks_are_listed_plainly_in_a_pipe() -> None:
    done = program("playbooks")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "tiny-llama-cpu" in done.stdout
    listed = json.loads(program("playbooks", "--json").stdout)["playbooks"]
    assert {one["name"] for one in listed} == {path.stem for path in (ROOT / "playbooks").glob("*.yaml")}


def on_terminal(words: list[str], **env: str) -> str:
    """What a terminal of 80 columns shows."""
    controller, terminal = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "sparkcluster", *words],
        cwd=ROOT,
        stdout=terminal,
        stderr=terminal,
        env={
            **{key: one for key, one in os.environ.items() if key != "NO_COLOR"},
            "COLUMNS": "80",
            "TERM": "xterm",
            **env,
        },
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # Linux says EIO when the last writer is gone
            break
        if not piece:
            break
        shown += piece
    done.wait(timeout=30)
    os.close(controller)
    return shown.decode()


def test_terminal_gets_colour_unless_told_otherwise() -> None:
    assert "\x1b[1;31merror:\x1b[0m unknown command" in on_terminal(["x"])
    assert "\x1b" not in on_terminal(["x"], NO_COLOR="1")
    assert "\x1b" not in on_terminal(["x"], TERM="dumb")
    assert "\x1b" not in on_terminal(["playbooks"], NO_COLOR="1")


def test_terminal_table_stays_within_80_columns() -> None:
    lines = on_terminal(["playbooks"], NO_COLOR="1").splitlines()
    assert max(map(len, lines)) <= 80
    assert any("gpt-oss-120b" in line for line in lines)


def test_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("A", "B"), [("long", "x"), ("s", "y")])
    assert capsys.readouterr().out == "A     B\nlong  x\ns     y\n"
