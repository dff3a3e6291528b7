"""Shell completion: the offered words for a line, and the behaviour of bash, zsh and fish."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.cli.main import guarded
from tests.unit.on_terminal import ROOT, OnTerminal

INVENTORY = """
cluster: c
playbook: gpt-oss-120b
nodes:
  - {host: 10.0.0.1, name: alpha-1}
  - {host: 10.0.0.2, name: alpha-2}
  - {host: "fe80::1:2"}
groups: [{name: west, nodes: [alpha-1]}, {name: east, nodes: [alpha-2]}]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an inventory under two names."""
    for name in ("mine.yaml", "my other.yml"):
        (tmp_path / name).write_text(INVENTORY)
    (tmp_path / "home.yaml").write_text("models:\n- playbook: gpt-oss-120b\n- {playbook: ./x.yaml, name: embed}\n")
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def offered(line: str, *options: str) -> list[str]:
    """The completions for a shell; the program prints nothing else, and exits with code 0."""
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    asked |= {"_ARGCOMPLETE_SUPPRESS_SPACE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": "offered"}
    Path("offered").write_text("")
    done = subprocess.run(
        [sys.executable, *options, "-m", "sparkcluster"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **asked}, capture_output=True, text=True, timeout=10, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert options or not done.stderr
    Path("modules").write_text(done.stderr)
    return Path("offered").read_text().splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sparkcluster st", ["status", "stage"]),
        ("cd . && A=1 sparkcluster status mi", ["mine.yaml"]),
        ("sparkcluster status mine.yaml --js", ["--json"]),
        ("sparkcluster ask --max-tokens 3 mine.yaml --group ", ["west", "east"]),
        ("sparkcluster upgrade mine.yaml --order west,e", ["west,east"]),
        ("sparkcluster logs mine.yaml -f alpha", ["alpha-1", "alpha-2"]),
        ("sparkcluster logs -n 3 'my other.yml' fe", ["fe80::1:2"]),
        ("sparkcluster up mine.yaml --playbook gpt-oss-120b-sg", ["gpt-oss-120b-sglang", "gpt-oss-120b-sglang-two"]),
        ("sparkcluster checks net-00", [f"net-00{number}" for number in (1, 2, 3, 4, 5, 6, 9)]),
        ("sparkcluster setup mine.yaml --only gr", []),
        ("sparkcluster connect mine.yaml --client open", ["open-webui", "openai"]),
        ("sparkcluster import no", ["notes.txt"]),
        ("sparkcluster lab fault 1 rebo", ["reboot"]),
        ("sparkcluster no-command ", []),
        ("sparkcluster logs mi", ["mine.yaml"]),
        ("sparkcluster status home.yaml --model ", ["gpt-oss-120b", "embed"]),
    ],
)
def test_completions(line: str, expected: list[str], home: Path) -> None:
    assert offered(line) == expected


def test_the_inventory_may_be_omitted(home: Path) -> None:
    assert offered("sparkcluster logs al") == []
    (home / "mine.yaml").rename(home / "sparkcluster.yaml")
    assert offered("sparkcluster logs al") == ["alpha-1", "alpha-2"]


HOSTILE = 'nodes: [{host: "$(touch /tmp/x)"}, {host: "a b"}, {host: "a\\e[2Jb"}, {host: "-x"}, {host: "~"}, {host: "*"}, {host: "=ls"}, {name: n, host: "a\\vb"}, {host: fine}]'  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (HOSTILE, ["n", "fine"]),
        ("nodes: [" * 5000, []),
        ("a: &a [*a, *a]\nnodes: *a", []),
        ("\x00\xff", []),
        (None, []),
    ],
)
def test_an_inventory_of_any_kind_causes_no_error_and_completes_no_shell_code(
    content: str | None, expected: list[str], home: Path
) -> None:
    if content is not None:
        (home / "bad.yaml").write_text(content)
    assert offered("sparkcluster setup bad.yaml --node ") == expected


def test_only_small_regular_files_are_read(home: Path) -> None:
    os.mkfifo(home / "pipe.yaml")
    (home / "zero.yaml").symlink_to("/dev/zero")
    (home / "large.yaml").write_text(INVENTORY + "#" * (64 << 10))
    for name in ("pipe.yaml", "zero.yaml", "large.yaml"):
        assert offered(f"sparkcluster logs {name} ") == []


def test_completion_imports_neither_models_nor_connections(home: Path) -> None:
    for line in ("setup mine.yaml --node ", "lab fault 1 re", "setup mine.yaml --only "):
        assert offered(f"sparkcluster {line}", "-v")
        imported = {
            line.split()[1].strip("'") for line in Path("modules").read_text().splitlines() if line[:7] == "import "
        }
        assert not imported & {"fabric", "paramiko", "pydantic", "rich", "socket"}


# Prints its arguments, unless it is called for completion.
PROGRAM = f"""#!/bin/sh
if [ -n "$_ARGCOMPLETE" ]; then exec {shlex.quote(sys.executable)} -m sparkcluster "$@"; fi
printf 'got:'; printf '<%s>' "$@"; echo .
"""
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {}"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u -D && source {}"),
    "zsh from $fpath": (["zsh", "-f", "-i"], "fpath=(~ $fpath) && cp {} ~/_sparkcluster && autoload -Uz compinit && compinit -u -D"),
    "fish": (["fish", "--no-config", "-i"], "source {}"),
}  # fmt: skip
TYPED = [
    ("A=1 sparkcluster status mi\t", "<status><mine.yaml>"),
    ("bin/sparkcluster logs ./mi\tal\t2", "<logs><./mine.yaml><alpha-2>"),
    ("sparkcluster logs 'my other.yml' fe80::\t", "<logs><my other.yml><fe80::1:2>"),
    ("sparkcluster setup mine.yaml --node=fe80:\t", "<setup><mine.yaml><--node=fe80::1:2>"),
    ("sparkcluster preflight mine.yaml --ig\tnet-00\t6", "<preflight><mine.yaml><--ignore><net-006>"),
]
TILDE = ("sparkcluster logs ~/mi\tal\t2", "<logs><{home}/mine.yaml><alpha-2>")


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_in_a_real_shell(
    shell: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, load = SHELLS[shell]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    (home / "bin").mkdir()
    (home / "bin" / "sparkcluster").write_text(PROGRAM)
    (home / "bin" / "sparkcluster").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home / "xdg"))
    assert guarded(["completion", argv[0]]) == 0
    (home / "script").write_text(capsys.readouterr().out)
    with OnTerminal("import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])", *argv) as terminal:
        terminal.type(f"{load.format('~/script')} && sparkcluster loaded\n")
        terminal.until("got:<loaded>.")
        for keys, argv_seen in TYPED:
            terminal.type(f"{keys}\n")
            terminal.until(f"got:{argv_seen.format(home=home)}.")


def test_the_bash_script_has_no_zsh_header(capsys):
    for shell, has in (("bash", False), ("zsh", True)):
        assert guarded(["completion", shell]) == 0
        assert ("#compdef" in capsys.readouterr().out) == has
