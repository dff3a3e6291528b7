"""Mistakes of a first day, on a terminal of 80 columns: the cause first, then the command to type.

tests/lab/test_journey.py has the mistakes that involve nodes.
"""

from __future__ import annotations

import dataclasses
import io
import shlex
import sys
from pathlib import Path

import pytest

from sparkcluster.cli.main import guarded
from sparkcluster.printable import COLOURS
from sparkcluster.spec import consent, powers
from tests.unit.screen import Terminal, broken, shown

NODES = """\
nodes:
  - {host: 127.0.0.1, name: spark-1, ssh: {port: 1}}
  - {host: 127.0.0.2, name: spark-2, ssh: {port: 1}}
"""
FILES = {
    "mine.yaml": f"cluster: pair\n{NODES}playbook: gpt-oss-120b\n",
    "key.yaml": f"cluster: pair\n{NODES}playbook: gpt-oss-120b\napi: {{key: {{env: SPARK_API_KEY}}}}\n",
    "play.yaml": "name: play\nmodel: {id: Qwen/Qwen3-8B}\nimage: vllm/vllm-openai:v0.18.0\n",
    "slip.yaml": "cluster: pair\nnodes:\n  - host:127.0.0.1\nplaybook: gpt-oss-120b\n",
    "tab.yaml": "cluster: pair\nnodes:\n\t- host: 127.0.0.1\nplaybook: gpt-oss-120b\n",
    "rails.yaml": f"cluster: pair\n{NODES}playbook: gpt-oss-120b\ninterconnect: {{rails: [192.168.177.11]}}\n",
    "misspelt.yaml": f"cluster: pair\n{NODES}playbook: gpt-os-120b\n",
    "public.yaml": f"cluster: pair\nssh: {{identity: ~/id_ed25519.pub}}\n{NODES}playbook: gpt-oss-120b\n",
    "id_ed25519.pub": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA ann@desk\n",
    "id_ed25519": "of the test\n",
}


@dataclasses.dataclass(frozen=True)
class Mistake:
    """The typed command, the exit code, the error, and the beginning of the next line.

    ``pasted`` is the exit code of the command in the hint, if that contacts no node.
    """

    line: str
    code: int
    cause: str
    hint: str
    pasted: int | None = None


