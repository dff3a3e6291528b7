"""Import systemd units: ``ExecStart=`` with the unit's ``Environment=`` (systemd.service(5))."""

from __future__ import annotations

import re
import shlex

from sparkcluster.errors import NoEngine
from sparkcluster.importer import script
from sparkcluster.importer.commands import Commands
from sparkcluster.importer.playbook import Made
from sparkcluster.importer.script import Text
from sparkcluster.importer.shell import Shell
from sparkcluster.importer.unknown import mark, shown
from sparkcluster.importer.words import numbered

_QUIET = re.compile(
    "Exec(Start|Stop|StopPost|Reload)|Environment|Type|Kill.*|Limit.*|Restart.+|Standard.*|Timeout.*|RemainAfterExit|"
    "NotifyAccess|PIDFile|SyslogIdentifier|SuccessExitStatus"
)
_WHY = {
    "EnvironmentFile": "write its variables under env, but the names of secrets under secrets",
    "Restart": "`sparkcluster enable` restarts a group that died, and starts it after a reboot",
    "User": "the inventory sets the login user",
    "WorkingDirectory": "the engine starts in the image's own directory; write full paths",
}


_SPECIFIER = re.compile("%[A-Za-z%]")
_PART = re.compile(r"('[^']*'|\"(?:\\.|[^\"\\])*\"|\$\$)|(?<!\S)[;&|<>()]+(?!\S)")


def looks(text: str) -> bool:
    """Whether ``text`` is a unit of systemd."""
    return re.search(r"^\[(Unit|Service)\]\s*$", text, re.MULTILINE) is not None


def read(text: str, about: Text) -> Made:
    """The playbook of the engine that a unit starts.

    Raises:
        UsageError: it starts no engine, or a line is invalid.
    """
    shell = Shell(about.source, about.defines, about.asked)
    notes: list[str] = []
    started = ""
    section = ""
    lines = re.sub(r"\\\n(?:[ \t]*[#;].*\n)*", lambda found: " \x00" * found[0].count("\n"), text).splitlines()
    at = 0
    for line in lines:
        at += 1 + line.count("\x00")
        first = at - line.count("\x00")
        key, equals, value = line.strip().replace("\x00", "").partition("=")
        section = key if key.startswith("[") else section
        if section != "[Service]" or not equals or key[:1] in "#;":
            continue
        value = _SPECIFIER.sub(lambda found: _specified(found[0], about), value)
        if key == "ExecStart" and not value:
            shell.calls.clear()
        elif key == "Environment":
            _set(shell, value, first)
        elif key == "ExecStart":
            started = value.lstrip("-@:+!")
            shell.run("\n" * (first - 1) + _PART.sub(_as_in_a_shell, started))
        elif not _QUIET.fullmatch(key) and value:
            notes.append(f"{key}={shown(value, 80)}: {_WHY.get(key, 'not imported')}")
    if not started:
        raise NoEngine(f"{about.source} has no ExecStart= in [Service]", hint="import the command that the unit runs")
    commands = Commands(about.importers)
    made, more = script.chosen(commands.starts(shell), commands, shell, about)
    return made, [*more, *notes]


def _set(shell: Shell, value: str, line: int) -> None:
    """Set the variables of ``Environment=``; an empty value resets all."""
    try:
        pairs = dict(word.partition("=")[::2] for word in shlex.split(value))
    except ValueError:
        raise shell.fault(line, "Environment= has an unclosed quote", "close it") from None
    if not pairs:
        shell.variables.values, shell.variables.exported = numbered([]), {}
    shell.variables.values |= pairs
    shell.variables.exported |= dict.fromkeys(pairs)


def _as_in_a_shell(found: re.Match[str]) -> str:
    """Quote a part of ``ExecStart=`` for a shell: in systemd, ``$$`` is a dollar sign and operators are words."""
    part = found[1] or f"'{found[0]}'"
    return part.replace("$$", "$" if part[0] == "'" else "\\$")


def _specified(specifier: str, about: Text) -> str:
    """The value of a specifier of systemd.unit(5); instance and user are unknown."""
    return {"%%": "%", "%h": "~"}.get(specifier) or about.value(specifier) or mark(specifier)
