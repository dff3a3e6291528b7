"""A terminal emulator: the text that a program leaves on the screen, including colours."""

from __future__ import annotations

import io
import re

_PART = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|(\r|\n)|([^\x1b\r\n]+)")


PASTED = re.compile(
    r" *(hint|then|or|next): .*(sparkcluster|sudo|ssh-keygen|[-=])|  (sparkcluster|docker) |  (try|curl|ssh|use|stop)  +"
    r"|  \$ |docker exec |    inside: |  \w+="
)
"""Commands to paste, which stay on one line at any length."""


def broken(lines: list[str], width: int) -> list[str]:
    """The ``lines`` that a terminal would break, except commands and single long words: a path, address or hash."""
    return [line for line in lines if len(line) > width and len(line.split()) > 2 and not PASTED.match(line)]


class Terminal(io.StringIO):
    """A stream that is a terminal, for commands that run within the test."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        """Always."""
        return True


def shown(written: str) -> list[str]:
    """The lines on a terminal after ``written``, of any length, without trailing blank lines.

    It supports the sequences that the program and rich use: colours, which stay before the character they apply to,
    erasing a line, moving up, and carriage returns.

    Raises:
        ValueError: anything else that moves the cursor.
    """
    screen = _Screen()
    for part in _PART.finditer(written):
        values, kind, end, text = part.groups()
        if kind:
            screen.control(kind, values, part[0])
        elif end:
            screen.end(end)
        else:
            screen.put(text)
    lines = ["".join(line).rstrip(" ") for line in screen.lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


class _Screen:
    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self.row = self.column = 0
        self._colours = ""

    def control(self, kind: str, values: str, sequence: str) -> None:
        line = self.lines[self.row]
        if kind == "m":
            self._colours += sequence
            if self.column and values in ("", "0"):
                line[self.column - 1] += self._colours
                self._colours = ""
        elif kind == "K":
            del line[0 if values == "2" else self.column :]
        elif kind == "A":
            self.row = max(0, self.row - int(values or 1))
        elif kind not in ("h", "l"):  # these show and hide the cursor
            raise ValueError(f"{sequence!r} is not known here")

    def end(self, char: str) -> None:
        self.column = 0
        if char == "\n":
            self.row += 1
            self.lines += [[]] if self.row == len(self.lines) else []

    def put(self, text: str) -> None:
        line = self.lines[self.row]
        for char in text:
            line += [" "] * (self.column - len(line))
            line[self.column : self.column + 1] = [self._colours + char]
            self.column, self._colours = self.column + 1, ""
