"""Commands of the shell itself, functions and scripts of the text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell import arithmetic, arrays, conditions, expand, scripts, wrappers
from sparkcluster.recipes.shell.marks import assignment, is_known, shown
from sparkcluster.recipes.shell.script import Array, Assumed, Outside, Status, with_options
from sparkcluster.recipes.shell.syntax import statements, text_of, written

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_FLOWS = frozenset({"exit", "return", "break", "continue"})
NEVER_FAIL = frozenset({":", "true", "echo", "printf", "trap", "shopt", "ulimit", "wait", "umask", "clear"})


def matches(word: str, patterns: Sequence[re.Pattern[str] | None]) -> bool | None:
    """Whether a word of ``case`` is one of the patterns; None where the text does not decide it."""
    known = [pattern for pattern in patterns if pattern is not None]
    if any(pattern.pattern == ".*" for pattern in known):
        return True
    if not is_known(word):
        return None
    if any(pattern.fullmatch(word) for pattern in known):
        return True
    return None if len(known) < len(patterns) else False


def assignment_statement(run: Evaluator, node: Node) -> Status:
    """``NAME=value``, one or several; the status is that of the last ``$(…)`` in them."""
    run.substituted = Status.YES
    for child in [node] if node.type == "variable_assignment" else list(statements(node)):
        assign(run, child)
    return run.substituted


def assign(run: Evaluator, node: Node) -> str:
    """Set what an assignment sets; its name."""
    target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if target is None:
        return ""
    more = any(child.type == "+=" for child in node.children)
    if target.type == "subscript":
        return _element(run, node, target, value, more=more)
    name = text_of(target)
    if value is not None and value.type == "array":
        grows = more and (name in run.state.arrays or name in run.state.variables)
        before, uncounted = (arrays.of(run, name, whole=True), name in run.state.uncounted) if grows else ({}, False)
        run.unsure = False
        run.state.arrays[name] = None if before is None else _elements(run, value, name, dict(before))
        if run.unsure or uncounted:
            run.state.uncounted.add(name)
        elif not run.outside:
            run.state.uncounted.discard(name)
        run.state.variables.pop(name, None)
        return name
    text = "" if value is None else expand.text(run, value)
    run.assign(name, (run.value(name) or "") + text if more else text)
    return name


def _element(run: Evaluator, node: Node, target: Node, value: Node | None, *, more: bool) -> str:
    """``NAME[KEY]=value``."""
    name = text_of(target.child_by_field_name("name") or target)
    index = target.child_by_field_name("index")
    array = arrays.of(run, name) if name in run.state.arrays or name in run.state.variables else {}
    key = arrays.key(run, name, array or {}, "0" if index is None else text_of(index), node)
    if array is None or key is None:
        run.state.arrays[name] = None
        return name
    text = "" if value is None else expand.text(run, value)
    run.state.arrays[name] = arrays.ordered({**array, key: array.get(key, "") + text if more else text})
    run.state.variables.pop(name, None)
    return name


def _elements(run: Evaluator, node: Node, name: str, out: Array) -> Array | None:
    at = arrays.after(out)
    groups: list[list[Node]] = []
    for child in statements(node):
        if groups and expand.adjacent(groups[-1][-1], child):
            groups[-1].append(child)
        else:
            groups.append([child])
    for group in groups:
        keyed = re.fullmatch(r"\[(.+?)\]=(.*)", text_of(group[0]), re.DOTALL)
        words = expand.fields(run, *group)
        if keyed and len(words) == 1 and (found := re.fullmatch(r"\[(.+?)\]=(.*)", words[0], re.DOTALL)):
            key = arrays.key(run, name, out, found[1], node)
            if key is None:
                return None
            out[key] = found[2]
            at = arrays.after(out)
            continue
        out |= {str(at + index): word for index, word in enumerate(words)}
        at += len(words)
        run.spend(len(words))
        if at > expand.MAX_WORDS:
            raise UsageError(f"{run.where}: more than {expand.MAX_WORDS} words", hint="is this the right file?")
    return arrays.ordered(out)


def declaration(run: Evaluator, node: Node) -> Status:
    """``export``, ``declare``, ``local``, ``readonly`` and ``typeset``."""
    kind = text_of(node.children[0])
    flags = "".join(text_of(child) for child in statements(node) if text_of(child).startswith("-"))
    values = []  # all are expanded before the first is set
    for child in statements(node):
        if child.type == "variable_assignment":
            value = child.child_by_field_name("value")
            simple = value is not None and value.type != "array" and all(part.type != "+=" for part in child.children)
            values.append((child, expand.text(run, value) if simple and value is not None else None))
        elif not text_of(child).startswith("-"):
            values.append((child, None))
    if "n" in flags and kind != "export":
        message = f"{run.where}:{run.line(node)}: `{kind} -n` is not followed"
        raise UsageError(message, hint="copy the command out of it")
    local = bool(run.outside) and kind in {"local", "declare", "typeset"} and "g" not in flags
    for child, text in values:
        name = _declare(run, child, text, local=local, flags=flags if kind != "export" else f"{flags}x")
        value = child.child_by_field_name("value")
        if value is not None and expand.is_braced(value):  # `export A={a,b}` is `export A=a A=b`
            run.lose(name, node)
        if set(flags) & set("iul") and kind != "export":
            run.lose(name, node)
        if name and (kind == "export" or "x" in flags) and "f" not in flags:
            _export(run, name, off="n" in flags)
    return Status.YES


def _declare(run: Evaluator, child: Node, text: str | None, *, local: bool, flags: str) -> str:
    """Set what one operand of a declaration sets; its name."""
    found = re.match(r"[A-Za-z_]\w*", text_of(child))
    name = found[0] if found else ""
    if local:
        run.outside[-1].setdefault(
            name, Outside(run.state.variables.get(name), run.state.arrays.get(name, {}), certain=not run.assumed)
        )
        run.state.arrays.pop(name, None)
        run.state.variables.pop(name, None)
    if "A" in flags:
        run.state.associative.add(name)
    if text is not None and "[" not in text_of(child).partition("=")[0]:
        run.assign(name, text)
    elif child.type == "variable_assignment":
        assign(run, child)
    elif child.type != "variable_name":
        return _dynamic(run, child, export="x" in flags)
    elif "a" in flags.lower():
        run.state.arrays.setdefault(name, {})
    elif local:
        run.state.variables[name] = ""
    return name


def _keep(run: Evaluator, name: str) -> None:
    """What is set in front of a function stays behind it if the function exports or unsets it."""
    found = next((outside for outside in reversed(run.outside) if name in outside), {})
    if name in found and found[name].assigned:
        if run.assumed:
            found[name].certain = False
        else:
            del found[name]


def _export(run: Evaluator, name: str, *, off: bool) -> None:
    _keep(run, name)
    if off:
        run.state.exported.pop(name, None)
        return
    run.state.exported[name] = None
    if name not in run.state.variables and (given := run.value(name)) is not None:
        run.state.variables[name] = given


def _dynamic(run: Evaluator, node: Node, *, export: bool) -> str:
    """``export "NAME=$value"``, and ``export $(…)`` of several."""
    words = expand.fields(run, node)
    for word in words:
        if (found := assignment(word)) is not None:
            run.assign(*found)
            if export:
                _export(run, found[0], off=False)
        elif not is_known(word):
            run.script.notes.append(f"line {run.line(node)}: what {shown(written(node))} sets")
    last = assignment(words[-1]) if words else None
    return last[0] if last else words[-1] if words and re.fullmatch(r"\w+", words[-1]) else ""


def unset(run: Evaluator, node: Node) -> Status:
    """``unset NAME``."""
    words = [text_of(child) for child in statements(node)]
    for word in words:
        name = re.match(r"['\"]?(\w*)", word)
        if "-f" in words and name:
            run.state.functions.pop(name[1], None)
        elif "[" in word and name:
            run.state.arrays[name[1]] = None
        else:
            _keep(run, word)
            if re.fullmatch(r"[A-Za-z_]\w*", word) and word not in {**run.state.variables, **run.state.arrays}:
                run.script.unset[word] = None
            run.state.variables.pop(word, None)
            run.state.arrays.pop(word, None)
            run.state.exported.pop(word, None)
    return Status.YES


def arithmetic_command(run: Evaluator, node: Node) -> Status:
    """``((…))``: a condition, or a variable that counts."""
    inner = re.sub(r"^\(\(|\)\)$", "", text_of(node)).strip()
    counted = re.fullmatch(r"(\w+)\s*(\+\+|--|[-+*/]?=)(?!=)\s*([^=,]*)", inner, re.DOTALL)
    if counted is None or set(counted[3]) & set("+-") & set(re.sub(r"(?<!\+)\+(?!\+)|(?<!-)-(?!-)", "", counted[3])):
        if arithmetic.lose_assigned(run, inner, node):
            return Status.MAYBE
        number = arithmetic.integer(run, inner, node)
        return Status.of(None if number is None else bool(number))
    name, sign, rest = counted.groups()
    right = {"++": f"{name} + 1", "--": f"{name} - 1", "=": rest}.get(sign, f"{name} {sign[0]} ({rest})")
    number = arithmetic.integer(run, right, node)
    before = arithmetic.integer(run, name) if sign in {"++", "--"} else number
    if number is None:
        run.lose(name, node)
    else:
        run.assign(name, str(number))
    return Status.of(None if before is None else bool(before))


def run(evaluator: Evaluator, node: Node, words: list[str], stdin: str | None) -> Status | None:
    """Do what a command of the shell, a function or a script of the text does; None for every other command."""
    while words[:1] == ["time"]:  # a word of the shell, not a program
        words = words[2:] if words[1:2] == ["-p"] else words[1:]
    at = next((index for index, word in enumerate(words) if assignment(word) is None), len(words))
    name, rest = (words[at], words[at + 1 :]) if at < len(words) else ("", [])
    assigned = [found for word in words[:at] if (found := assignment(word))]
    if name in evaluator.state.functions:
        return scripts.called(evaluator, node, name, rest, assigned)
    if name in _FLOWS:
        if name in {"break", "continue"} and rest[:1] not in ([], ["1"]):
            line = evaluator.line(node)
            raise UsageError(
                f"{evaluator.where}:{line}: `{name} {rest[0]}` is not followed", hint="copy the command out of it"
            )
        return evaluator.ended(node, name, _given(evaluator, rest))
    if name in _BUILTINS:
        with scripts.before(evaluator, node, assigned) if name in _TEXTS else contextlib.nullcontext():
            return _BUILTINS[name](evaluator, node, rest)
    plain = wrappers.unwrapped(words, evaluator.state.environment, lambda rest: scripts.is_program(evaluator, rest))
    script = scripts.program(evaluator, plain.words[0], plain.words[1:], stdin) if plain.words else None
    if script is None:
        return None
    evaluator.script.notes += [f"{shown(each)}: left out" for each in plain.left_out]
    environment = {each: value for each, value in plain.env.items() if value is not None}
    arguments = None if evaluator.unsure else script.arguments
    with evaluator.process(evaluator.state.child(arguments, environment, script.options)):
        status = scripts.run_text(evaluator, node, script.text)
    if name == "exec":
        evaluator.state.flow = "exit"
    return status


def _given(evaluator: Evaluator, rest: list[str]) -> Status:
    """The status behind ``exit`` and ``return``."""
    if rest and not re.fullmatch(r"[0-9]{1,18}", rest[0]):
        return Status.MAYBE
    return evaluator.last if not rest else Status.of(int(rest[0]) % 256 == 0)


def _set(evaluator: Evaluator, _: Node, rest: list[str]) -> Status:
    options, operands = with_options(evaluator.state.options, rest)
    evaluator.state.options = options
    if operands is not None:
        evaluator.state.arguments = None if evaluator.unsure else operands
    return Status.YES


def _shopt(evaluator: Evaluator, _: Node, rest: list[str]) -> None:
    """Note ``nocasematch``; for the rest it is a program like others."""
    name = frozenset({"nocasematch"} & {*rest})
    options = evaluator.state.options
    evaluator.state.options = options | name if "-s" in rest else options - name if "-u" in rest else options


def _shift(evaluator: Evaluator, _: Node, rest: list[str]) -> Status:
    count = int(rest[0]) if rest and re.fullmatch(r"\d{1,6}", rest[0]) else 1
    before = evaluator.state.arguments
    if before is None or (rest and not is_known(rest[0])):
        evaluator.state.arguments = None
        return Status.MAYBE
    if count > len(before):
        return Status.NO
    evaluator.state.arguments = before[count:]
    return Status.YES


def _read(evaluator: Evaluator, node: Node, rest: list[str]) -> Status:
    """Variables and arrays that get their values from elsewhere."""
    for word in rest:
        if re.fullmatch(r"[A-Za-z_]\w*", word):
            evaluator.script.undecided[word] = Assumed(evaluator.line(node), shown(written(node).partition("\n")[0]))
            evaluator.state.arrays[word] = None
            evaluator.script.asked[word] = None
            if (given := evaluator.defined(word)) is not None:
                evaluator.state.arrays.pop(word)
                evaluator.state.variables[word] = given
    return Status.MAYBE


def _let(evaluator: Evaluator, node: Node, rest: list[str]) -> Status:
    arithmetic.lose_assigned(evaluator, " ".join(rest), node)
    return Status.MAYBE


def _printf(evaluator: Evaluator, node: Node, rest: list[str]) -> Status | None:
    if rest[:1] != ["-v"] or len(rest) < 2:
        return None
    evaluator.lose(rest[1], node)
    return Status.YES


def _getopts(evaluator: Evaluator, node: Node, rest: list[str]) -> Status:
    return Status.NO if evaluator.state.arguments == [] else _read(evaluator, node, rest)


def _source(evaluator: Evaluator, node: Node, rest: list[str]) -> Status | None:
    name = evaluator.state.path(rest[0]) if rest else ""
    if name not in evaluator.state.files:
        return None
    outside = evaluator.state.arguments
    if rest[1:]:
        evaluator.state.arguments = rest[1:]
    evaluator.script.followed.add(name)
    status = scripts.run_text(evaluator, node, scripts.content(evaluator, name))
    if rest[1:]:
        evaluator.state.arguments = outside
    return status


def _eval(evaluator: Evaluator, node: Node, rest: list[str]) -> Status:
    return scripts.run_text(evaluator, node, " ".join(rest))


def _test(evaluator: Evaluator, _: Node, rest: list[str]) -> Status:
    return Status.of(conditions.of_words(evaluator, rest[:-1] if rest[-1:] == ["]"] else rest))


def _false(*_: object) -> Status:
    return Status.NO


_BUILTINS: dict[str, Callable[[Evaluator, Node, list[str]], Status | None]] = {
    "test": _test, "[": _test, "false": _false, "set": _set, "shift": _shift, "read": _read, "mapfile": _read,
    "readarray": _read, "getopts": _getopts, "eval": _eval, "let": _let, "printf": _printf,
    "source": _source, ".": _source, "shopt": _shopt,
}  # fmt: skip
_TEXTS = frozenset({"eval", "source", "."})
