"""Hostile nodes, logs, records and files cannot control the operator's terminal."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import json
import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparkcluster
from sparkcluster.answers import checked, malformed
from sparkcluster.cli import common, output, progress
from sparkcluster.cli import down as cli_down
from sparkcluster.cli import logs as cli_logs
from sparkcluster.cli.main import guarded
from sparkcluster.errors import CommandFailed, LaunchError, Reason
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import bundle
from sparkcluster.report import Transfer
from sparkcluster.runtime import failed_logs
from sparkcluster.runtime.watching import Watching

# OSC 52 sets the clipboard; CSI in 8 bits; a title; DCS; the rest is invisible or changes the text direction.
ATTACK = "\x1b]52;c;ZXZpbA==\x07\x9b2J\x1b]0;t\x1b\\\x1bP\x90\x1b[2J\x1b[8m\x08\r\x7f\u202e\u2066\u200f\u200b\ufeff\u2028\u061c\U000e0041\u3164\u115f\u034f\U000e0101"
OURS = re.compile(r"\x1b\[(?:[012]?(?:(?:^|;|(?<=\[))3[1-7])?m|\d*[A-GK]|\?25[lh])|[\r\n\t]")


def hidden(text: str) -> set[str]:
    """Invisible characters of ``text``, except line ends and our own colours and cursor movements."""
    rest = OURS.sub("", text)
    return {char for char in rest if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A pseudo-terminal as stdout and stderr; after the block the list has everything that reached its master."""
    master, slave = os.openpty()
    read = bytearray()

    def drain() -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(master, 65536):
                read.extend(chunk)

    reader = threading.Thread(target=drain)
    reader.start()
    shown: list[str] = []
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with (
        open(slave, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as stream,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        assert stream.isatty()
        yield shown
        stream.flush()
    os.close(slave)
    reader.join(10)
    os.close(master)
    shown.append(read.decode(errors="surrogateescape"))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every text in a document, including keys of dictionaries; of lists the first entries."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value[:2]):
            yield from leaves(item, (*path, at))
    elif isinstance(value, str):
        yield path


def attacked(document: Any, path: tuple[Any, ...]) -> Any:
    """``document`` with the attack in the text at ``path``."""
    changed = copy.deepcopy(document)
    holder = changed
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = f"{holder[path[-1]]}{ATTACK}"
    return changed


@pytest.fixture
def serving(world):
    """A cluster of two that serves release 3, queried through fake hosts."""
    one = world()
    plan = one.plan(3)
    return one.run(plan).record(plan, 3)


@pytest.fixture
def commands(serving, monkeypatch, tmp_path):
    """``commands(answers, *argv)``: output on the terminal when both nodes gave these answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    serving.spec.inventory_path.touch()

    def run(answers: dict[str, Any], *argv: str) -> str:
        hosts = {}
        for name, facts in serving.facts.items():
            hosts[name] = FakeHost(name).program("probe", facts.model_dump(mode="json"))
            for program, answer in answers.items():
                hosts[name].program(program, answer)
        for module in (common, cli_down):
            monkeypatch.setattr(module, "fleet_of", lambda *_: Fleet(hosts))
        for module in (common, cli_logs):
            monkeypatch.setattr(module, "load_spec", lambda _: serving.spec)
        with terminal(monkeypatch) as shown:
            guarded([argv[0], "inventory.yaml", *argv[1:]])
        assert "internal error" not in shown[0] or ATTACK not in shown[0]
        return shown[0]

    return run


LOG = [{"rank": "r", "lines": [ATTACK, f"\x1b[31m{ATTACK}"]}, *({"tick": tick, "states": {}} for tick in (1, 2, 3))]
ANSWER = [
    {"reasoning": ATTACK},
    {"text": f"a{ATTACK}"},
    {"done": {"content": ATTACK, "finish_reason": ATTACK, "usage": None, "ttft_s": 0.1, "total_s": 0.2}},
]
OBSERVED = {"ranks": [], "gpus": {"unread": ATTACK}}


@pytest.mark.parametrize(
    "argv",
    [
        ("logs",), ("logs", "--json-lines"), ("ask", "hello"), ("ask", "hello", "--json"), ("status",),
        ("doctor", "-v"), ("up",), ("down",), ("plan",),
    ],
)  # fmt: skip
def test_text_from_nodes_cannot_control_the_terminal(commands, argv) -> None:
    error = {"kind": ATTACK, "message": ATTACK}
    refused = [
        {"failed": ATTACK, "refused": ATTACK, "error": error, "held": {"operator": ATTACK, "epoch": 1, "held": True}}
    ]
    answers = {"watch": LOG, "ask": ANSWER, "observe": OBSERVED, "lease": refused, "agent": refused}
    shown = commands({**answers, "records": {"records": []}}, *argv)
    assert shown.strip()
    assert not hidden(shown), ascii(shown)


def test_the_last_output_of_a_failing_program(commands, monkeypatch) -> None:
    failed = Result(1, b"", f"{ATTACK} why".encode(errors="surrogatepass"))
    monkeypatch.setattr(FakeHost, "run", lambda *_, **__: failed)
    for command in ("status", "preflight", "logs"):
        shown = commands({}, command)
        assert "why" in shown
        assert not hidden(shown), ascii(shown)


def test_every_text_of_a_probe_is_escaped(commands, serving) -> None:
    """Three at a time at distant places, through a command with much or all output."""
    document = next(iter(serving.facts.values())).model_dump(mode="json")
    paths = list({re.sub(r"\d+", "0", str(path)): path for path in leaves(document)}.values())
    runs = len(paths) // 3 + 1
    argvs = [("preflight", "-v"), ("status",), ("plan",), ("preflight", "--json"), ("releases",), ("doctor", "-v")]
    for place in range(runs):
        changed = functools.reduce(attacked, paths[place::runs], document)
        shown = commands({"probe": changed}, *argvs[place % len(argvs)])
        assert not hidden(shown), (paths[place::runs], ascii(shown))


def test_files_with_hidden_characters(monkeypatch, tmp_path) -> None:
    """Broken YAML, file names, and arguments are quoted in errors."""
    file = tmp_path / f"inv{ATTACK.replace('/', '')}.yaml"
    file.write_text(f"cluster: a # {ATTACK}\n")
    recipe = tmp_path / "recipe.sh"
    recipe.write_text(f"vllm serve org/m {ATTACK.replace(chr(13), '')}\n")
    for argv in (
        ["lint", str(file)], ["status", str(file)], ["import", str(recipe)], ["import", str(recipe), "--json"],
        ["lint", f"{file}x"], [ATTACK], ["status", ATTACK], ["status", f"--{ATTACK}"], ["checks", ATTACK],
    ):  # fmt: skip
        with terminal(monkeypatch) as shown:
            assert guarded(argv) == 2
        assert not hidden(shown[0]), (argv, ascii(shown[0]))


def test_colours_of_a_log_are_rewritten(monkeypatch) -> None:
    """A log may only set the colour of its words: no background, nothing hidden, and it ends with the line."""
    with terminal(monkeypatch) as shown:
        output.data(
            "node | ",
            *output.log_colours("\x1b[0;36m(APIServer)\x1b[0m INFO \x1b[8mgone\x1b[0m \x1b[30;40mblack\x1b[1;31mred"),
        )
    assert shown[0] == "node | \x1b[0;36m(APIServer)\x1b[0m INFO gone black\x1b[1;31mred\x1b[0m\r\n"


def test_json_is_equal_with_hidden_characters_escaped(monkeypatch) -> None:
    document = {ATTACK: [ATTACK, "é 日本 😀 \u200c\ud800"]}
    with terminal(monkeypatch) as shown:
        output.emit_json(document)
        output.emit_json(document, line=True)
    assert not hidden(shown[0])
    whole, line = shown[0].rsplit("\n", 2)[:2]
    assert json.loads(whole) == json.loads(line) == document
    assert "é 日本 😀" in line


def test_progress_cannot_control_the_terminal(monkeypatch) -> None:
    with terminal(monkeypatch) as shown:
        assert isinstance(progress.reporter(as_json=False, json_lines=False), progress.Screen)
        for chosen in ({}, {"as_json": True}, {"json_lines": True}):
            with progress.reporter(**{"as_json": False, "json_lines": False, **chosen}) as report:
                report.step(ATTACK)
                report.step("launch", f"[bold]{ATTACK}")
                report.note(f"warning: [red]{ATTACK}")
                report.progress(f"node{ATTACK}", ATTACK)
                report.log(f"node{ATTACK}", f"drawn{ATTACK}")
                report.transfer(Transfer(f"node{ATTACK}", "weights", 1, 2, f"other{ATTACK}"))
                report.transfer(Transfer(f"third{ATTACK}", f"image{ATTACK}", 1, 2, state=f"skipped{ATTACK}"))
    assert not hidden(shown[0]), ascii(shown[0])
    assert "[red]" in shown[0]  # no markup
    assert "drawn" in shown[0]


def test_an_answer_of_a_node_cannot_add_a_line(monkeypatch) -> None:
    forged = "x\nhint: touch /tmp/taken\u2028next: touch /tmp/taken"
    with terminal(monkeypatch) as shown:
        output.show_error(malformed("alpha", "lease", forged))
        with pytest.raises(CommandFailed) as caught:
            checked(dict[str, int], {forged: "x"}, node="alpha", step="agent")
        output.show_error(caught.value)
    assert not [line for line in shown[0].splitlines() if line.strip().startswith(("hint: touch", "next: "))]


def test_files_written_by_commands_have_no_hidden_characters(tmp_path) -> None:
    error = LaunchError(ATTACK, hint=ATTACK)
    error.logs, error.reason = {"alpha": [ATTACK, f"\x1b[31m{ATTACK}"]}, Reason("alpha", ATTACK, 1)
    failed_logs.keep(tmp_path / "failed", [error])
    kept = (tmp_path / "failed" / "alpha.log").read_text()
    for text in (kept, bundle.Scrubber([]).text(ATTACK)):
        assert not hidden(text), ascii(text)
        assert "52;c;" in text
        assert "\x1b" not in text


def test_a_node_that_floods_events_is_throttled() -> None:
    """They are read by one thread, and each has a megabyte."""
    flood = FakeHost("alpha").program("watch", [{"rank": "r", "lines": ["x"]}] * 5000)
    with Watching(Fleet({"alpha": flood}), {"alpha": {"follow": True}}) as watching:
        time.sleep(0.3)
        assert watching._events.qsize() <= 64
        seen = [watching.next(5) for _ in range(5000)]
        assert all(event.report.lines for event in seen)


def writers(module: Path) -> Iterator[str]:
    """Every expression in a module that writes to stdout or stderr."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "print" or re.fullmatch(
                r".*(?:stream|console|std\w+|buffer)\.(?:write|writelines|print)", called
            ):
                yield ast.unparse(node)


def test_all_output_is_written_by_one_function() -> None:
    """Except programs for nodes and the lab's own builds: static texts without imports, and the live display."""
    package = Path(sparkcluster.__file__).parent
    rooms = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in {"node", "lab"}]
    found = [f"{path.relative_to(package)}: {call}" for path in sorted(rooms) for call in writers(path)]
    assert sorted(call for call in found if not call.startswith("hosts/known_hosts.py: ")) == [
        "cli/main.py: sys.stderr.write(help_of('') or '')",
        "cli/main.py: sys.stdout.write(f'sparkcluster {__version__}\\n')",
        "cli/main.py: sys.stdout.write(text)",
        "cli/output.py: console.print(rich_table(names, rows))",
        "cli/output.py: stream.write(''.join([begin, *shown, end]))",
        "cli/progress.py: self._console.print(Text.assemble(*map(rich_text, parts)), soft_wrap=True)",
    ]
