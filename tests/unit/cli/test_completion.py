"""Tab: what ``__complete`` offers for a line, and what bash, zsh and fish make of it when somebody types."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.cli import complete
from sparkcluster.cli.main import COMMANDS, guarded, module
from sparkcluster.cli.parser import Parser
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
        ("A=1 B= sparkcluster stat", ("none", ["status"])),
        ("sparkcluster help relea", ("none", ["releases"])),
        ("sparkcluster --ver", ("none", ["--version"])),
        ("sparkcluster nothing ", ("none", [])),
        ("sparkcluster status ", ("yaml", [])),
        ("sparkcluster status mine.yaml --js", ("none", ["--json"])),
        ("sparkcluster status --json mine.yaml --js", ("none", [])),
        ("sparkcluster preflight mine.yaml --ignore SSH-001 --ign", ("none", ["--ignore"])),
        ("sparkcluster ask mine.yaml -- --", ("none", [])),
        ("sparkcluster ask --max-tokens 3 mine.yaml --group ", ("none", ["west", "east"])),
        ("sparkcluster upgrade mine.yaml --order west,e", ("none", ["west,east"])),
        ("sparkcluster upgrade mine.yaml --order=w", ("none", ["west"])),
        ("sparkcluster logs mine.yaml alpha", ("none", ["alpha-1", "alpha-2"])),
        ("sparkcluster logs -n 3 'my other.yml' fe", ("none", ["fe80::1:2"])),
        ("sparkcluster logs ~/mine.yaml fe", ("none", ["fe80::1:2"])),
        ("sparkcluster setup mine.yaml --node alpha-1 --node alpha-2 --only head", ("none", ["headless"])),
        ("sparkcluster setup mine.yaml --node al", ("none", ["alpha-1", "alpha-2"])),
        ("sparkcluster up mine.yaml --playbook gpt-oss-1", ("yaml", ["gpt-oss-120b"])),
        ("sparkcluster up mine.yaml --playbook gpt-oss-20b+suf", ("yaml", ["gpt-oss-20b+suffix"])),
        ("sparkcluster playbooks gpt-oss-1", ("yaml", ["gpt-oss-120b"])),
        ("sparkcluster connect mine.yaml --client cl", ("none", ["claude-code", "cline"])),
        ("sparkcluster checks --explain net-006", ("none", ["net-006"])),
        ("sparkcluster import ", ("files", [])),
        ("sparkcluster lab up --engine st", ("none", ["stub"])),
        ("sparkcluster lab fault 1 rebo", ("none", ["reboot"])),
        ('sparkcluster logs "mine.yaml" "alpha-1', ("none", ["alpha-1"])),
    ],
)
def test_what_may_follow(line: str, expected: tuple[str, list[str]], home: Path) -> None:
    assert offered(line) == expected


def test_inventory_may_be_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered("sparkcluster logs al") == ("yaml", [])
    (home / "mine.yaml").rename(home / "sparkcluster.yaml")
    assert offered("sparkcluster logs al") == ("yaml", ["alpha-1", "alpha-2"])
    assert offered("sparkcluster up --trust al") == ("none", ["alpha-1", "alpha-2"])
    monkeypatch.setenv("SPARKCLUSTER_INVENTORY", str(home / "my other.yml"))
    (home / "sparkcluster.yaml").unlink()
    assert offered("sparkcluster logs -f al") == ("yaml", ["alpha-1", "alpha-2"])
    assert offered("sparkcluster stage we") == ("yaml", ["weights"])
    assert offered("sparkcluster stage weights --lim") == ("none", ["--limit-rate"])


def test_where_only_flags_may_follow_they_are_offered_without_a_dash(home: Path) -> None:
    assert "--json" in offered("sparkcluster status mine.yaml ")[1]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_completes_its_flags_with_their_help(command: str) -> None:
    _, values = complete.candidates(f"sparkcluster {command} --he")
    assert values == {"--help": "show this help message and exit"}


def test_every_row_of_the_table_is_of_an_argument() -> None:
    used: set[str] = set()

    def visit(command: str, parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            used.update({str(action.metavar), f"{command} {action.metavar}"})
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    visit(command, child)

    for command in COMMANDS:
        parser = Parser()
        importlib.import_module(module(command)).add_arguments(parser)
        visit(command, parser)
    assert set(complete.VALUES) <= used


@pytest.mark.parametrize(
    "content",
    [
        'nodes: [{host: "$(touch /tmp/x)"}, {host: "a b"}, {host: "a\\e[2Jb"}, {host: "-`id`"}, {host: fine}]',
        "nodes: {host: fine}",
        "nodes: [" * 5000,
        "a: &a [*a, *a]\nnodes: *a",
        "\x00\xff",
        "- fine",
        "nodes: [fine",
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


@pytest.mark.parametrize("words", [[], [""], ["'"], ["sparkcluster logs \\"], ["x" * 10_000]])
def test_a_line_of_whatever_kind_is_no_error(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert guarded(["__complete", *words]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "line",
    [
        "sparkcluster up mine.yaml --",
        "sparkcluster up mine.yaml --trust ",
        "sparkcluster up mine.yaml --playbook ",
        "sparkcluster preflight mine.yaml --ignore ",
        "sparkcluster connect mine.yaml --client ",
    ],
)
def test_tab_imports_neither_models_nor_connections(line: str, home: Path) -> None:
    code = (
        "import sys\nfrom sparkcluster.cli.main import guarded\nguarded(sys.argv[1:])\n"
        "print(*sorted({'fabric','paramiko','pydantic','rich','socket'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, "__complete", line]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 3
    assert done.stdout.splitlines()[-1] == ""


def test_script_and_its_json_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["completion", "fish"]) == 0
    script = capsys.readouterr().out
    assert guarded(["completion", "fish", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": "fish", "script": script}


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
    ("sparkcluster stat\t", "<status>"),
    ("A=1 sparkcluster status mi\t", "<status><mine.yaml>"),
    ("cd . && sparkcluster status my\t", "<status><my other.yml>"),
    ("~/bin/sparkcluster logs ~/mi\tal\t2", "<logs><{home}/mine.yaml><alpha-2>"),
    ("sparkcluster logs 'my other.yml' fe80::\t", "<logs><my other.yml><fe80::1:2>"),
    ("sparkcluster up mine.yaml --trust=fe80:\t", "<up><mine.yaml><--trust=fe80::1:2>"),
    ("sparkcluster up mine.yaml --playbook=gpt-oss-1\t", "<up><mine.yaml><--playbook=gpt-oss-120b>"),
    ("sparkcluster preflight mine.yaml --ig\tnet-00\t6", "<preflight><mine.yaml><--ignore><net-006>"),
    ("sparkcluster import n\t", "<import><notes.txt>"),
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
