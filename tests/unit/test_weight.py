"""Each room stays within its limit in docs/architecture.md: lines of code, without blank lines, comments and docstrings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
TEXTS = {".sh", ".bash", ".zsh", ".fish", ".html"}


def lines_of_code(path: Path) -> int:
    text = path.read_text()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else ():
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                dropped.update(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and at not in dropped for at, line in lines)


KNOWS_VLLM = ("engines/", "importer/", "lab/")
MODULES_ABOUT_VLLM = 8


def test_few_modules_outside_its_directory_mention_vllm() -> None:
    """Code for vLLM belongs behind ``engines/base.py``; other code says "the engine"."""
    sources = [path for path in (PROJECT / "sparkcluster").rglob("*.py") if "vllm" in path.read_text().lower()]
    names = [str(path.relative_to(PROJECT / "sparkcluster")) for path in sources]
    found = sorted(name for name in names if not name.startswith(KNOWS_VLLM))
    assert len(found) <= MODULES_ABOUT_VLLM, found


def test_rooms_stay_within_their_limits() -> None:
    """Only a feature may raise the limit of its room, by its own lines and in the same commit."""
    rows = re.findall(
        r"^\| ([^|]+) \|[^|]*\|[^|]*\| ([\d,]+) \|$", (PROJECT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    bounds = {names: int(bound.replace(",", "")) for names, bound in rows}
    weighed: dict[str, int] = dict.fromkeys(bounds, 0)
    for path in (PROJECT / "sparkcluster").rglob("*"):
        if path.suffix not in TEXTS | {".py"}:
            continue
        parts = path.relative_to(PROJECT / "sparkcluster").parts
        if parts[0].startswith("__"):
            continue  # the version, and `python -m`
        room = f"`{parts[0]}/`" if len(parts) > 1 else f"`{parts[0]}`"
        (row,) = [names for names in bounds if room in names]
        weighed[row] += lines_of_code(path)
    assert {names: lines for names, lines in weighed.items() if lines > bounds[names]} == {}
