"""No expression of the package is slow: what nodes, engines and recipes say is searched in time proportional to it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import pkgutil
import random
import re
import string
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import sparkcluster
from sparkcluster import engines
from sparkcluster.engines.signature import plain
from sparkcluster.spec import secret_patterns

PACKAGE = Path(sparkcluster.__file__).parent
MODULES = [
    found.name
    for found in pkgutil.walk_packages([str(PACKAGE)], "sparkcluster.")
    # A node reads its own machine there, and the lab its own files.
    if not found.name.startswith(("sparkcluster.lab.", "sparkcluster.node."))
]
SOURCES = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))


Method = str


def written(module: Path) -> Iterator[tuple[str, int, Method]]:
    """Constant patterns in calls of ``re``, with the function that is called."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args:
            pattern = node.args[0]
            if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str | bytes):
                text = pattern.value
                method = ast.unparse(node.func).removeprefix("re.")
                yield (text if isinstance(text, str) else text.decode("latin-1")), 0, method


def held(value: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Compiled patterns in a value, and in what it holds."""
    if isinstance(value, re.Pattern):
        text = value.pattern if isinstance(value.pattern, str) else value.pattern.decode("latin-1")
        yield text, value.flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL)
    elif isinstance(value, Mapping) and depth < 3:
        for key, item in value.items():
            yield from held(key, depth + 1)
            yield from held(item, depth + 1)
    elif isinstance(value, tuple | list) and depth < 3:
        for item in value:
            yield from held(item, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and depth < 3:
        for field in dataclasses.fields(value):
            yield from held(getattr(value, field.name), depth + 1)


def anchored(name: str) -> bool:
    """Whether a compiled pattern is only matched at the beginning of texts, as far as its name tells."""
    methods = set(re.findall(rf"\b{name}\.(\w+)\(", SOURCES))
    return bool(methods) and methods <= {"match", "fullmatch"}


@functools.cache
def patterns() -> list[tuple[str, int, bool, str]]:
    """Every expression with its flags, whether it is searched for or matched at the beginning, and where it is."""
    found: dict[tuple[str, int, bool], str] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            for text, flags in held(value):
                found.setdefault((text, flags, anchored(name)), module_name)
        for text, flags, method in written(Path(str(module.__file__))):
            found.setdefault((text, flags, method in {"match", "fullmatch", "compile"}), module_name)
    for engine_name in engines.names():
        engine = engines.engine(engine_name)
        for signature in engine.signatures:
            found.setdefault((signature.pattern, 0, False), f"signature {signature.name}")
        for pattern in (*engine.phases, engine.ready, engine.dead, engine.stalled):
            if pattern:
                found.setdefault((pattern, 0, False), f"phase of {engine_name}")
    for pattern in secret_patterns._PATTERNS:
        found.setdefault((pattern, 0, False), "secret pattern")
    return [(*key, where) for key, where in found.items()]


def sample(tree: Any, chooser: random.Random) -> str:
    """A text that the parsed expression matches, or nearly."""
    out = ""
    for kind, value in tree:
        if kind is sre.LITERAL:
            out += chr(value)
        elif kind is sre.NOT_LITERAL:
            out += "a" if value != ord("a") else "b"
        elif kind is sre.ANY:
            out += "a"
        elif kind is sre.IN:
            out += member(value, chooser)
        elif kind in {sre.MAX_REPEAT, sre.MIN_REPEAT, getattr(sre, "POSSESSIVE_REPEAT", None)}:
            least, most, body = value
            out += sample(body, chooser) * max(least, 1 if most else 0)
        elif kind is sre.SUBPATTERN:
            out += sample(value[-1], chooser)
        elif kind is sre.BRANCH:
            out += sample(chooser.choice(value[1]), chooser)
        elif kind is getattr(sre, "ATOMIC_GROUP", None):
            out += sample(value, chooser)
    return out


COMMON = string.ascii_lowercase + string.digits + " -_=:/.,()[]'\"|A"


def member(items: Any, chooser: random.Random) -> str:
    """A character of a class."""
    candidates = [char for char in chooser.sample(COMMON, len(COMMON)) if in_class(items, char)]
    if candidates:
        return candidates[0]
    return next(
        chr(value if kind is sre.LITERAL else value[0]) for kind, value in items if kind in {sre.LITERAL, sre.RANGE}
    )


def in_class(items: Any, char: str) -> bool:
    inside, code = False, ord(char)
    negated = items[0][0] is sre.NEGATE
    for kind, value in items:
        if kind is sre.LITERAL:
            inside |= code == value
        elif kind is sre.RANGE:
            inside |= value[0] <= code <= value[1]
        elif kind is sre.CATEGORY:
            name = str(value)
            plain = (
                char.isdigit()
                if "DIGIT" in name
                else char.isspace()
                if "SPACE" in name
                else char.isalnum() or char == "_"
            )
            inside |= plain != ("NOT" in name)
    return inside != negated


def repeats(tree: Any, chooser: random.Random, before: str = "") -> Iterator[tuple[str, str]]:
    """For each repetition of an expression, what leads to it, and what it repeats."""
    for at, (kind, value) in enumerate(tree):
        lead = before + sample(tree[:at], chooser)
        if kind in {sre.MAX_REPEAT, sre.MIN_REPEAT}:
            if value[1] > 8:
                yield lead, sample(value[2], chooser)
            yield from repeats(value[2], chooser, lead)
        elif kind is sre.SUBPATTERN:
            yield from repeats(value[-1], chooser, lead)
        elif kind is sre.BRANCH:
            for branch in value[1]:
                yield from repeats(branch, chooser, lead)


def attacks(pattern: str, flags: int) -> list[tuple[str, str, str]]:
    """Prefix, what is repeated, and suffix."""
    chooser = random.Random(pattern)
    tree = _parser.parse(pattern, flags)
    found: dict[tuple[str, str, str], None] = {}
    for _ in range(2):
        whole = sample(tree, chooser)
        places = list(repeats(tree, chooser))
        for lead, body in places:
            for suffix in ("", "\n!", "!"):
                found[lead, body, suffix] = None
            found["", lead + body, "!"] = None
            for char in (" ", "a", "-"):
                found[lead, char, "\x00"] = None
                found["", lead + char, "\x00"] = None
        if places:
            found["", whole, "!"] = None
            found["", whole[:-1], "!"] = None
            found["", whole + " ", "!"] = None
    return [attack for attack in found if attack[1]]


def seconds(compiled: re.Pattern[str], text: str, *, at_start: bool) -> float:
    """Processor time of one search."""
    begin = time.thread_time()
    (compiled.fullmatch if at_start else compiled.search)(text)
    return time.thread_time() - begin


def growth(compiled: re.Pattern[str], attack: tuple[str, str, str], *, at_start: bool) -> float:
    """How many times longer a search takes in a text of four times the size: 4 is proportional, 16 its square."""
    lead, body, suffix = attack
    tiny, short, long = (lead + body * (characters // len(body)) + suffix for characters in (22, SIZE, 4 * SIZE))
    if seconds(compiled, tiny, at_start=at_start) > 0.1 or seconds(compiled, short, at_start=at_start) > SLOW_S:
        return 99.0
    if seconds(compiled, long, at_start=at_start) < QUICK_S:
        return 1.0
    return min(
        seconds(compiled, long, at_start=at_start) / max(seconds(compiled, short, at_start=at_start), 1e-6)
        for _ in range(3)
    )


SIZE, QUICK_S, SLOW_S = 6000, 0.002, 0.5


@pytest.mark.parametrize("part", range(4))
def test_searching_takes_time_proportional_to_the_text(part: int) -> None:
    found = patterns()
    assert len(found) > 150
    slow = []
    for pattern, flags, at_start, where in found[part::4]:
        if where in TYPED:
            continue
        compiled = re.compile(pattern, flags)
        for attack in attacks(pattern, flags):
            if growth(compiled, attack, at_start=at_start) > 9:
                slow.append((where, pattern, attack))
                break
    assert not slow


def test_of_a_long_line_the_beginning_is_searched() -> None:
    assert plain(["x" * 1_000_000, "\x1b[31mred\x1b[0m"]) == ["x" * 4096, "red"]


# What argparse says of the operator's own command line.
TYPED = {"sparkcluster.cli.parser"}


def test_the_search_for_slow_patterns_finds_them() -> None:
    for pattern in (r"(a+)+$", r"TOKEN\s*(?:=|\s+x)", r"bind.*port: \d+.*in use", r"[\w-]*\w"):
        compiled = re.compile(pattern)
        assert any(growth(compiled, attack, at_start=False) > 9 for attack in attacks(pattern, 0)), pattern
