"""What a text runs before its engine, as the lines of ``setup`` of a playbook."""

from __future__ import annotations

import re
import shlex

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import Call, Script, mark, plain, shown, unknown, written

NOTHING = frozenset({"echo", ":", "trap", "true", "wait", "exit", "printf", "set", "shopt"})
# Commands that change only the shell that runs them; each line of setup has one of its own.
_OF_THE_SHELL = frozenset(
    {"ulimit", "umask", "alias", "pushd", "popd", "conda", "mamba", "micromamba", "hash", "source", "."}
)


def before(script: Script, at: int) -> tuple[list[str], list[str]]:
    """What a text runs before its engine, which is its command number ``at``: lines of setup, and notes.

    Raises:
        UsageError: a statement needs a variable, function or value that setup has not.
    """
    engine = script.calls[at]
    out: list[str] = []
    notes: list[str] = []
    directory = ""
    last: object = None
    for call in script.calls[:at]:
        statement = call.whole(engine)
        repeated, last = statement is not None and statement == last, statement
        if repeated or (statement is None and call.words[0] in NOTHING):
            continue
        line = _line(script, call, statement)
        if statement is None and call.words[0] == "cd":
            directory = line
            notes.append(f"{shown(line)}: the engine starts in the image's own directory; write full paths")
        elif re.search(r"\bray\s+(start|stop|status)\b", line):
            notes.append(f"{shown(line)}: left out: sparkcluster starts Ray")
        elif statement is None and call.words[0] in _OF_THE_SHELL:
            notes.append(f"{shown(line)}: it changes only the engine's own shell; write what it sets under env")
        else:
            out.append(f"{directory} && {line}" if directory else line)
    return out, notes


def _line(script: Script, call: Call, statement: Node | None) -> str:
    """A line of setup that does what ``call`` does.

    Raises:
        UsageError: it needs a variable, function or value that setup has not.
    """
    text = written(call.within[-1] if statement is None else statement)
    quoted = statement is None and not any(map(unknown, call.words))
    own = (set(script.variables) | set(script.arrays)) - set(call.environment) - {"HOME"}
    pattern = "|".join(map(re.escape, sorted({*own, "1", "@", "*", "#"}, key=len, reverse=True)))
    needed = re.search(rf"\$\{{?[#!]?({pattern})(?!\w)", text)
    called = next(
        (name for name in sorted(script.functions) if re.search(rf"(^|[\s;&|(]){re.escape(name)}\b", text)), None
    )
    problem = None
    if unknown(text):
        problem = f"needs {plain(mark(unknown(text)[0]))}, which the text does not set"
    elif called or (statement is not None and statement.type == "command"):
        problem = f"runs {'the function ' + called if called else 'text of its own'}"
    elif needed and not quoted:
        problem = f"needs ${needed[1]}"
    if problem:
        raise UsageError(
            f"{script.where}:{call.line}: `{shown(' '.join(text.split()))}` before the engine {problem}",
            hint="write the command with its values",
        )
    return (_quoted(call.words) if quoted else text) + (" &" if call.background else "")


def _quoted(words: list[str]) -> str:
    return " ".join(shlex.quote(plain(word)) if not unknown(word) else plain(word) for word in words)
