"""Convert commands before the engine to lines of ``setup``."""

from __future__ import annotations

import re
import shlex

from sparkcluster.importer.shell import Call, Shell
from sparkcluster.importer.unknown import plain, shown, unknown

_NOTHING = frozenset({"echo", ":", "trap", "true", "wait", "printf", "set", "shopt"})
# Staged files: the model, and vocabularies of gpt-oss.
_STAGED = re.compile(r"(?:hf|huggingface-cli) download |.*\.tiktoken$")
# Commands that change only their own shell; each line of setup runs in a separate shell.
_OF_THE_SHELL = frozenset({"ulimit", "umask", "alias", "conda", "source", ".", "pushd", "popd", "hash"})
# Characters for which a line is kept as written: several commands, file patterns, a home directory.
_AS_WRITTEN = re.compile(r"[|&;<>(){}\[\]*?~`\n]")


def before(shell: Shell, at: int) -> tuple[list[str], list[str]]:
    """Lines of setup for the commands before the engine, which is command ``at``, and notes.

    Raises:
        UsageError: a command needs a variable or function that is unknown or unavailable in setup.
    """
    engine = shell.calls[at]
    lines: list[str] = []
    notes: list[str] = []
    directory = ""
    done = 0
    for call in shell.calls[:at]:
        number, statement = call.part
        program = call.words[0]
        if number == done or program in _NOTHING or call.words == ["cat"]:
            continue
        done = number
        if number == engine.part[0]:
            raise _refused(shell, call, statement, "is in the same statement as the engine")
        line = _line(shell, call, statement)
        if re.search(r"\bray\s+(start|stop|status)\b", line):
            notes.append(f"{shown(line)}: skipped: sparkcluster starts Ray")
        elif _STAGED.match(line):
            notes.append(f"{shown(line)}: skipped: sparkcluster stages it")
        elif program in _OF_THE_SHELL:
            notes.append(f"{shown(line)}: changes only its own shell; write what it sets under env")
        elif program == "cd":
            notes.append(f"{shown(line)}: the engine starts in the image's own directory; write full paths")
            directory = f"{line} && "
        else:
            lines.append(directory + line)
    return lines, notes


def _line(shell: Shell, call: Call, statement: str) -> str:
    """A line of setup for the statement of ``call``."""
    if not _AS_WRITTEN.search(statement):
        for word in call.words:
            for name in unknown(word):
                raise _refused(shell, call, statement, f"needs {shown(name)}, which is not set")
        return shlex.join(plain(word) for word in call.words)
    own = {*shell.variables.values} - {*call.environment}
    used = {*re.findall(r"\$\{?(\w+)", statement)} - {*re.findall(r"\bfor\s+(\w+)\s+in\b", statement)}
    for name in sorted(used & own):
        raise _refused(shell, call, statement, f"needs ${name}, which is unavailable in setup")
    for name in sorted(shell.functions):
        if re.search(rf"(^|[\s;&|(]){re.escape(name)}\b", statement):
            raise _refused(shell, call, statement, f"runs the function {name}, which is unavailable in setup")
    return plain(statement)


def _refused(shell: Shell, call: Call, statement: str, problem: str) -> Exception:
    message = f"`{shown(statement, 100)}` before the engine {problem}"
    return shell.fault(call.line, message, "write the command with its values on a separate line")
