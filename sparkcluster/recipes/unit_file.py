"""Units of systemd: what ``ExecStart=`` runs, with the unit's environment.

After systemd.service(5), "Command lines", systemd.syntax(7), "Quoting", and systemd.unit(5), "Specifiers".
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping

from sparkcluster.errors import NoEngine, UsageError
from sparkcluster.recipes import preamble
from sparkcluster.recipes.choices import Choices, Made
from sparkcluster.recipes.serve import Importer
from sparkcluster.recipes.shell import CLOSE, OPEN, assignment, shown

MAX_CHARACTERS = 1 << 24
MAX_LISTED = 4

# A semicolon that ends a command; no text has the mark.
_AND = f"{OPEN};"

_SECTION = re.compile(r"\[([^\[\]]+)\]")
_SPECIFIER = re.compile(r"%(.?)", re.DOTALL)
_BRACED = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# What may precede the path of a program; | runs it by a shell.
_PREFIXES = re.compile(r"[-@:+!|]*")
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'",
    "s": " ",
}  # fmt: skip
_ESCAPE = re.compile(r"\\(x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|.?)", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<semicolon>\\;(?=\s|$))|(?P<escape>\\(?:x[0-9a-fA-F]{2}|[0-7]{3}|u[0-9a-fA-F]{4}|.?))"""
    r"""|(?P<single>'(?:\\.|[^'\\])*')|(?P<double>"(?:\\.|[^"\\])*")|(?P<space>\s+)|(?P<open>['"])"""
    r"""|(?P<plain>[^\\'"\s]+)""",
    re.DOTALL,
)
# Docker's commands that only prepare for the start or clean up after a stop.
_HOUSEKEEPING = frozenset({"pull", "rm", "stop", "kill", "network", "volume", "login"})
_QUIET = frozenset(
    {
        "ExecStop", "ExecStopPost", "ExecReload", "KillMode", "KillSignal", "LimitMEMLOCK", "LimitNOFILE", "LimitSTACK",
        "NotifyAccess", "PIDFile", "RemainAfterExit", "RestartSec", "StandardError", "StandardInput", "StandardOutput",
        "SuccessExitStatus", "SyslogIdentifier", "TimeoutSec", "TimeoutStartSec", "TimeoutStopSec", "Type",
    }
)  # fmt: skip
_WHY = {
    "EnvironmentFile": "write its lines under env, and the secret ones' names under secrets",
    "ExecCondition": "sparkcluster does not run it",
    "ExecStartPost": "sparkcluster does not run it",
    "Group": "ranks run as the image's own user",
    "PassEnvironment": "write its variables under env, and the secret ones' names under secrets",
    "Restart": "`sparkcluster enable` restarts a group that died, and starts it after a reboot",
    "User": "the inventory says who logs in to the nodes",
    "WorkingDirectory": "write full paths",
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    """A line ``Key=value`` of the section [Service]; continued lines are joined."""

    key: str
    value: str
    line: int


def looks(text: str) -> bool:
    """Whether ``text`` is a unit of systemd: its first line is a section's, and it has [Service] or [Container]."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    return bool(_SECTION.fullmatch(first)) and re.search(r"^\[(Service|Container)\]", text, re.MULTILINE) is not None


def read(text: str, source: str, importers: list[Importer], choices: Choices) -> Made:
    """The playbook of what the unit starts.

    Raises:
        NoEngine: it starts no engine.
        UsageError: a line is broken.
    """
    settings = _settings(text, source)
    environment: dict[str, str] = {}
    starts: list[_Setting] = []
    before: list[_Setting] = []
    notes: list[str] = []
    for setting in settings:
        if setting.key == "Environment":
            environment = _environment(environment, setting, source, choices)
        elif setting.key in {"ExecStart", "ExecStartPre"}:
            listed = starts if setting.key == "ExecStart" else before
            listed.append(setting)
            if not setting.value:
                listed.clear()
        elif setting.key not in _QUIET and setting.value:
            why = _WHY.get(setting.key, "a playbook has no such key")
            notes.append(f"{shown(setting.key)}={_short(setting.value)}: {why}")
    if not starts:
        raise NoEngine(f"{source} has no ExecStart= in a section [Service]", hint="import what the unit runs")
    # Each of these puts one value in, or the environment before a command.
    longest = sum(map(len, [*environment.values(), *choices.defines.values()]))
    if sum(map(text.count, "$%;\n")) * longest > MAX_CHARACTERS:
        raise UsageError(f"{source} is too long with its variables", hint="is this the right file?")
    has_user = any(setting.key == "User" and setting.value not in {"", "root"} for setting in settings)
    variables = {"HOME": "~", **environment} if has_user else environment
    more, downloads = _before(before, variables, source, choices)
    notes += more
    assigned = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    body, at = "", starts[0].line
    for setting in starts:
        commands = _commands(setting, variables, source, choices)
        # Each command keeps its line for messages, and its environment is its own: a container does not get it.
        body += "\n" * max(setting.line - at - body.count("\n"), 1) if body else ""
        body += "; ".join(" ".join([*assigned, shlex.join(words)]) for words in commands)
    script = preamble.text(body, at, commands=downloads)
    try:
        document, left = choices.script(script, source, importers, choices)
    except NoEngine as error:
        started = " and ".join(_short(setting.value) for setting in starts[:MAX_LISTED])
        raise NoEngine(f"{error.message}; it runs {started}", hint="import the file that it runs") from None
    return document, [*left, *notes]


def _settings(text: str, source: str) -> list[_Setting]:
    """The lines of [Service]."""
    out: list[_Setting] = []
    section, pending, first = "", "", 0
    for number, raw in enumerate([*text.replace("\r\n", "\n").split("\n"), ""], start=1):
        line = raw.strip() if not pending else raw.rstrip()
        if line.lstrip()[:1] in {"#", ";"} or (not line and not pending):
            continue
        if not pending:
            first = number
        if line.endswith("\\"):
            # A continued line is joined by a space.
            pending += f"{line[:-1]} "
            continue
        line, pending = pending + line, ""
        found = _SECTION.fullmatch(line)
        if found:
            section = found[1]
        elif section == "Service":
            key, equals, value = line.partition("=")
            if not equals:
                raise UsageError(f"{source}:{first}: expected Key=value, found {_short(line)}", hint="fix the line")
            out.append(_Setting(key.strip(), value.strip(), first))
    return out


def _environment(before: dict[str, str], setting: _Setting, source: str, choices: Choices) -> dict[str, str]:
    if not setting.value:
        return {}
    out = dict(before)
    for word in _words(setting, source):
        assigned = assignment(_specified(word, choices))
        if assigned is None:
            raise UsageError(
                f"{source}:{setting.line}: Environment= takes NAME=value, found {_short(word.lstrip(OPEN))}",
                hint='quote a value with spaces: Environment="NAME=a b"',
            )
        out[assigned[0]] = assigned[1]
    return out


def _before(
    settings: list[_Setting], variables: Mapping[str, str], source: str, choices: Choices
) -> tuple[list[str], list[list[str]]]:
    """Notes about what runs before the start, and downloads among it."""
    notes: list[str] = []
    downloads: list[list[str]] = []
    for setting in settings:
        for words in _commands(setting, variables, source, choices):
            if words[0].rpartition("/")[2] in {"docker", "podman"} and words[1:2] and words[1] in _HOUSEKEEPING:
                continue
            if words[0].rpartition("/")[2] in {"hf", "huggingface-cli"} and words[1:2] == ["download"]:
                downloads.append([words[0].rpartition("/")[2], *words[1:]])
            else:
                notes.append(f"ExecStartPre={_short(shlex.join(words))}: sparkcluster does not run it")
    return notes, downloads


def _commands(setting: _Setting, variables: Mapping[str, str], source: str, choices: Choices) -> list[list[str]]:
    """Commands of a line, each as the words that its program gets.

    Raises:
        UsageError: a prefix or an escape that is not read, or a quote that is not closed.
    """
    out: list[list[str]] = []
    command: list[str] = []
    for word in [*_words(setting, source), _AND]:
        if word != _AND:
            command.append(word)
            continue
        if command:
            out.append(_run(command, setting, variables, source, choices))
        command = []
    return out


def _run(words: list[str], setting: _Setting, variables: Mapping[str, str], source: str, choices: Choices) -> list[str]:
    found = _PREFIXES.match(words[0])
    prefix = found[0] if found else ""
    if "|" in prefix:
        raise UsageError(
            f"{source}:{setting.line}: {setting.key}=| runs a shell of the user's", hint="write the command without |"
        )
    program = _specified(words[0][len(prefix) :], choices)
    # After @ comes the name under which the program is called.
    arguments = words[2:] if "@" in prefix else words[1:]
    out = [program]
    for word in arguments:
        specified = _specified(word, choices)
        out += [specified] if ":" in prefix else _substituted(specified, variables, choices)
    if not program:
        raise UsageError(f"{source}:{setting.line}: {setting.key}= names no program", hint="write its path")
    return out


def _substituted(word: str, variables: Mapping[str, str], choices: Choices) -> list[str]:
    """A word with variables put in: ``$NAME`` as a word of its own is split at blanks, ``${NAME}`` is not."""

    def value(name: str) -> str:
        found = variables.get(name)
        if found is None:
            found = choices.ask(name)
        return f"{OPEN}{name}{CLOSE}" if found is None else found

    alone = _VARIABLE.fullmatch(word)
    if alone:
        text = value(alone[1])
        return [text] if OPEN in text else [word.lstrip(OPEN) for word in _split(text) or []]
    return [_BRACED.sub(lambda found: value(found[1]) if found[1] else "$", word)]


def _specified(word: str, choices: Choices) -> str:
    """``word`` with its specifiers: %% is a percent sign, and what others stand for the unit does not say."""

    def value(found: re.Match[str]) -> str:
        if found[1] in {"%", ""} or not found[1].isalpha():
            return "%" if found[1] == "%" else found[0]
        given = choices.ask(found[0])
        return f"{OPEN}{found[0]}{CLOSE}" if given is None else given

    return _SPECIFIER.sub(value, word)


def _words(setting: _Setting, source: str) -> list[str]:
    words = _split(setting.value)
    if words is None:
        raise UsageError(
            f"{source}:{setting.line}: {setting.key}= has a quote that is not closed, or an escape that systemd "
            "does not know",
            hint=r"close the quote, and write \\ for a backslash",
        )
    return words


def _split(text: str) -> list[str] | None:
    """Words of a line by systemd's rules: both quotes, and C's escapes also within; None if it is broken."""
    out: list[str] = []
    word: str | None = None
    for found in _TOKEN.finditer(text):
        if found.lastgroup == "space":
            out += [] if word is None else [word]
            word = None
        elif found.lastgroup == "semicolon" and word is None:
            word = ";"
        elif found[0] == ";" and word is None and not text[found.end() : found.end() + 1].strip():
            word = _AND
        else:
            quoted = found.lastgroup in {"single", "double"}
            piece = _unescaped(found[0][1:-1] if quoted else found[0])
            if piece is None or found.lastgroup == "open":
                return None
            word = (word or "") + piece
    return out if word is None else [*out, word]


def _unescaped(text: str) -> str | None:
    """``text`` with its escapes put in; None if systemd knows one of them not."""
    out, at = "", 0
    for found in _ESCAPE.finditer(text):
        code = found[2] or found[3] or found[4]
        char = chr(int(code, 8 if found[3] else 16)) if code else _ESCAPES.get(found[1], "")
        if not char or char == "\0" or "\ud800" <= char <= "\udfff":
            return None
        out, at = out + text[at : found.start()] + char, found.end()
    return out + text[at:]


def _short(text: str) -> str:
    line = " ".join(shown(text).split())
    return line if len(line) <= 80 else f"{line[:79]}…"
