"""What commands write: data to stdout, messages to stderr; plain in a pipe, coloured on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from sparkcluster.printable import as_json, clean

if TYPE_CHECKING:
    from sparkcluster.errors import SparkclusterError
    from sparkcluster.findings import Finding

_COLOURS = {"error": "1;31", "warning": "33", "info": "34", "hint": "36", "then": "36", "or": "36"}
_LOG_LINES = 20
_LONGEST = 300
_SHORT = 18
# A blank at which no line is folded; textwrap knows it.
_JOINED = "\N{NO-BREAK SPACE}"
_UNIT = r"(?<=\d) (?=(?:%|ms|s|min|h|B|[kMGT]i?B|Gb/s|tokens/s)(?![\w/]))"
"""Between a number and its unit."""

_PROGRAMS = (
    "sparkcluster|sudo|docker|ssh|ssh-(?:keygen|keyscan|copy-id)|export|unset|mkdir|ls|cp|mv|rm|cat|chmod|chown|curl|ping|"
    "rsync|ip|nmcli|netplan|systemctl|journalctl|loginctl|timedatectl|nvidia-smi|hf|uv|pip|apt-get|python3?|df|du|echo|"
    "lspci|getent|findmnt|lsblk|dmesg|ethtool|ibv_devinfo|ibdev2netdev|modprobe|sysctl|readlink|vllm"
)


class Painted(str):
    """Text that ``write`` shows in an ANSI ``colour``, or bold with ``1``, if the stream takes colours."""

    __slots__ = ("colour",)
    colour: str


def write(stream: TextIO, *parts: str, begin: str = "", end: str = "\n", keep: str = "\t") -> None:
    """Write ``parts`` to ``stream``: whatever a command prints goes through here.

    Hidden characters in them are replaced, except those in ``keep``; colours, ``begin`` and ``end`` are added later.
    What is for stdout and buffered goes out before a message to stderr, so that they keep their order in one file.
    """
    if stream is sys.stderr:
        sys.stdout.flush()
    colours = in_colour(stream)
    shown = [_shown(part, keep, colours=colours) for part in parts]
    stream.write("".join([begin, *shown, end]))


def _shown(part: str, keep: str, *, colours: bool) -> str:
    text = clean(part, keep)
    return f"\x1b[{part.colour}m{text}\x1b[0m" if colours and isinstance(part, Painted) else text


def emit_json(document: dict[str, Any], *, line: bool = False) -> None:
    """Write the one document of ``--json`` to stdout: indented for people, on one line in a pipe or as ``line``."""
    indent = 2 if sys.stdout.isatty() and not line else None
    write(sys.stdout, as_json(document, indent=indent), keep="\n")


def say(*parts: str) -> None:
    """Write one line of data to stdout."""
    write(sys.stdout, *parts)


def note(*parts: str) -> None:
    """Write one message to stderr."""
    write(sys.stderr, *parts)


def coloured(text: str) -> list[str]:
    """``text`` of an engine or model as parts for ``write``, in the ANSI colours that it has itself."""
    import re

    first, *more = re.split(r"\x1b\[([0-9;]*)m", text)
    known = re.compile(r"(?:0?[01];)?(?:3[1-7]|9[0-7])|0?1")  # not black, nor what hides text
    pairs = zip(more[::2], more[1::2], strict=True)
    return [first, *(painted(part, colour) if known.fullmatch(colour) else part for colour, part in pairs)]


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

    from sparkcluster.cli.commands import COMMANDS

    name = program()
    if name == "sparkcluster" or "sparkcluster " not in text:
        return text
    return re.sub(rf"(?<![\w./-])sparkcluster (?=({'|'.join(COMMANDS)})\b)", lambda _: f"{name} ", text)


def in_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that takes colours (not with NO_COLOR or TERM=dumb)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def label(word: str) -> str:
    """``word:`` in the colour of its meaning."""
    return painted(f"{word}:", _COLOURS[word]) if word in _COLOURS else f"{word}:"


def painted(text: str, colour: str) -> Painted:
    """``text`` in an ANSI colour."""
    paint = Painted(text)
    paint.colour = colour
    return paint


def note_next(command: str) -> None:
    """Write what to type next to stderr."""
    note(painted("next:", _COLOURS["hint"]), f" {typed(command)}")


def say_verdict(text: str, *, ok: bool) -> None:
    """Write the last line of a report to stdout, in green or red."""
    for line in folded(sys.stdout, text):
        say(painted(line, "1;32" if ok else "1;31"))


def say_folded(text: str, *, kind: str = "", indent: str = "") -> None:
    """Write a line of data to stdout, after ``kind`` with a colon if that is given; folded on a terminal."""
    _write_folded(sys.stdout, text, kind, indent)


def note_folded(text: str, *, kind: str = "", indent: str = "") -> None:
    """Write a message to stderr, after ``kind`` with a colon if that is given; folded on a terminal."""
    _write_folded(sys.stderr, text, kind, indent)


def say_line(line: str, indent: str = "") -> None:
    """Write a line of ``Finding.notes`` to stdout; a hint as ``write_remedy`` does."""
    for part in noted(sys.stdout, line, indent):
        say(part)


def noted(stream: TextIO, line: str, indent: str = "") -> list[str]:
    """A line as those that are written of it: whole if it is a hint that has a command, else folded on a terminal."""
    from sparkcluster.findings import REMEDY_LABELS

    word, _, text = line.strip().partition(": ")
    if word in REMEDY_LABELS and _has_command(text):
        return [indent + typed(line)]
    return folded(stream, typed(line), indent=indent)


def _has_command(text: str) -> bool:
    """Whether ``text`` begins with a command, or has one that is told apart from the words after it by three blanks."""
    import re

    return re.match(rf"(?:{_PROGRAMS})\s|\w+=", text) is not None or "   " in text or " | " in text or " && " in text


def write_remedy(stream: TextIO, word: str, text: str, indent: str = "") -> None:
    """Write a hint after ``word``: whole if it is a command or has a pipe, else folded on a terminal.

    What follows ``; or`` is on a line of its own, and what follows three blanks where it does not fit beside the
    command. A command within a sentence, up to a comma or semicolon, and a flag with its value are not broken.
    """
    import re

    for number, part in enumerate(text.split("; or ")):
        name = "or" if number else word
        if stream.isatty() and not _has_command(part):
            command = rf"(?<![\w./-])(?:{_PROGRAMS})\s(?:[^,;]|[,;](?!\s))*|(?<!\S)--?\w[\w-]*\s[^\s,;]+"
            joined = re.sub(command, lambda found: typed(found[0]).replace(" ", _JOINED), part)
            _write_folded(stream, joined, name, indent)
            continue
        command, blanks, about = typed(part).rpartition("   ")
        # three blanks in a path in quotes end no command
        if (
            command.count("'") % 2 == 0
            and command
            and stream.isatty()
            and len(f"{indent}{name}: {command}{blanks}{about}") > _columns()
        ):
            write(stream, indent, label(name), f" {command}")
            _write_folded(stream, about.lstrip(), "", f"{indent}  ")
        else:
            write(stream, indent, label(name), f" {command}{blanks}{about}")


def _write_folded(stream: TextIO, text: str, kind: str, indent: str) -> None:
    first, *more = folded(stream, f"{kind}: {text}" if kind else text, indent=indent)
    lead = [indent, label(kind)] if kind else []
    write(stream, *lead, first.removeprefix(f"{indent}{kind}:") if kind else first)
    for line in more:
        write(stream, line)


def folded(stream: TextIO, text: str, *, indent: str = "") -> list[str]:
    """``text`` as lines no wider than the terminal ``stream``, whole in a pipe; a word, path or command is not broken.

    A terminal would break it in the middle of a word. What is to be pasted must not go through here.
    """
    text = clean(text)
    lines = [f"{indent}{text}"]
    if stream.isatty() and len(lines[0]) > (width := _columns()):
        import re
        import textwrap

        more = indent + " " * (len(text) - len(text.lstrip()) + 2)
        lines = textwrap.wrap(
            re.sub(_UNIT, _JOINED, text),
            width,
            initial_indent=indent,
            subsequent_indent=more,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [line.replace(_JOINED, " ") for line in lines]


def _columns() -> int:
    """Width of the terminal."""
    import shutil

    return shutil.get_terminal_size().columns


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, optional: Sequence[str] = ()
) -> None:
    """Write a table to stdout: within ``width`` columns, or else fitted to a terminal and whole in a pipe.

    The widest columns are wrapped; words, names and dates stay on one line. Where it would still be too wide, columns
    are left out in the order of ``optional``, and then words are broken.
    """
    import itertools
    import textwrap

    if width is None and sys.stdout.isatty():
        width = _columns()
    lines = [[clean(cell).expandtabs(1) for cell in row] for row in (columns, *rows)]
    names = list(columns)
    left_out = list(optional)
    while width and left_out and sum(_narrowest(lines)) + 2 * (len(names) - 1) > width:
        at = names.index(left_out.pop(0))
        names.pop(at)
        lines = [[*row[:at], *row[at + 1 :]] for row in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for least in (_narrowest(lines), [_SHORT] * len(widths)):
        while width and sum(widths) + 2 * (len(widths) - 1) > width:
            spare = [(size, -at) for at, size in enumerate(widths) if size > least[at]]
            if not spare:
                break
            widths[-max(spare)[1]] -= 1
    for row in lines:
        wrapped = [textwrap.wrap(cell, size, break_on_hyphens=False) for cell, size in zip(row, widths, strict=True)]
        for cells in itertools.zip_longest(*wrapped, fillvalue=""):
            line = "  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)).rstrip()
            say(painted(line, "1") if row is lines[0] else line)


def _narrowest(lines: Sequence[Sequence[str]]) -> list[int]:
    """How narrow each column can be: as its longest word, and as a name or date."""
    columns = zip(*lines, strict=True)
    return [
        min(max(map(len, column)), max(_SHORT, *(len(word) for cell in column for word in cell.split())))
        for column in columns
    ]


def render_error(error: SparkclusterError, inventory: str | None = None) -> None:
    """Write an error to stderr: ``error: …``, its findings and log, and ``hint: …`` with what to type.

    ``inventory`` is shown in place of INVENTORY, by default that of ``error``.
    """
    inventory = inventory or error.inventory
    problems = getattr(error, "problems", None)
    if problems is not None:
        for problem in problems:
            note_folded(str(problem), kind="error")
            if problem.hint:
                write_remedy(sys.stderr, "hint", problem.hint.replace("INVENTORY", inventory), "  ")
        return
    where = f"{error.node}: " if error.node and error.node not in error.message else ""
    during = f" (during {error.step})" if error.step and error.step not in error.message else ""
    first, *more = error.message.splitlines() or [""]
    note_folded(f"{where}{first}{during}", kind="error")
    reason = getattr(error, "reason", None)
    if reason is not None:
        line = reason.line if len(reason.line) <= _LONGEST else f"{reason.line[:_LONGEST]}…"
        note(f"  {reason.place}: ", painted(line, _COLOURS["error"]))
    for line in more:
        note_folded(line, indent="  ")
    for finding in getattr(error, "findings", ()):
        render_finding(finding, inventory)
    for line in getattr(error, "log", ())[-_LOG_LINES:]:
        note(f"  | {line}")
    remedies = [remedy for finding in getattr(error, "findings", ()) for remedy in finding.remedy]
    if error.hint and error.hint not in remedies:
        write_remedy(sys.stderr, "hint", error.hint.replace("INVENTORY", inventory))
    for other in error.others:
        render_error(other, inventory)


def render_finding(finding: Finding, inventory: str) -> None:
    """Write a finding that is no note to stderr: code, place, summary, what was seen, what to type."""
    from sparkcluster.findings import REMEDY_LABELS

    if finding.severity == "info":
        return
    note_folded(finding.headline, kind=finding.severity, indent="  ")
    for word, text in finding.details():
        if word in REMEDY_LABELS:
            write_remedy(sys.stderr, word, text.replace("INVENTORY", inventory), "    ")
        else:
            note_folded(typed(text.replace("INVENTORY", inventory)), kind=word, indent="    ")