MISTAKES = [
    Mistake("start mine.yaml", 2, "unknown command: start", "sparkcluster up mine.yaml"),
    Mistake("mine.yaml", 2, "unknown command: mine.yaml", "the command comes first: sparkcluster status mine.yaml"),
    Mistake("up mine.yaml --dryrun", 2, "unknown flag of sparkcluster up: --dryrun", "did you mean --dry-run?"),
    Mistake("up", 2, "INVENTORY is missing", "give its path, set SPARKCLUSTER_INVENTORY, or type: sparkcluster discover"),
    Mistake("up mien.yaml", 2, "mien.yaml: no such file", "did you mean mine.yaml?"),
    Mistake("up play.yaml", 2, "play.yaml is a playbook, not an inventory", "give an inventory, and --playbook play.yaml"),
    Mistake("lint slip.yaml", 2, 'slip.yaml:3:5: nodes[0]: "host:127.0.0.1" is not a mapping', "write its keys as 'key: value'"),
    Mistake("lint tab.yaml", 2, "tab.yaml:3:1: not valid YAML: ", "on this line and above, indent with spaces"),
    Mistake("lint rails.yaml", 2, 'rails.yaml:6:24: interconnect.rails[0]: "192.168.177.11" is not a subnet', "write it as 192.168.177.0/24"),
    Mistake("up misspelt.yaml", 2, 'misspelt.yaml:5:11: playbook: no playbook named "gpt-os-120b"', "did you mean gpt-oss"),
    Mistake(
        "up mine.yaml --playbook openai/gpt-oss-20b",
        2,
        "mine.yaml:2:1: nodes: playbook gpt-oss-20b is for 1 Spark, but the inventory lists 2",
        "list only 1 node, or for replicas write groups: [{name: r1, nodes: [spark-1]}, {name: r2, nodes: [spark-2]}]; other",
    ),
    Mistake("lint", 2, "FILE is missing", "give its path"),
    Mistake("lab fault", 2, "NODE is missing", "sparkcluster lab fault --help"),
    Mistake("fit inventory/two.yaml", 2, "no file inventory/two.yaml", "give a path relative to the current directory"),
    Mistake("logs mine.yaml spark-9", 2, "spark-9 is not a node of mine.yaml", "did you mean spark-2?"),
    Mistake("logs mine.yaml --since yesterday", 2, "--since: must be like 10m or", "sparkcluster logs --help", 0),
    Mistake("logs mine.yaml --failed", 1, "no log of a failed launch of pair is kept on this machine hint:", "sparkcluster doctor mine.yaml", 1),
    Mistake("setup mine.yaml --with foo", 2, "unknown step 'foo'", "one of headless, hold"),
    Mistake("stage mine.yaml foo", 2, "unexpected argument: foo", "one of weights, image"),
    Mistake("up mine.yaml --set modle.id=x", 2, "--set modle.id: modle: unknown key", "did you mean model?"),
    Mistake("discover -o mine.yaml", 2, "mine.yaml already exists", "add --yes to overwrite it, or add the Sparks to it"),
    Mistake("fit mine.yaml gpt-oss-120b", 2, "mine.yaml is an inventory, not a playbook", "give a playbook; sparkcluster playbooks lists them"),
    Mistake("fit gpt-oss-120b --context 4k", 2, "--context: must be a whole number, 1 or more", "sparkcluster fit --help", 0),
    Mistake("connect key.yaml --show-key", 2, "SPARK_API_KEY is not set, but", "export SPARK_API_KEY=VALUE"),
    Mistake("ask mine.yaml Hello", 1, "spark-1: 127.0.0.1 port 1: connection refused", "on the node: sudo systemctl"),
    Mistake("ask public.yaml Hello", 2, "spark-1: identity /", "use the private key:"),
]  # fmt: skip


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``typed(line)``: exit code of a command line, and the final lines on the terminal."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "id_ed25519").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    for name in ("SPARKCLUSTER_INVENTORY", "SPARK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    consent.remember([powers.Power("identity", "~/id_ed25519.pub").digest])
    monkeypatch.setattr(sys, "argv", ["sparkcluster"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(line: str) -> tuple[int, list[str]]:
        stream = Terminal()
        with monkeypatch.context() as streams:
            streams.setattr(sys, "stdout", stream)
            streams.setattr(sys, "stderr", stream)
            try:
                code = guarded(shlex.split(line))
            except SystemExit as end:  # --help
                code = int(end.code or 0)
        return code, [COLOURS.sub("", each) for each in shown(stream.getvalue())]

    return run


@pytest.mark.parametrize("mistake", MISTAKES, ids=[each.line for each in MISTAKES])
def test_the_cause_comes_first_and_then_the_command_to_type(typed, mistake):
    code, lines = typed(mistake.line)
    assert code == mistake.code, "\n".join(lines)
    text = " ".join(" ".join(lines).split())
    assert text.startswith(f"error: {mistake.cause}"), text
    assert broken(lines, 80) == []
    hints = [line.split("hint: ", 1)[1] for line in lines if line.lstrip().startswith("hint: ")]
    assert text.partition("hint: ")[2].startswith(mistake.hint), text
    if mistake.pasted is not None:
        pasted, after = typed(hints[0].removeprefix("sparkcluster "))
        assert pasted == mistake.pasted, "\n".join(after)


def test_the_groups_in_the_hint_are_valid(typed):
    _, lines = typed("up mine.yaml --playbook gpt-oss-20b")
    groups = " ".join(" ".join(lines).split()).partition("write ")[2].partition("; other")[0]
    Path("replicas.yaml").write_text(f"cluster: pair\n{NODES}playbook: gpt-oss-20b\n{groups}\n")
    assert typed("lint replicas.yaml")[0] == 0
