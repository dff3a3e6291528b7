"""What commands write: data to stdout, messages to stderr; plain in a pipe, coloured on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from sparkcluster.errors import SparkclusterError
    from sparkcluster.findings import Finding

_COLOURS = {"error": "1;31", "warning": "33", "info": "34", "hint": "36"}
_LOG_LINES = 20
_SHORT = 18


def emit_json(document: dict[str, Any], *, line: bool = False) -> None:
    """Write the one document of ``--json`` to stdout: indented for people, on one line in a pipe or as ``line``."""
    indent = 2 if sys.stdout.isatty() and not line else None
    say(json.dumps(document, indent=indent, ensure_ascii=False))


def say(line: str = "") -> None:
    """Write one line of data to stdout."""
    sys.stdout.write(line + "\n")


def note(line: str) -> None:
    """Write one message to stderr."""
    sys.stderr.write(clean(line) + "\n")


def clean(text: str) -> str:
    """``text`` without control characters, which logs of engines and nodes contain."""
    return "".join(char if char.isprintable() or char == "\t" else "�" for char in text)


def screened(text: str, stream: TextIO) -> str:
    """``text`` of engines and models for ``stream``: unchanged in a pipe, without control characters on a terminal.

    Line breaks stay, and so do colours if ``stream`` takes them.
    """
    if not stream.isatty():
        return text
    import re

    parts = re.split(r"(\x1b\[[0-9;]*m|\n)", text)
    colour = in_colour(stream)
    shown = [clean(part) if at % 2 == 0 else part if part == "\n" or colour else "" for at, part in enumerate(parts)]
    return "".join(shown)


def moves(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal on which lines can be overwritten."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def program() -> str:
    """What to type to run this program again: its name if PATH has it, else the path that was typed."""
    import shlex
    import shutil

    typed_path, found = sys.argv[0], shutil.which("sparkcluster")
    if os.path.basename(typed_path) != "sparkcluster":  # noqa: PTH119 - pathlib is slow to import
        return "sparkcluster"
    if found and os.path.exists(typed_path) and os.path.samefile(found, typed_path):  # noqa: PTH110, PTH121 - likewise
        return "sparkcluster"
    return shlex.quote(typed_path)


def typed(text: str) -> str:
    """``text`` with every `sparkcluster COMMAND` in it as it has to be typed here."""
    import re

    from sparkcluster.cli.main import COMMANDS

    name = program()
    if name == "sparkcluster" or "sparkcluster " not in text:
        return text
    return re.sub(rf"(?<![\w./-])sparkcluster (?=({'|'.join(COMMANDS)})\b)", lambda _: f"{name} ", text)


def in_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that takes colours (not with NO_COLOR or TERM=dumb)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def label(word: str, stream: TextIO) -> str:
    """``word:``, coloured by its meaning if ``stream`` takes colours."""
    return painted(f"{word}:", _COLOURS[word], stream) if word in _COLOURS else f"{word}:"


def painted(text: str, colour: str, stream: TextIO) -> str:
    """``text`` in an ANSI colour, or bold with ``1``, if ``stream`` takes colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if in_colour(stream) else text


def say_verdict(text: str, *, ok: bool) -> None:
    """Write the last line of a report to stdout, in green or red."""
    say(painted(text, "1;32" if ok else "1;31", sys.stdout))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> None:
    """Write a table to stdout: within ``width`` columns, or else fitted to a terminal and whole in a pipe.

    The widest columns are wrapped; names and dates stay on one line.
    """
    import itertools
    import shutil
    import textwrap

    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    lines = [[clean(cell).expandtabs(1) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    while width and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > _SHORT:
        widths[widths.index(max(widths))] -= 1
    for row in lines:
        wrapped = [textwrap.wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        for cells in itertools.zip_longest(*wrapped, fillvalue=""):
            line = "  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)).rstrip()
            say(painted(line, "1", sys.stdout) if row is lines[0] else line)
    # Notes below it go to stderr unbuffered: flush first, so that they neither precede it nor outlive a closed pipe.
    sys.stdout.flush()


def render_error(error: SparkclusterError) -> None:
    """Write an error to stderr: ``error: …``, its findings and log, and ``hint: …`` with what to type."""
    word = label("error", sys.stderr)
    problems = getattr(error, "problems", None)
    if problems is not None:
        for problem in problems:
            note_labelled(word, str(problem))
            if problem.hint:
                note_labelled(f"  {label('hint', sys.stderr)}", typed(problem.hint))
        return
    where = f"{error.node}: " if error.node and error.node not in error.message else ""
    during = f" (during {error.step})" if error.step and error.step not in error.message else ""
    first, *more = error.message.splitlines() or [""]
    note_labelled(word, f"{where}{first}{during}")
    for line in more:
        note(f"  {line}")
    for finding in getattr(error, "findings", ()):
        render_finding(finding)
    for line in getattr(error, "log", ())[-_LOG_LINES:]:
        note(f"  | {line}")
    remedies = [remedy for finding in getattr(error, "findings", ()) for remedy in finding.remedy]
    if error.hint and error.hint not in remedies:
        note_labelled(label("hint", sys.stderr), typed(error.hint))
    for other in error.others:
        render_error(other)


def render_finding(finding: Finding) -> None:
    """Write a finding to stderr: code, place, summary, what was seen, why it matters, what to type."""
    place = finding.place or (f"{finding.node}: " if finding.node else "")
    note_labelled(f"  {label(finding.severity, sys.stderr)}", f"{finding.code} {place}{finding.summary}")
    for word, text in finding.details():
        note_labelled(f"    {label(word, sys.stderr)}", typed(text))


def note_labelled(word: str, text: str) -> None:
    """Write one line to stderr after a label that may be coloured."""
    sys.stderr.write(f"{word} {clean(text)}\n")
