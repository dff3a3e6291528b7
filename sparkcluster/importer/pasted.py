"""Shell text as people paste it: prompts, placeholders, and slips that guides have."""

from __future__ import annotations

import re

from sparkcluster.errors import UsageError
from sparkcluster.importer.unknown import lost, mark

MAX_TEXT = 1 << 18
PROMPT = re.compile(r"^[ \t]*(?:[\w.-]+@[\w.-]+:[^\s$#]*)?\$[ \t]+(?=\S)", re.MULTILINE)
"""``$ docker run …`` and ``user@host:~$ …``."""
_COMMENT = re.compile(r"^[^#'\"\n]*[^#'\"\s][ \t]+#.*\\$", re.MULTILINE)
# Assignments and nothing else on a line, which the grammar reads as part of the next line.
_ONE = r"\w+=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'])*"
_ASSIGNED = re.compile(rf"^([ \t]*{_ONE}(?:[ \t]+{_ONE})+[ \t]*)$", re.MULTILINE)
# `<model>` and `<your model>`, what guides leave to the reader. A redirection has a blank or nothing behind its name.
_PLACEHOLDER = re.compile(
    "(?<![<>&\\d])[<\u2039][A-Za-z][\\w./:|\u2026+-]*(?: [\\w./:|\u2026+-]+){0,4}[>\u203a]"
    "(?=[\\s\"'\\\\:/,;)}\\]|=.-]|$)"
)
_YOURS = re.compile(r"(?<![\w${])YOUR_[A-Z][A-Z0-9_]*\b(?!=)")


def as_shell(text: str, source: str, line: int, notes: list[str]) -> str:
    """``text`` as the shell is meant to get it, with notes on slips; it is all of ``line``, or begins at 1.

    Placeholders are unknown parts: a shell would read ``<model>`` as redirections.

    Raises:
        UsageError: it is too long, or a comment ends a command that is meant to go on.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(f"{source} is longer than {MAX_TEXT >> 10} KiB", hint="is this the right file?")
    if found := _COMMENT.search(text):
        at = line or text.count("\n", 0, found.end()) + 1
        problem = "a comment ends the command, so the backslash in it does not continue the line"
        raise UsageError(f"{source}:{at}: {problem}", hint="remove the comment")
    text = PROMPT.sub("", text).rstrip().rstrip("\\")  # a text cut off after a backslash ends there
    text, slips = re.subn(r"\\[ \t]+\n", "\\\n", _ASSIGNED.sub(r"\1;", text))
    notes += ["a space after the backslash at the end of a line: ignored"] if slips else []
    return _YOURS.sub(lambda found: mark(found[0]), _PLACEHOLDER.sub(lambda found: lost(found[0]), text))
