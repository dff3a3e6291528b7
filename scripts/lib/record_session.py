"""Writes docs/pictures/session.svg: the final screen of a session on two virtual Sparks."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import yaml
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from sparkcluster.lab import Lab, builds

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/pictures/session.svg"
COLUMNS = 88
SPARKS = "sparks: [{name: spark-1, ports: p1}, {name: spark-2, ports: p1}]\n"
SESSION = {
    "sparkcluster up mine.yaml": 0,
    "sparkcluster status mine.yaml": 0,
    "sparkcluster upgrade mine.yaml --image sparkcluster-lab/stub:broken": 4,
}
"""Command lines and their exit codes."""
CONTROL = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def typed(line: str, home: Path, expected: int = 0) -> str:
    """The output of ``line`` on a terminal, with control sequences; prompts are answered with yes."""
    process, terminal = pty.fork()
    if not process:
        os.chdir(home)
        os.environ |= {"HOME": str(home), "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        os.execv(sys.executable, [sys.executable, "-m", *shlex.split(line)])
    written = b""
    with contextlib.suppress(OSError):  # the program has ended
        while part := os.read(terminal, 65536):
            written += part
            if written.endswith(b"[y/N] "):
                os.write(terminal, b"y\n")
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code != expected:
        raise SystemExit(f"{line}: exit code {code}\n{written.decode()}")
    return written.decode()


def shown(written: str) -> list[str]:
    """The lines that the terminal shows at the end, with their colours."""
    lines, row = [""], 0
    for numbers, letter, control, text in CONTROL.findall(written):
        if control == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif letter == "A":
            row = max(0, row - int(numbers or 1))
        elif control == "\r" or letter == "K":
            lines[row] = "" if letter == "K" else lines[row]
        elif letter == "m":
            lines[row] += f"\x1b[{numbers}m"
        elif text:
            lines[row] += text
    return [line for line in lines if Text.from_ansi(line).plain.strip()]


def session(home: Path) -> list[str]:
    """The commands and their output, on a separate lab that is removed afterwards."""
    spec = home / "spec.yaml"
    spec.write_text(SPARKS)
    with Lab.up(spec=spec, engine="stub", name="session") as lab:
        builds.to_try(lab)
        inventory = yaml.safe_load(lab.inventory.read_text()) | {"cluster": "pair", "playbook": "tiny"}
        (home / "mine.yaml").write_text(yaml.safe_dump(inventory, sort_keys=False))
        (home / "playbooks").mkdir()
        shutil.copy(lab.playbook, home / "playbooks/tiny.yaml")
        typed("sparkcluster stage mine.yaml", home)  # answers the questions, which are asked only once
        lines = []
        for line, expected in SESSION.items():
            lines += [f"\x1b[1m$ {line}\x1b[0m", *shown(typed(line, home, expected)), ""]
        return lines[:-1]


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        lines = session(Path(home))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    svg = console.export_svg(title="two virtual Sparks", theme=DIMMED_MONOKAI, unique_id="session")
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
