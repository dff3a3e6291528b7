"""The imports of a command determine its start-up time; counted here, timed by scripts/bench-*."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

INVENTORY = """
cluster: c
playbook: gpt-oss-120b
nodes: [{host: 127.0.0.1, connection: ssh, ssh: {port: 1, user: root}}]
"""

# Not in any command that only reads: terminal drawing, other connections, test tools.
NEVER = {"asyncio", "concurrent", "fabric", "http", "huggingface_hub", "invoke", "rich", "unittest"}

RUN = """
import json, sys
from sparkcluster.hosts import fleet
from sparkcluster.cli.main import guarded
first = []
class Calls(fleet.Calls):
    def __init__(self, function, arguments):
        if "sparkcluster.hosts.ssh" in sys.modules and not first:
            first.append(sorted(sys.modules))
        super().__init__(function, arguments)
fleet.Calls = Calls
code = guarded(sys.argv[1:])
sys.stdout.write("\\n" + json.dumps({"code": code, "all": sorted(sys.modules), "first": first}))
"""


def imported(*argv: str) -> dict[str, list[str]]:
    """Modules imported by a command: ``all``, and ``first`` those before the first node was contacted."""
    done = subprocess.run([sys.executable, "-c", RUN, *argv], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout.splitlines()[-1])
    return {"all": document["all"], "first": document["first"][0] if document["first"] else []}


def ours(modules: list[str]) -> list[str]:
    return [name for name in modules if name.startswith("sparkcluster.")]


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return str(path)


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["up", "--help"]])
def test_help_and_version_import_almost_nothing(argv: list[str]) -> None:
    modules = imported_plainly(argv)
    assert ours(modules) == [
        "sparkcluster.cli",
        "sparkcluster.cli.commands",
        "sparkcluster.cli.interrupt",
        "sparkcluster.cli.main",
        "sparkcluster.exit_codes",
    ]
    assert not {
        "argparse",
        "dataclasses",
        "json",
        "paramiko",
        "pathlib",
        "pydantic",
        "re",
        "threading",
        "typing",
        "yaml",
    } & set(modules)


def test_help_of_a_command_imports_neither_dataclasses_nor_models() -> None:
    code = (
        "import sys\nfrom sparkcluster.cli.commands import COMMANDS\nfrom sparkcluster.cli.parser import parser_of\n"
        "for name in COMMANDS: parser_of(name)[0].format_help()\n"
        "print(*sorted({'dataclasses', 'pydantic', 'rich', 'socket', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def imported_plainly(argv: list[str]) -> list[str]:
    code = (
        "import sys\nfrom sparkcluster.cli.main import guarded\nguarded(sys.argv[1:])\nsys.stdout.write('\\n')\n"
        "sys.stdout.write(' '.join(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("command", "before_contact", "in_all"), [("status", 105, 105), ("preflight", 61, 171), ("up", 62, 219)]
)
def test_commands_import_few_modules_and_fewer_before_they_contact_a_node(
    inventory: str, command: str, before_contact: int, in_all: int
) -> None:
    """Nodes take longer to answer than the other imports: these happen in the meantime."""
    modules = imported(command, inventory)
    assert not NEVER & {name.partition(".")[0] for name in modules["all"]}
    assert len(ours(modules["first"])) <= before_contact, ours(modules["first"])
    assert len(ours(modules["all"])) <= in_all, ours(modules["all"])
