"""Tab: what ``__complete`` offers for a line, and what bash, zsh and fish make of it when somebody types."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.cli import complete
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
    """The directory where somebody types, with an inventory under two names."""
    for name in ("mine.yaml", "my other.yml"):
        (tmp_path / name).write_text(INVENTORY)
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def offered(line: str) -> tuple[str, list[str]]:
    added, values = complete.candidates(line)
    return added, list(values)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sparkcluster st", ("none", ["status", "stage"])),
        ("sparkcluster status mine.yaml --js", ("none", ["--json"])),
        ("sparkcluster status --json mine.yaml --js", ("none", [])),
        ("sparkcluster ask --max-tokens 3 mine.yaml --group ", ("none", ["west", "east"])),
        ("sparkcluster upgrade mine.yaml --order west,e", ("none", ["west,east"])),
        ("sparkcluster logs mine.yaml alpha", ("none", ["alpha-1", "alpha-2"])),
        ("sparkcluster logs -n 3 'my other.yml' fe", ("none", ["fe80::1:2"])),
        ("sparkcluster up mine.yaml --playbook gpt-oss-1", ("yaml", ["gpt-oss-120b"])),
        ("sparkcluster import ", ("files", [])),
        ("sparkcluster lab fault 1 rebo", ("none", ["reboot"])),
    ],
)
def test_what_may_follow(line: str, expected: tuple[str, list[str]], home: Path) -> None:
    assert offered(line) == expected


def test_inventory_may_be_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered("sparkcluster logs al") == ("yaml", [])
    (home / "mine.yaml").rename(home / "sparkcluster.yaml")
    assert offered("sparkcluster logs al") == ("yaml", ["alpha-1", "alpha-2"])
    monkeypatch.setenv("SPARKCLUSTER_INVENTORY", str(home / "my other.yml"))
    (home / "sparkcluster.yaml").unlink()
    assert offered("sparkcluster logs -f al") == ("yaml", ["alpha-1", "alpha-2"])


@pytest.mark.parametrize(
    "content",
    [
        'nodes: [{host: "$(touch /tmp/x)"}, {host: "a b"}, {host: "a\\e[2Jb"}, {host: "-`id`"}, {host: fine}]',
        "nodes: [" * 5000,
        "a: &a [*a, *a]\nnodes: *a",
        "\x00\xff",
        None,
    ],
)
def test_an_inventory_of_whatever_kind_is_no_error_and_nothing_that_a_shell_would_run(
    content: str | None, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (home / "bad.yaml").write_text(content)
    assert guarded(["__complete", "sparkcluster up bad.yaml --trust "]) == 0
    out, err = capfd.readouterr()
    assert out in {"none\n", "none\nfine\t\n"}
    assert not err


def test_tab_imports_neither_models_nor_connections(home: Path) -> None:
    flags = ["up mine.yaml --trust", "up mine.yaml --playbook", "preflight mine.yaml --ignore"]
    code = (
        "import sys\nfrom sparkcluster.cli.main import guarded\n"
        "for flag in sys.argv[1:]: guarded(['__complete', f'sparkcluster {flag} '])\n"
        "print(*sorted({'fabric','paramiko','pydantic','rich','socket'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, *flags]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 9
    assert done.stdout.splitlines()[-1] == ""


# Shows what it is called with, where it is not asked to complete.
PROGRAM = f"""#!/bin/sh
if [ "$1" = __complete ]; then exec {shlex.quote(sys.executable)} -m sparkcluster "$@"; fi
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
    ("cd . && sparkcluster status my\t", "<status><my other.yml>"),
    ("~/bin/sparkcluster logs ~/mi\tal\t2", "<logs><{home}/mine.yaml><alpha-2>"),
    ("sparkcluster logs 'my other.yml' fe80::\t", "<logs><my other.yml><fe80::1:2>"),
    ("sparkcluster up mine.yaml --trust=fe80:\t", "<up><mine.yaml><--trust=fe80::1:2>"),
    ("sparkcluster preflight mine.yaml --ig\tnet-00\t6", "<preflight><mine.yaml><--ignore><net-006>"),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_typed_in_a_real_shell(shell: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv, load = SHELLS[shell]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    (home / "bin").mkdir()
    (home / "bin" / "sparkcluster").write_text(PROGRAM)
    (home / "bin" / "sparkcluster").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home / "xdg"))
    script = ROOT / "sparkcluster" / "cli" / "shell" / f"completion.{argv[0]}"
    with OnTerminal("import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])", *argv) as terminal:
        terminal.type(f"{load.format(shlex.quote(str(script)))} && sparkcluster loaded\n")
        terminal.until("got:<loaded>.")
        for keys, argv_seen in TYPED:
            terminal.type(f"{keys}\n")
            terminal.until(f"got:{argv_seen.format(home=home)}.")
