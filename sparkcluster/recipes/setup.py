"""What a text runs before its engine, as the lines of ``setup`` of a playbook."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import (
    Call,
    Script,
    mark,
    names_home,
    plain,
    shown,
    text_of,
    unknown,
    with_brackets,
    written,
)

NOTHING = frozenset({"echo", ":", "trap", "true", "wait", "exit", "printf", "set", "shopt"})
# Commands that change only the shell that runs them; each line of setup has one of its own.
_OF_THE_SHELL = frozenset({"ulimit", "umask", "alias", "conda", "mamba", "micromamba", "hash", "source", "."})
_MOVES = frozenset({"cd", "pushd", "popd"})
_QUOTED = frozenset({"string", "raw_string", "ansi_c_string", "translated_string"})
_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution"})
_COMPOUND = frozenset(
    {"for_statement", "while_statement", "if_statement", "case_statement", "compound_statement", "subshell"}
)


def before(script: Script, at: int) -> tuple[list[str], list[str]]:
    """What a text runs before its engine, which is its command number ``at``: lines of setup, and notes.

    Raises:
        UsageError: a statement needs a variable, function, directory or value that setup has not.
    """
    engine = script.calls[at]
    out: list[str] = []
    notes: list[str] = []
    place = _Place()
    last: object = None
    for call in script.calls[:at]:
        statement, program = call.whole(engine, script.asking), call.words[0]
        repeated, last = statement is not None and statement == last, statement
        moves = program in _MOVES and not _in_own_shell(call, statement)
        if moves and program != "popd":
            notes.append(
                f"{shown(written(call.within[-1]))}: the engine starts in the image's own directory; write full paths"
            )
        if statement is None and moves:
            place.move(call.words, _line(script, call, engine, None))
            continue
        if statement is None and program == "wait":  # each line is waited for
            out = [line.removesuffix(" &") for line in out]
        if not repeated and (statement is not None or program not in NOTHING):
            line = _line(script, call, engine, statement)
            if re.search(r"\bray\s+(start|stop|status)\b", line):
                notes.append(f"{shown(line)}: left out: sparkcluster starts Ray")
            elif statement is None and program in _OF_THE_SHELL:
                notes.append(f"{shown(line)}: it changes only the engine's own shell; write what it sets under env")
            elif place.lost:
                problem = f"runs in a directory that `{shown(place.lost)}` leads to"
                raise _refused(script, call, line, problem, "write both as one command, with full paths")
            else:
                out.append(f"{place.directory} && {line}" if place.directory else line)
        if moves:
            place.lost = written(call.within[-1])
    return out, notes


class _Place:
    """The directory that a shell is in.

    Attributes:
        directory: commands that lead there; empty for the image's own.
        lost: the command behind which it is not known.
    """

    def __init__(self) -> None:
        self.directory = self.lost = ""
        self._stack: list[tuple[str, str]] = []

    def move(self, words: Sequence[str], line: str) -> None:
        """Follow ``cd``, ``pushd`` or ``popd``, which is ``line`` as one of setup."""
        program, operand = words[0], "".join(words[1:2])
        if len(words) > 2 or operand[:1] in {"-", "+"} or (program == "pushd" and not operand):
            self.lost = line
        elif program == "popd":
            self.directory, self.lost = self._stack.pop() if self._stack else ("", line)
        else:
            self._stack += [(self.directory, self.lost)] if program == "pushd" else []
            line = re.sub(r"^pushd\b", "cd", line)
            if operand and not operand.startswith(("/", "~")):
                self.directory += f" && {line}" if self.directory else line
            else:
                self.directory, self.lost = line, ""


def _in_own_shell(call: Call, statement: Node | None) -> bool:
    """Whether a command changes nothing for those behind the statement that it is a part of."""
    inner = call.within[call.within.index(statement) :] if statement is not None else ()
    return call.background or any(node.type in {"subshell", "pipeline"} for node in inner)


def _line(script: Script, call: Call, engine: Call, statement: Node | None) -> str:
    """A line of setup that does what ``call`` does.

    Raises:
        UsageError: it needs a variable, function or value that setup has not.
    """
    node = call.within[-1] if statement is None else statement
    text = written(node)
    quoted = statement is None and not any(map(unknown, call.words)) and not _means_more(node, call.words)
    own = (set(script.variables) | set(script.arrays)) - set(call.environment) - {"HOME"}
    own -= set(re.findall(r"\bfor\s+(\w+)\s+in\b", text))  # which the statement itself sets
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
        raise _refused(script, call, text, problem)
    # what the engine sees otherwise, later
    changed = {name: value for name, value in call.environment.items() if engine.environment.get(name) != value}
    exports = "".join(f"export {name}={shlex.quote(plain(value))} && " for name, value in changed.items())
    line = _quoted(node, call.words) if quoted else _unasked(script, node, text, background=call.background)
    return exports + line + (" &" if call.background else "")


def _refused(
    script: Script, call: Call, text: str, problem: str, hint: str = "write the command with its values"
) -> UsageError:
    return UsageError(
        f"{script.where}:{call.line}: `{shown(' '.join(text.split()))}` before the engine {problem}", hint=hint
    )


def _quoted(node: Node, words: list[str]) -> str:
    """Words as a command line; those that assign in front of the command stay assignments."""
    assigned = sum(child.type == "variable_assignment" for child in node.children)
    out = []
    for at, word in enumerate(words):
        name, sign, value = word.partition("=")
        out.append(f"{name}={shlex.quote(plain(value))}" if at < assigned and sign else shlex.quote(plain(word)))
    return " ".join(out)


def _means_more(node: Node, words: list[str]) -> bool:
    """Whether a shell makes more of a command than its words: files that match, a home directory, what it reads."""
    if any(child.type.endswith("_redirect") for child in node.children):
        return True
    if any(map(names_home, words)):
        return True
    arguments = [child for child in node.children if child.type != "variable_assignment"]
    return any(
        any(map(_is_pattern, words)) if part.type in _EXPANSIONS else _is_pattern(text_of(argument), text_of(part))
        for argument in arguments
        for part in _unquoted(argument)
    )


def _unquoted(node: Node) -> Iterator[Node]:
    """The parts of a word that are not in quotes."""
    if node.type in _QUOTED:
        return
    if node.type in _EXPANSIONS or not node.children:
        yield node
    else:
        for child in node.children:
            yield from _unquoted(child)


def _is_pattern(word: str, part: str | None = None) -> bool:
    """Whether a shell would look for files that match; ``vllm[audio]`` and an address with ``?`` match none."""
    bare = re.sub(r"\\.", "", word if part is None else part, flags=re.DOTALL)
    return "://" not in word and (bool(set(bare) & set("*?")) or ("[" in bare and "/" in word))


def _unasked(script: Script, node: Node, text: str, *, background: bool) -> str:
    """A statement whose condition may fail, which does not end the text, so that it does not end the start either."""
    body = node.child_by_field_name("body") if node.type == "redirected_statement" else node
    if body is None or background:
        return text
    if body.type == "list" and body.children[0] in script.asking and body.children[1].type == "&&":
        left, right = body.children[0], body.children[2]
        rest = with_brackets((node.text or b"")[right.start_byte - node.start_byte :].decode(errors="replace"))
        return f"if {written(left)}; then {rest}" + ("\nfi" if "\n" in rest else "; fi")
    if body.type in _COMPOUND and any(_is_within(asked, body) for asked in script.asking):
        return text + ("\ntrue" if "\n" in text else "; true")
    return text


def _is_within(node: Node, outer: Node) -> bool:
    above: Node | None = node
    while above is not None and above != outer:
        above = above.parent
    return above is not None
