"""What ``tmux`` and ``screen`` run: a command of their own, or what they type into a shell of theirs.

Options and keys: tmux(1), screen(1)
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Sequence

from sparkcluster.recipes.shell import SHELLS, Call, Script, Unwrapped, assignment, invocation, parse, shown

PROGRAMS = frozenset({"tmux", "screen"})

# Commands of tmux that run one, by any beginning or short name, with their options that have a value.
_RUN = {
    "new-session": "cefFnstxy", "new-window": "ceFnt", "neww": "ceFnt", "split-window": "ceFlpt",
    "splitw": "ceFlpt", "respawn-pane": "cet", "respawnp": "cet", "respawn-window": "cet", "respawnw": "cet",
    "display-popup": "bcdehsStTwxy", "popup": "bcdehsStTwxy",
}  # fmt: skip
# Names of keys, in any case.
_ENTER = frozenset({"enter", "c-m", "c-j", "^m", "^j", "kpenter"})
_KEY = re.compile(r"[CMS]-\S+|Escape|Tab|BTab|BSpace|Up|Down|Left|Right|Home|End|NPage|PPage|DC|IC|F\d+", re.IGNORECASE)
# In the text of screen's `stuff`.
_ESCAPE = re.compile(r"\^(.)|\\([0-7]{1,3}|.)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What one command of a terminal does.

    Attributes:
        text: for a shell.
        session: whose shell it is typed into; None if it is run by itself.
        env: set with ``-e``.
        opens: name of the session that it opens, if it does.
        lost: its words, if it is not followed.
    """

    text: str = ""
    session: str | None = None
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    opens: str | None = None
    lost: str = ""


class Terminals:
    """The shells of tmux and screen, each with what was typed into it."""

    def __init__(self) -> None:
        self._shells: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self._typed: dict[str, tuple[Call, str]] = {}

    def run(self, call: Call, found: Unwrapped, outer: Script) -> list[Script] | None:
        """The shell texts that ``call``, which is ``found``, runs; those typed without Enter wait for it.

        None where it does something else.
        """
        out: list[Script] = []
        environment = {name: value for name, value in found.env.items() if value is not None}
        parts = _tmux(found.words) if found.words[0] == "tmux" else _screen(found.words)
        if all(part.lost for part in parts):
            return None
        outer.notes += [f"line {call.line}: the command {shown(part.lost)} of tmux" for part in parts if part.lost]
        opens = False
        for part in parts:
            whole = {**environment, **part.env}
            if part.opens is not None:
                self._shells[part.opens] = (whole, whole)
            if part.session is not None:
                _, before = self._typed.pop(part.session, (call, ""))
                done, enter, rest = (before + part.text).rpartition("\n")
                if rest:
                    self._typed[part.session] = (call, rest)
                out += [self._in_shell(part.session, done + enter, call, outer)] if done.strip() else []
                continue
            opens = opens or not part.lost
            if part.text:
                out.append(parse(part.text, environment=whole, outer=outer, where=outer.where, line=call.line))
        if opens and environment and found.words[0] == "tmux":
            names = shown(", ".join(environment))
            outer.notes.append(f"line {call.line}: tmux has {names} only if it starts its server there")
        return out

    def rest(self, outer: Script) -> Iterator[tuple[Call, Script]]:
        """What was typed, and never entered."""
        for session, (call, text) in self._typed.items():
            yield call, self._in_shell(session, text, call, outer)

    def _in_shell(self, session: str, text: str, call: Call, outer: Script) -> Script:
        variables, environment = self._shells.get(session, ({}, {}))
        script = parse(text, variables, environment=environment, outer=outer, where=outer.where, line=call.line)
        self._shells[session] = (script.variables, script.environment)
        return script


def _options(words: Sequence[str], valued: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Options of one letter with their values, and the operands behind them."""
    out: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and re.match(r"-[A-Za-z0-9]", words[at]):
        word = words[at]
        at += 1
        for index, letter in enumerate(word[1:], start=2):
            if letter in valued:
                value = word[index:]
                if not value:
                    value, at = "".join(words[at : at + 1]), at + 1
                out.append((letter, value))
                break
            out.append((letter, ""))
    return out, list(words[at + (words[at : at + 1] == ["--"]) :])


def _command(operands: Sequence[str]) -> str:
    """A shell text of operands: one is such a text, several are words, perhaps ``bash -c`` and a text."""
    shell = invocation(operands[1:])
    if operands[0].rpartition("/")[2] in SHELLS and shell.is_command and len(shell.operands) == 1 and not shell.options:
        return shell.operands[0]
    return operands[0] if len(operands) == 1 else shlex.join(operands)


def _tmux(words: Sequence[str]) -> list[_Part]:
    _, rest = _options(words[1:], "cfLST")
    commands: list[list[str]] = [[]]
    for word in rest:
        if word == ";":
            commands.append([])
        else:
            commands[-1].append(word)
    return [_of_tmux(command[0], command[1:]) for command in commands if command]


def _of_tmux(name: str, words: Sequence[str]) -> _Part:
    if name == "send" or (len(name) > 4 and "send-keys".startswith(name)):
        options, operands = _options(words, "cNt")
        given = dict(options)
        keys = [] if "X" in given else operands
        text = "".join(key if "l" in given else _key(key) for key in keys)
        return _Part(text, given.get("t", ""))
    full = next((full for full in _RUN if full == name or _abridges(name, full)), None)
    if full is None:
        return _Part(lost=shlex.join([name, *words]))
    options, operands = _options(words, _RUN[full])
    env = dict(found for letter, value in options if letter == "e" and (found := assignment(value)))
    session = dict(options).get("s", "") if full == "new-session" else None
    return _Part(_command(operands) if operands else "", None, env, session)


def _abridges(name: str, full: str) -> bool:
    return len(name) > 2 and name != "display" and full.startswith(name)  # that is display-message


def _key(key: str) -> str:
    name = key.lower()
    return "\n" if name in _ENTER else " " if name == "space" else "" if _KEY.fullmatch(key) else key


def _screen(words: Sequence[str]) -> list[_Part]:
    at, session, opens = 1, "", False
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "-Logfile":
            at += 1
        elif word == "-X":
            return [_of_screen(words[at:], session)]
        elif word not in {"-ls", "-list", "-wipe", "-fn", "-fa", "-ln"}:
            opens = opens or "m" in word
            if word[-1] in "cehpsStT":
                session = "".join(words[at : at + 1]) if word[-1] == "S" else session
                at += 1
            elif word in {"-d", "-D", "-r", "-R", "-x"} and words[at : at + 1] and words[at][0] != "-":
                session, at = words[at], at + 1
    text = _command(words[at:]) if words[at:] else ""
    return [_Part(text, opens=session) if opens or text else _Part(lost=shlex.join(words))]


def _of_screen(words: Sequence[str], session: str) -> _Part:
    """What follows ``screen -X``."""
    if words[:1] == ["stuff"]:
        return _Part(_ESCAPE.sub(_decoded, "".join(words[1:2])).replace("\r", "\n"), session)
    return (
        _Part(_command(words[1:])) if words[:1] == ["screen"] and words[1:] else _Part(lost=shlex.join(words) or "-X")
    )


def _decoded(found: re.Match[str]) -> str:
    control, escaped = found.groups()
    if control:
        return "\n" if control in "MmJj" else ""
    if escaped[0] in "01234567":
        return "\n" if (code := int(escaped, 8) % 256) in {10, 13} else chr(code)
    return "\n" if escaped in "nr" else escaped
