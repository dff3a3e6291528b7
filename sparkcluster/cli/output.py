"""Writes what commands print: data to stdout; messages, findings and errors to stderr. ``progress`` is separate.

Plain text in a pipe; on a terminal coloured and wrapped between words. Commands to paste are not wrapped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from sparkcluster.engines import DEFAULT
from sparkcluster.printable import as_json, clean

if TYPE_CHECKING:
    from sparkcluster.errors import SparkclusterError
    from sparkcluster.findings import Finding

_STYLES = {"good": "32", "warn": "33", "bad": "31", "type": "36", "dim": "2", "bold": "1"}
_KINDS = {"error": "bold bad", "does not fit": "bold bad", "warning": "warn"} | dict.fromkeys(
    ("hint", "then", "or", "next", "log"), "type"
)
_LOG_LINES = 5
_LONGEST = 300
# A blank where no line is wrapped; textwrap knows it.
_JOINED = "\N{NO-BREAK SPACE}"

_PROGRAMS = (
    "sparkcluster|sudo|docker|ssh|ssh-(?:keygen|keyscan|copy-id)|export|unset|mkdir|ls|cp|mv|rm|cat|chmod|chown|curl|ping|"
    "rsync|ip|nmcli|netplan|systemctl|journalctl|loginctl|timedatectl|nvidia-smi|hf|uv|pip|apt-get|python3?|df|du|echo|"
    f"lspci|getent|findmnt|lsblk|dmesg|ethtool|ibv_devinfo|ibdev2netdev|modprobe|sysctl|readlink|{DEFAULT}"
)


class Painted(str):
    """Text that is shown in an ANSI ``colour`` if the stream takes colours."""

    __slots__ = ("colour",)
    colour: str


def paint(text: str, style: str) -> Painted:
    """``text`` in a style: good, warn, bad, type, dim or bold, several separated by blanks."""
    return coded(text, ";".join(_STYLES[word] for word in style.split()))


def style(text: str) -> str:
    """The last word of the style of ``text``; empty if it has none."""
    colour = text.colour.rpartition(";")[2] if isinstance(text, Painted) else ""
    return next((word for word, code in _STYLES.items() if code == colour), "")


def coded(text: str, colour: str) -> Painted:
    """``text`` in an ANSI colour."""
    painted = Painted(text)
    painted.colour = colour
    return painted


def data(*parts: str, kind: str = "", indent: str = "") -> None:
    """Write a line of data to stdout, preceded by ``kind:`` if given."""
    put(sys.stdout, *parts, kind=kind, indent=indent)


def message(*parts: str, kind: str = "", indent: str = "") -> None:
    """Write a message to stderr, preceded by ``kind:`` if given: error, warning, hint, next, …."""
    put(sys.stderr, *parts, kind=kind, indent=indent)


def put(stream: TextIO, *parts: str, kind: str = "", indent: str = "") -> None:
    """Write a line to ``stream``; ``data`` and ``message`` call it."""
    for line in lines(stream, *parts, kind=kind, indent=indent):
        write(stream, *line)


def lines(stream: TextIO, *parts: str, kind: str = "", indent: str = "") -> Iterator[list[str]]:
    """The lines that ``put`` writes; each alternative of a remedy is on its own line."""
    from sparkcluster.findings import REMEDY_LABELS

    texts = [[text] for text in "".join(parts).split("; or ")] if kind in REMEDY_LABELS else [parts]
    for number, text in enumerate(texts):
        name = "or" if number else kind
        lead = [paint(f"{name}:", _KINDS.get(name, "")), " "] if name else []
        ours = bool(kind) or stream is sys.stderr
        line = [typed(part) if ours else part for part in text]
        plain, room = "".join([*lead, *map(clean, line)]), columns(stream) - len(indent)
        if room <= 0 or len(plain) <= room:
            yield [indent, *lead, *line]
            continue
        first, *more = _folded(plain, room)
        # The first part keeps its colour when wrapped; a text of one part has one colour.
        rest, begins = first[len("".join(lead)) :], text[0] if isinstance(text[0], Painted) else coded("", "")
        size, colour = (len(begins), "") if len(text) > 1 else (len(plain), begins.colour)
        yield [indent, *lead, coded(rest[:size], begins.colour), rest[size:]]
        yield from ([indent, coded(each, colour)] for each in more)


def noted(stream: TextIO, text: str) -> Iterator[list[str]]:
    """``lines`` of a text that may begin with a kind, such as ``hint: …``."""
    word, colon, rest = text.partition(": ")
    if colon and word.strip() in _KINDS:
        return lines(stream, rest, kind=word.strip(), indent=word[: len(word) - len(word.lstrip())])
    return lines(stream, text)


def _folded(text: str, width: int) -> list[str]:
    """``text`` wrapped to ``width``; a command, and a flag with its value, are kept together."""
    import re
    import textwrap

    begun = re.match(rf"(?:\w+: )?(?:on \S+: )?(?:(?:{_PROGRAMS})\s|\w+=)", text)
    if begun or " | " in text or " && " in text:
        command, blanks, about = text.rpartition("   ")
        if not blanks or command.count("'") % 2:  # blanks within a quoted path
            return [text]
        return [command, *textwrap.wrap(about, width, initial_indent="  ", subsequent_indent="  ")]
    commands = rf"(?<![\w./-])(?:{_PROGRAMS})\s(?:[^,;]|[,;](?!\s))*|(?<!\S)--?\w[\w-]*\s[^\s,;]+"
    joined = re.sub(commands, lambda found: found[0].replace(" ", _JOINED), text)
    after = " " * (len(text) - len(text.lstrip()) + 2)
    lines = textwrap.wrap(joined, width, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINED, " ") for line in lines]


def show_finding(
    found: Finding, *, stream: TextIO | None = None, headline: str = "", indent: str = "  ", why: bool = False
) -> None:
    """Write a finding: severity, ``headline`` (default: its own), what was seen, ``why`` it matters, remedies."""
    stream = stream or sys.stderr
    put(stream, headline or found.headline, kind=found.severity, indent=indent)
    for word, text in found.details(headed=bool(headline)):
        if word != "why" or why:
            put(stream, text, kind=word, indent=f"{indent}  ")


def show_error(failed: SparkclusterError) -> None:
    """Write an error to stderr: the message, its findings, the log line that says why, and the hint.

    Nodes with the same error are listed in one line.
    """
    for problem in getattr(failed, "problems", ()):
        message(str(problem), kind="error")
        if problem.hint:
            message(problem.hint, kind="hint", indent="  ")
    if hasattr(failed, "problems"):
        return
    where = f"{failed.node}: " if failed.node and failed.node not in failed.message else ""
    first, *more = failed.message.rstrip().split("\n")
    during = f" (during {failed.step})" if failed.step and failed.step not in failed.message else ""
    message(f"{where}{first}{during}", kind="error")
    alike = [each for each in failed.others if _essence(each) == _essence(failed)]
    more += [f"the same on {', '.join(each.node or '' for each in alike)}"] if alike else []
    for line in more:
        message(line, indent="  ")
    for line in _reason(failed):
        message("  ", line)
    _show_hints(failed)
    for each in failed.others:
        if each not in alike:
            show_error(each)


def _essence(failed: SparkclusterError) -> tuple[str, str | None]:
    """The error without node names, ports and amounts, to find nodes with the same error."""
    import re

    return re.sub(r"\d+", "", failed.message.replace(failed.node or " ", " ")), failed.hint


def _show_hints(failed: SparkclusterError) -> None:
    """Write the findings of an error, its hint, and the command for its log."""
    findings = [each for each in getattr(failed, "findings", ()) if each.severity != "info"]
    for each in findings:
        show_finding(each)
    hint = failed.hint or ""
    if hint and not any(hint in each.remedy for each in findings):
        message(hint, kind="hint")
    if getattr(failed, "logs", None) and "--failed" not in hint:
        message("sparkcluster logs INVENTORY --failed", kind="log")


def _reason(failed: SparkclusterError) -> Iterator[str]:
    """The log line that says why, or the last log lines if there is none."""
    reason = getattr(failed, "reason", None)
    if reason is None or isinstance(reason, str):
        yield from (f"| {line}" for line in getattr(failed, "log", ())[-_LOG_LINES:])
        return
    yield paint(reason.line if len(reason.line) <= _LONGEST else f"{reason.line[:_LONGEST]}…", "bad")
    yield paint(f"in {reason.place}", "dim")


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table to stdout; on a terminal the widest columns are wrapped to fit."""
    if not (width := columns(sys.stdout)):
        widths = [max(map(len, map(clean, column))) for column in zip(names, *rows, strict=True)]
        for row in (names, *rows):
            data("  ".join(clean(cell).ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console

    console = Console(file=sys.stdout, width=width, color_system="standard" if in_colour(sys.stdout) else None)
    console.print(rich_table(names, rows))


def rich_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A table for rich, which wraps the widest columns."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name in names:
        drawn.add_column(rich_text(paint(name, "bold")), overflow="fold")
    for row in rows:
        drawn.add_row(*map(rich_text, row))
    return drawn


def rich_text(part: str) -> Any:
    """``part`` for rich: without hidden characters, in its colour, not parsed as markup."""
    from rich.text import Text

    return Text.from_ansi(f"\x1b[{part.colour}m{clean(part)}") if isinstance(part, Painted) else Text(clean(part))


def emit_json(document: dict[str, Any], *, line: bool = False) -> None:
    """Write the document of ``--json`` to stdout: indented on a terminal, on one line in a pipe or as ``line``."""
    indent = 2 if sys.stdout.isatty() and not line else None
    write(sys.stdout, as_json(document, indent=indent), keep="\n")


def write(stream: TextIO, *parts: str, begin: str = "", end: str = "\n", keep: str = "\t") -> None:
    """Write ``parts`` to ``stream``: all output of a command goes through here.

    Hidden characters are replaced, except those in ``keep``; colours, ``begin`` and ``end`` are added afterwards.
    Buffered stdout is flushed before a message to stderr, so that both stay in order in one file.
    """
    if stream is sys.stderr:
        sys.stdout.flush()
    colours = in_colour(stream)
    shown = [
        f"\x1b[{part.colour}m{clean(part, keep)}\x1b[0m"
        if colours and isinstance(part, Painted) and part.colour
        else clean(part, keep)
        for part in parts
    ]
    stream.write("".join([begin, *shown, end]))


def log_colours(text: str) -> list[str]:
    """``text`` of an engine or model as parts for ``write``, with its own ANSI colours."""
    import re

    first, *more = re.split(r"\x1b\[([0-9;]*)m", text)
    known = re.compile(r"(?:0?[01];)?(?:3[1-7]|9[0-7])|0?1")  # not black, which hides text
    pairs = zip(more[::2], more[1::2], strict=True)
    return [first, *(coded(part, colour) if known.fullmatch(colour) else part for colour, part in pairs)]


def moves(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal on which lines can be overwritten."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def in_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that takes colours (not with NO_COLOR or TERM=dumb)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(stream: TextIO) -> int:
    """Width of the terminal ``stream``; 0 if it is none, so that nothing is wrapped."""
    import shutil

    return shutil.get_terminal_size().columns if stream.isatty() else 0


def program() -> str:
    """How to call this program: its name if PATH has it, else the path that was typed."""
    import shutil

    from sparkcluster.printable import word

    path, found = sys.argv[0], shutil.which("sparkcluster")
    ours = os.path.basename(path) == "sparkcluster"  # noqa: PTH119 - pathlib is slow to import
    same = found and os.path.exists(path) and os.path.samefile(found, path)  # noqa: PTH110, PTH121 - likewise
    return word(path) if ours and not same else "sparkcluster"


def typed(text: str) -> str:
    """``text`` with INVENTORY filled in, and each `sparkcluster COMMAND` as it has to be typed here."""
    import re

    from sparkcluster import hints
    from sparkcluster.cli.commands import COMMANDS

    text = hints.command_line(text) if "INVENTORY" in text else text
    if "sparkcluster " not in text or (name := program()) == "sparkcluster":
        return text
    return re.sub(rf"(?<![\w./-])sparkcluster (?=({'|'.join(COMMANDS)})\b)", lambda _: f"{name} ", text)
