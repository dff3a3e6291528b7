"""No regular expression of the package is slow: text of nodes, engines and recipes is searched in linear time."""

from __future__ import annotations

import ast
import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import sparkcluster
from sparkcluster import engines
from sparkcluster.engines.signature import plain
from sparkcluster.spec import secret_patterns

PACKAGE = Path(sparkcluster.__file__).parent
# Trusted input: a node's own machine, the lab's files, and the operator's command line.
OWN = ("node/", "lab/", "cli/parser.py")


def expressions() -> dict[str, tuple[str, bool]]:
    """Every constant regular expression of the package and its engines, its place, and whether it is searched."""
    found: dict[str, tuple[str, bool]] = {}
    for path in PACKAGE.rglob("*.py"):
        place, source = str(path.relative_to(PACKAGE)), path.read_text()
        for call in () if place.startswith(OWN) else ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("re.") and call.args:
                used = [ast.unparse(call.func).removeprefix("re.")]
                if used == ["compile"]:
                    name = re.search(rf"(\w+) = {re.escape(ast.get_source_segment(source, call) or used[0])}", source)
                    used = re.findall(rf"\b{name[1]}\.(\w+)\(", source) if name else used
                with contextlib.suppress(ValueError):
                    text = ast.literal_eval(call.args[0])
                    text = text if isinstance(text, str) else text.decode("latin-1")
                    found[text] = place, not set(used) <= {"match", "fullmatch"}
    for name in engines.names():
        engine = engines.engine(name)
        rows = (*engine.signatures, *engine.phases, *engine.culprits, *filter(None, [engine.footprint]))
        texts = [*(each.pattern for each in rows), engine.ready, engine.dead]
        found |= {text: (name, True) for text in texts if text}
    return found | dict.fromkeys(secret_patterns.PATTERNS, ("spec/secret_patterns.py", True))


def attacks(pattern: str) -> Iterator[tuple[str, str]]:
    """Repetitions of an expression's literal words, and following text."""
    words = re.sub(r"\\.|\(\?\W|\[[^]]*\]|[^\w :/=,.-]", " ", pattern).replace(".", " ")
    ends = {0, *(match.end() for match in re.finditer(r"\S+", words))}
    for lead in {re.sub(" +", between, words[:end]) for end in ends for between in (" ", "")}:
        for body in (" ", "a", "1", "-", f"{lead} "):
            yield lead, body


def slow(pattern: str, *, searched: bool = True) -> bool:
    """Whether ten times the text takes thirty times as long: 10 is linear, 100 quadratic."""
    compiled = re.compile(pattern)
    run = compiled.search if searched else compiled.fullmatch

    def seconds(lead: str, body: str, size: int) -> float:
        """CPU time of a search that fails at the end of the text."""
        text = lead + body * (size // len(body)) + "\x00"
        begin = time.thread_time()
        run(text)
        return time.thread_time() - begin

    for lead, body in attacks(pattern):
        for size in (24, 240, 2400, 24_000):
            took = seconds(lead, body, size)
            if took > 0.05 and all(took > 30 * seconds(lead, body, size // 10) for _ in range(3)):
                return True
    return False


def test_searching_takes_time_proportional_to_the_text() -> None:
    found = expressions()
    assert [(where, text) for text, (where, searched) in found.items() if slow(text, searched=searched)] == []


def test_the_search_for_slow_patterns_detects_them() -> None:
    for pattern in (r"(a+)+$", r"TOKEN\s*(?:=|\s+x)", r"bind.*port: \d+.*in use"):
        assert slow(pattern), pattern


def test_the_beginning_of_a_long_line_is_searched() -> None:
    assert plain(["x" * 1_000_000, "\x1b[31mred\x1b[0m"]) == ["x" * 4096, "red"]
