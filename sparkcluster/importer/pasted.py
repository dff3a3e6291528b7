"""Clean up pasted shell text: prompts, placeholders, and common mistakes of guides."""

from __future__ import annotations

import re

from sparkcluster.errors import UsageError
from sparkcluster.importer.unknown import lost, mark

MAX_TEXT = 1 << 18
PROMPT = re.compile(r"^[ \t]*(?:[\w.-]+@[\w.-]+:[^\s$#]*)?\$[ \t]+(?=\S)", re.MULTILINE)
"""``$ docker run …`` and ``user@host:~$ …``."""
_COMMENT = re.compile(r"^[^#'\"\n]*[^#'\"\s][ \t]+#.*\\$", re.MULTILINE)
# Lines with only assignments, which the grammar would read as part of the next line.
_ONE = r"\w+=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'])*"
_ASSIGNED = re.compile(rf"^([ \t]*{_ONE}(?:[ \t]+{_ONE})+[ \t]*)$", re.MULTILINE)
# Placeholders such as `<model>` and `<your model>`. A redirection has a blank or nothing after its name.
_PLACEHOLDER = re.compile(
    "(?<![<>&\\d])[<\u2039][A-Za-z][\\w./:|\u2026+-]*(?: [\\w./:|\u2026+-]+){0,4}[>\u203a]"
    "(?=[\\s\"'\\\\:/,;)}\\]|=.-]|$)"
)
_YOURS = re.compile(r"(?<![\w${])YOUR_[A-Z][A-Z0-9_]*\b(?!=)")


def as_shell(text: str, source: str, line: int, notes: list[str]) -> str:
    """``text`` for the shell parser, with notes about corrections; all of it is on ``line``, or lines count from 1.

    Placeholders become unknown parts, since a shell would parse ``<model>`` as redirections.

    Raises:
        UsageError: it is too long, or a comment interrupts a command.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(f"{source} is longer than {MAX_TEXT >> 10} KiB", hint="is this the right file?")
    if found := _COMMENT.search(text):
        at = line or text.count("\n", 0, found.end()) + 1
        problem = "the backslash is in a comment, so the command ends here"
        raise UsageError(f"{source}:{at}: {problem}", hint="remove the comment")
    text = PROMPT.sub("", text).rstrip().rstrip("\\")  # ignore a backslash at the end of the text
    text, slips = re.subn(r"\\[ \t]+\n", "\\\n", _ASSIGNED.sub(r"\1;", text))
    notes += ["a space after the backslash at the end of a line: ignored"] if slips else []
    return _YOURS.sub(lambda found: mark(found[0]), _PLACEHOLDER.sub(lambda found: lost(found[0]), text))
