"""What a text runs before its engine, as the lines of ``setup`` of a playbook."""

from __future__ import annotations

import re
import shlex

from sparkcluster.importer.shell import Call, Shell
from sparkcluster.importer.unknown import plain, shown, unknown

_NOTHING = frozenset({"echo", ":", "trap", "true", "wait", "printf", "set", "shopt"})
# Commands that change only the shell that runs them; each line of setup has one of its own.
_OF_THE_SHELL = frozenset({"ulimit", "umask", "alias", "conda", "source", ".", "pushd", "popd", "hash"})
# What a line of setup has to have as it is written: more than one command, files that match, a home directory.
_AS_WRITTEN = re.compile(r"[|&;<>(){}\[\]*?~`\n]")


def before(shell: Shell, at: int) -> tuple[list[str], list[str]]:
    """What a text runs before its engine, which is its command number ``at``: lines of setup, and notes.

    Raises:
        UsageError: one needs a variable or a function that setup has not, or the text does not set.
    """
    engine = shell.calls[at]
    lines: list[str] = []
    notes: list[str] = []
    directory = ""
    done = 0
    for call in shell.calls[:at]:
        number, statement = call.part
        program = call.words[0]
        if number == done or program in _NOTHING:
            continue
        done = number
        if number == engine.part[0]:
            raise _refused(shell, call, statement, "is in the same statement as the engine")
        line = _line(shell, call, statement)
        if re.search(r"\bray\s+(start|stop|status)\b", line):
            notes.append(f"{shown(line)}: left out: sparkcluster starts Ray")
        elif program in _OF_THE_SHELL:
            notes.append(f"{shown(line)}: it changes only the engine's own shell; write what it sets under env")
        elif program == "cd":
            notes.append(f"{shown(line)}: the engine starts in the image's own directory; write full paths")
            directory = f"{line} && "
        else:
            lines.append(directory + line)
    return lines, notes


def _line(shell: Shell, call: Call, statement: str) -> str:
    """A line of setup that does what the statement of ``call`` does."""
    if not _AS_WRITTEN.search(statement):
        for word in call.words:
            for name in unknown(word):
                raise _refused(shell, call, statement, f"needs {shown(name)}, which the text does not set")
        return shlex.join(plain(word) for word in call.words)
    own = {*shell.variables.values} - {*call.environment}
    used = {*re.findall(r"\$\{?(\w+)", statement)} - {*re.findall(r"\bfor\s+(\w+)\s+in\b", statement)}
    for name in sorted(used & own):
        raise _refused(shell, call, statement, f"needs ${name}, which setup does not have")
    for name in sorted(shell.functions):
        if re.search(rf"(^|[\s;&|(]){re.escape(name)}\b", statement):
            raise _refused(shell, call, statement, f"runs the function {name}, which setup does not have")
    return plain(statement)


def _refused(shell: Shell, call: Call, statement: str, problem: str) -> Exception:
    message = f"`{shown(statement, 100)}` before the engine {problem}"
    return shell.fault(call.line, message, "write the command with its values, on a line of its own")
