"""Commands of the shell itself, functions and scripts of the text."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import arithmetic, conditions, expand
from sparkcluster.recipes.shell.marks import assignment, is_known, mark, shown
from sparkcluster.recipes.shell.script import Array, Status
from sparkcluster.recipes.shell.syntax import statements, text_of, tree

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_FLOWS = frozenset({"exit", "return", "break", "continue"})
_SHELLS = frozenset({"bash", "sh", "dash", "zsh"})
NEVER_FAIL = frozenset({":", "true", "echo", "printf", "trap", "shopt", "ulimit", "wait", "umask", "clear"})


def matches(word: str, patterns: Sequence[str]) -> bool | None:
    """Whether a word of ``case`` is one of the patterns; None where the text does not decide it."""
    if "*" in patterns:
        return True
    if not is_known(word) or not all(map(is_known, patterns)):
        return None
    return any(fnmatch.fnmatchcase(word, pattern) for pattern in patterns)


def assignment_statement(run: Evaluator, node: Node) -> Status:
    """``NAME=value``, one or several."""
    for child in [node] if node.type == "variable_assignment" else list(statements(node)):
        assign(run, child)
    return Status.YES


def assign(run: Evaluator, node: Node) -> str:
    """Set what an assignment sets; its name."""
    target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if target is None:
        return ""
    more = any(child.type == "+=" for child in node.children)
    if target.type == "subscript":
        name = text_of(target.child_by_field_name("name") or target)
        index = target.child_by_field_name("index")
        array = dict(run.state.arrays.get(name) or {})
        array[expand.text(run, index) if index is not None else "0"] = "" if value is None else expand.text(run, value)
        run.state.arrays[name] = array
        return name
    name = text_of(target)
    if value is not None and value.type == "array":
        before = run.state.arrays.get(name, {}) if more else {}
        # more of an array that differs between branches differs as well
        run.state.arrays[name] = None if before is None else _elements(run, value, dict(before))
        return name
    text = "" if value is None else expand.text(run, value)
    run.assign(name, (run.value(name) or "") + text if more else text)
    return name


def _elements(run: Evaluator, node: Node, out: Array) -> Array:
    for child in statements(node):
        keyed = re.fullmatch(r"\[(.+?)\]=(.*)", text_of(child), re.DOTALL)
        words = expand.fields(run, child)
        if keyed and len(words) == 1 and (found := re.fullmatch(r"\[(.+?)\]=(.*)", words[0], re.DOTALL)):
            out[found[1]] = found[2]
            continue
        for word in words:
            out[str(len(out))] = word
        if len(out) > expand.MAX_WORDS:
            raise UsageError(f"{run.where}: more than {expand.MAX_WORDS} words", hint="is this the right file?")
    return out


def declaration(run: Evaluator, node: Node) -> Status:
    """``export``, ``declare``, ``local``, ``readonly`` and ``typeset``."""
    kind, flags = text_of(node.children[0]), ""
    for child in statements(node):
        if run.outside and kind in {"local", "declare", "typeset"}:
            found = re.match(r"\w+", text_of(child))
            if found:
                run.outside[-1].setdefault(found[0], run.state.variables.get(found[0]))
        if child.type == "variable_assignment":
            name = assign(run, child)
        elif child.type == "variable_name":
            name = text_of(child)
            if kind == "local" or "a" in flags.lower():
                run.state.variables[name] = ""
        elif text_of(child).startswith("-"):
            flags += text_of(child)
            continue
        else:
            name = _dynamic(run, child)
        if name and (kind == "export" or "x" in flags) and "f" not in flags and "n" not in flags:
            run.state.exported[name] = None
            if name not in run.state.variables and (given := run.value(name)) is not None:
                run.state.variables[name] = given
    return Status.YES


def _dynamic(run: Evaluator, node: Node) -> str:
    """``export "NAME=$value"``."""
    for word in expand.fields(run, node):
        if (found := assignment(word)) is not None:
            run.assign(*found)
            return found[0]
        if re.fullmatch(r"\w+", word):
            return word
    return ""


def unset(run: Evaluator, node: Node) -> Status:
    """``unset NAME``: an empty value says the same to what reads it."""
    for child in statements(node):
        name = text_of(child)
        run.state.variables.pop(name, None)
        run.state.arrays.pop(name, None)
        run.state.exported.pop(name, None)
    return Status.YES


def arithmetic_command(run: Evaluator, text: str) -> Status:
    """``((…))``: a condition, or a variable that counts."""
    inner = re.sub(r"^\(\(|\)\)$", "", text).strip()
    counted = re.fullmatch(r"(\w+)\s*(\+\+|--|[-+*/]?=)(?!=)\s*(.*)", inner, re.DOTALL)
    if counted is None:
        number = arithmetic.integer(run, inner)
        return Status.of(None if number is None else bool(number))
    name, sign, rest = counted.groups()
    right = {"++": f"{name} + 1", "--": f"{name} - 1", "=": rest}.get(sign, f"{name} {sign[0]} ({rest})")
    number = arithmetic.integer(run, right)
    run.assign(name, mark(name) if number is None else str(number))
    return Status.YES


def run(evaluator: Evaluator, node: Node, words: list[str], stdin: str | None) -> Status | None:
    """Do what a command of the shell, a function or a script of the text does; None for every other command."""
    at = next((index for index, word in enumerate(words) if assignment(word) is None), len(words))
    name, rest = (words[at], words[at + 1 :]) if at < len(words) else ("", [])
    if name in evaluator.state.functions:
        return _called(evaluator, node, name, rest, [found for word in words[:at] if (found := assignment(word))])
    if name in _FLOWS:
        return evaluator.ended(node, name)
    if name in _BUILTINS:
        return _BUILTINS[name](evaluator, node, rest)
    script = _script(evaluator, name, rest, stdin)
    if script is None:
        return None
    before, evaluator.state = evaluator.state, evaluator.state.copy()
    evaluator.state.arguments = script[1]
    _text(evaluator, node, script[0])
    evaluator.state = before
    return Status.MAYBE


def _set(evaluator: Evaluator, _: Node, rest: list[str]) -> Status:
    if "--" in rest:
        evaluator.state.arguments = rest[rest.index("--") + 1 :]
    return Status.YES


def _shift(evaluator: Evaluator, _: Node, rest: list[str]) -> Status:
    count = int(rest[0]) if rest and re.fullmatch(r"\d{1,6}", rest[0]) else 1
    evaluator.state.arguments = evaluator.state.arguments[count:]
    return Status.YES


def _read(evaluator: Evaluator, _: Node, rest: list[str]) -> Status:
    """Variables that get their values from elsewhere."""
    for word in rest:
        if re.fullmatch(r"[A-Za-z_]\w*", word):
            evaluator.assign(word, mark(word))
    return Status.MAYBE


def _getopts(evaluator: Evaluator, node: Node, rest: list[str]) -> Status:
    return _read(evaluator, node, rest) if evaluator.state.arguments else Status.NO


def _source(evaluator: Evaluator, node: Node, rest: list[str]) -> Status:
    if rest and rest[0] in evaluator.state.files:
        return _text(evaluator, node, evaluator.state.files[rest[0]])
    evaluator.script.notes.append(f"the variables of {shown(' '.join(rest[:1]))}, which the text reads")
    return Status.YES


def _eval(evaluator: Evaluator, node: Node, rest: list[str]) -> Status:
    return _text(evaluator, node, " ".join(rest))


def _test(evaluator: Evaluator, _: Node, rest: list[str]) -> Status:
    return Status.of(conditions.of_words(evaluator, rest[:-1] if rest[-1:] == ["]"] else rest))


def _false(*_: object) -> Status:
    return Status.NO


_BUILTINS: dict[str, Callable[[Evaluator, Node, list[str]], Status]] = {
    "test": _test, "[": _test, "false": _false, "set": _set, "shift": _shift, "read": _read, "mapfile": _read,
    "readarray": _read, "getopts": _getopts, "eval": _eval, "source": _source, ".": _source,
}  # fmt: skip


def _script(evaluator: Evaluator, name: str, rest: list[str], stdin: str | None) -> tuple[str, list[str]] | None:
    """The text that a shell runs, and its arguments: a file that the text wrote, or a here-document."""
    files = evaluator.state.files
    named = next((word for word in (name, name.removeprefix("./")) if "/" in name and word in files), None)
    if named is not None:
        return files[named], rest
    if name.rpartition("/")[2] not in _SHELLS:
        return None
    operands = [word for word in rest if not word.startswith("-")]
    if stdin is not None and not operands:
        return stdin, []
    if operands and rest[0] == operands[0] and (key := operands[0].removeprefix("./")) in files | {f"./{key}": ""}:
        return files.get(key, files.get(operands[0], "")), operands[1:]
    return None


def _called(
    evaluator: Evaluator, node: Node, name: str, arguments: list[str], assigned: list[tuple[str, str]]
) -> Status:
    """A function; what is set for it and what it declares ``local`` is over with it."""
    state, body = evaluator.state, evaluator.state.functions[name]
    outside, state.arguments = state.arguments, arguments
    evaluator.outside.append({found: state.variables.get(found) for found, _ in assigned})
    for found, value in assigned:
        evaluator.assign(found, value)
    with evaluator.deeper(node):
        status = evaluator.run(body)
    state = evaluator.state
    state.arguments = outside
    if state.flow == "return":
        state.flow = None
    for found, before in evaluator.outside.pop().items():
        state.variables.pop(found, None)
        if before is not None:
            state.variables[found] = before
    return status


def _text(evaluator: Evaluator, node: Node, text: str) -> Status:
    """Run text that the script has in a word or in a file."""
    first, evaluator.first_line = evaluator.first_line, evaluator.line(node)
    with evaluator.deeper(node):
        status = evaluator.sequence(statements(tree(text, evaluator.where, evaluator.first_line)))
    evaluator.first_line = first
    return status
