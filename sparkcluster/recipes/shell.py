"""Shell text as a list of commands, each a list of words, with the variables that the text itself sets put in.

A small part of what shells do: quotes, continued lines, comments, variables with defaults. What a shell would have to
run for, as ``$(…)``, stays unknown and is marked, and here-documents are left out and said.
"""

from __future__ import annotations

import dataclasses
import re

from sparkcluster.errors import UsageError
from sparkcluster.spec.secret_patterns import without_secrets

# Variables that the text does not set are put between these two, which no text has.
OPEN, CLOSE = "\ue000", "\ue001"
# Between the words of an array, and in place of one that is empty.
_NEXT, _NOTHING = "\ue002", "\ue003"
MARKS = frozenset({OPEN, CLOSE, _NEXT, _NOTHING})
MAX_WORD = 1 << 16
MAX_WORDS = 20_000
MAX_DEPTH = 8

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_UNKNOWN = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "for", "case", "esac", "{"})
_SPACE = " \t\r"


@dataclasses.dataclass(slots=True)
class Script:
    """What was read of a text.

    Attributes:
        commands: words of each command, in order; assignments in front of it included.
        variables: what the text sets.
        arrays: lists that it sets.
        exported: names among them that programs see.
        notes: what was not read.
    """

    commands: list[list[str]] = dataclasses.field(default_factory=list)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    arrays: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    exported: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Exported variables with their values, in the order of the text."""
        return {name: self.variables[name] for name in self.exported if name in self.variables}


def parse(text: str, variables: dict[str, str] | None = None) -> Script:
    """Read a script, or a command as guides print it, where ``variables`` are set already.

    Raises:
        UsageError: a quote that is never closed, or words without end.
    """
    script = Script(variables={"HOME": "~", **(variables or {})})
    _Lexer(text.replace("\r\n", "\n"), script).read()
    return script


def unknown(word: str) -> list[str]:
    """Names of the variables in ``word`` whose value the text does not tell."""
    return [name.strip("()") for name in _UNKNOWN.findall(word)]


def plain(word: str) -> str:
    """``word`` as it would be typed, with unknown variables as ``$NAME``."""
    return _UNKNOWN.sub(lambda found: f"${found[1]}", word)


def shown(text: str) -> str:
    """Text of the recipe for a note: as it would be typed, without secrets."""
    return without_secrets(plain(text), "…")


def assignment(word: str) -> tuple[str, str] | None:
    """Name and value of ``NAME=value``."""
    found = _ASSIGNMENT.fullmatch(word)
    return (found[1], found[2]) if found else None


class _Lexer:
    def __init__(self, text: str, script: Script, depth: int = 0) -> None:
        self.text = text
        self.depth = depth
        self.in_list = False
        self.script = script
        self.at = 0
        self.word: str | None = None
        self.words: list[str] = []
        self.heredocs: list[str] = []
        self.count = 0

    def read(self) -> None:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_command()

    def _step(self, char: str) -> None:
        text = self.text
        if char in _SPACE:
            self._end_word()
            self.at += 1
        elif char == "\n":
            self._end_command()
            self.at += 1
            self._skip_heredocs()
        elif char == "#" and self.word is None:
            self.at = _until(text, "\n", self.at)
        elif char == "\\":
            self._backslash()
        elif char == "'":
            end = text.find("'", self.at + 1)
            if end < 0:
                raise UsageError("a quote (') is not closed", hint="copy the whole command")
            self._add(text[self.at + 1 : end])
            self.at = end + 1
        elif char == '"':
            self._double()
        elif not self._special(char):
            self._add(char)
            self.at += 1

    def _special(self, char: str) -> bool:
        """Take what shells give a meaning of its own; whether it was such."""
        if char in "$`":
            self._add_split(self._variable())
        elif char in "<>":
            self._redirect()
        elif char == "(" and self.word is not None and _ARRAY.fullmatch(self.word):
            self._array(self.word)
        elif char in ";|&()":
            self._end_command()
            self.at += 1
        else:
            return False
        return True

    def _array(self, word: str) -> None:
        """``NAME=( … )`` and ``NAME+=( … )``, over as many lines as it takes."""
        found = _ARRAY.fullmatch(word)
        end = _bracketed(self.text, self.at)
        if found is None or self.depth >= MAX_DEPTH:
            raise UsageError("an array that cannot be parsed", hint="copy the whole command")
        inner = Script(variables=self.script.variables, arrays=self.script.arrays)
        listed = _Lexer(self.text[self.at + 1 : end], inner, self.depth + 1)
        listed.in_list = True
        listed.read()
        words = [word_ for command in inner.commands for word_ in command]
        before = self.script.arrays.get(found[1], []) if found[2] else []
        self.script.arrays[found[1]] = [*before, *words]
        self.word, self.at = None, end + 1

    def _backslash(self) -> None:
        # A blank behind the backslash is a slip of copying; a shell would take it for a word.
        found = re.compile(r"\\[ \t\r]*(\n|$)").match(self.text, self.at)
        if found:
            self._end_word()
            self.at = max(found.end(), self.at + 1)
        else:
            self._add(self.text[self.at + 1 : self.at + 2])
            self.at += 2

    def _double(self) -> None:
        self._add("")
        self.at += 1
        while True:
            if self.at >= len(self.text):
                raise UsageError('a quote (") is not closed', hint="copy the whole command")
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                self._add("" if escaped == "\n" else escaped if escaped in '$`"\\' else f"\\{escaped}")
                self.at += 2
            elif char in "$`":
                self._add(self._variable())
            else:
                self._add(char)
                self.at += 1

    def _variable(self) -> str:
        """The value of what begins here, which is left behind."""
        text, start = self.text, self.at
        if text[start] == "`":
            end = _until(text, "`", start + 1)
            self.at = end + 1
            return f"{OPEN}({text[start + 1 : end].strip()}){CLOSE}"
        following = text[start + 1 : start + 2]
        if following == "(":
            end = _closing(text, start + 1, "(", ")")
            self.at = end + 1
            return f"{OPEN}({text[start + 2 : end].strip()}){CLOSE}"
        if following == "{":
            end = _closing(text, start + 1, "{", "}")
            self.at = end + 1
            return self._braced(text[start + 2 : end])
        found = _NAME.match(text, start + 1)
        if found:
            self.at = found.end()
            return self._value(found[0])
        if following and following in "0123456789@*#?$!":
            self.at += 2
            # What the script is called with is nothing, as long as nobody calls it.
            return _NOTHING if following in "@*" else f"{OPEN}{following}{CLOSE}"
        self.at += 1
        return "$"

    def _braced(self, inside: str) -> str:
        found = _NAME.match(inside)
        if not found:
            return f"{OPEN}{inside}{CLOSE}"
        name, operator = found[0], inside[found.end() :]
        if operator in {"[@]", "[*]"}:
            words = self.script.arrays.get(name)
            return f"{OPEN}{name}{CLOSE}" if words is None else _NEXT.join(words) or _NOTHING
        set_ = self.script.variables.get(name)
        if operator[:2] == ":-" or operator[:1] == "-":
            default = operator[2:] if operator[:1] == ":" else operator[1:]
            return set_ or self._expanded(_unquoted(default))
        if not operator or operator[:2] == ":?" or operator[:1] == "?":
            return self._value(name)
        return f"{OPEN}{name}{CLOSE}"

    def _expanded(self, default: str) -> str:
        """A default with the variables in it put in."""
        if self.depth >= MAX_DEPTH:
            raise UsageError(f"variables nested deeper than {MAX_DEPTH} levels", hint="is this the right file?")
        inner = _Lexer(default, self.script, self.depth + 1)
        out = ""
        while inner.at < len(default):
            if default[inner.at] in "$`":
                out += inner._variable()
            else:
                out += default[inner.at]
                inner.at += 1
        return out

    def _value(self, name: str) -> str:
        value = self.script.variables.get(name)
        return f"{OPEN}{name}{CLOSE}" if value is None else value

    def _redirect(self) -> None:
        found = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1").match(self.text, self.at)
        if found:
            self.heredocs.append(found[2])
            self.at = found.end()
            return
        if self.word is not None and self.word.isdigit():
            self.word = None
        self._end_word()
        found = re.compile(r"(<<<|<|>>|>)&?[ \t]*(\"[^\"]*\"|'[^']*'|[^\s;|&]*)").match(self.text, self.at)
        self.at = found.end() if found else self.at + 1

    def _skip_heredocs(self) -> None:
        for mark in self.heredocs:
            found = re.compile(rf"^[ \t]*{mark}[ \t]*$", re.MULTILINE).search(self.text, self.at)
            self.at = min(found.end() + 1, len(self.text)) if found else len(self.text)
            self.script.notes.append(f"the here-document {shown(mark)}: write its content to a file")
        self.heredocs = []

    def _add(self, piece: str) -> None:
        self.word = (self.word or "") + piece
        if len(self.word) > MAX_WORD:
            raise UsageError(f"a word of more than {MAX_WORD} characters", hint="is this the right file?")

    def _add_split(self, value: str) -> None:
        """An unquoted variable: each of its words is one of the command's."""
        if OPEN in value or not re.search(r"\s", value):
            self._add(value)
            return
        pieces = re.split(r"(\s+)", value)
        for piece in pieces:
            if piece.isspace():
                self._end_word()
            elif piece:
                self._add(piece)

    def _end_word(self) -> None:
        if self.word is None:
            return
        word, self.word = self.word, None
        if word.strip(_NOTHING) or not word:
            self.words += word.replace(_NOTHING, "").split(_NEXT)
        self.count += 1 + word.count(_NEXT)
        if self.count > MAX_WORDS:
            raise UsageError(f"more than {MAX_WORDS} words", hint="is this the right file?")

    def _end_command(self) -> None:
        self._end_word()
        words, self.words = self.words, []
        if self.in_list:
            self.script.commands.append(words)
            return
        while words and words[0] in _KEYWORDS:
            words = words[1:]
        if not words:
            return
        named = [assignment(word) for word in words]
        if words[0] in {"export", "declare", "local", "readonly"}:
            for assigned, word in zip(named[1:], words[1:], strict=True):
                self._set(assigned, word, export=words[0] == "export")
        elif all(named):
            for assigned, word in zip(named, words, strict=True):
                self._set(assigned, word, export=False)
        else:
            self.script.commands.append(words)

    def _set(self, assigned: tuple[str, str] | None, word: str, *, export: bool) -> None:
        name, value = assigned or (word, None)
        if value is not None:
            # What holds an unknown is as unknown; the variable's own name says more than what it was made of.
            resolved = value if OPEN not in value else None
            if resolved is None:
                self.script.variables.pop(name, None)
            else:
                self.script.variables[name] = resolved
        if export:
            self.script.exported.append(name)


def _until(text: str, mark: str, start: int) -> int:
    end = text.find(mark, start)
    return len(text) if end < 0 else end


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    """Where the bracket that opens at ``start`` is closed."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == opening) - (text[index] == closing)
        if depth == 0:
            return index
    raise UsageError(f"a bracket ({opening}) is not closed", hint="copy the whole command")


def _bracketed(text: str, start: int) -> int:
    """Where the bracket of a list is closed; brackets in quotes and comments do not count."""
    for found in re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<=\s)#[^\n]*|\\.|\)", re.DOTALL).finditer(text, start):
        if found[0] == ")":
            return found.start()
    raise UsageError("a bracket (() is not closed", hint="copy the whole command")


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
