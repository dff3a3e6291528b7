"""Registers the rows of ``rules.toml`` as rules; the head of that file explains its columns."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkcluster.checks.check import Seen
from sparkcluster.engines.vllm.rules.served import Served, percent, rule

_TABLE = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
REPORTS: Mapping[str, str] = _TABLE["reports"]


def _register(row: Mapping[str, Any]) -> None:
    def judge(served: Served) -> Iterator[Seen]:
        for case in row.get("cases", [row]):
            if all(_holds(served, *each) for each in case["when"].items()) and not any(
                _holds(served, *each) for each in case.get("unless", {}).items()
            ):
                yield _seen(served, case)
                return

    judge.__doc__ = row["why"]
    rule(row["code"], row["title"], severity=row.get("severity", "warning"), source=row["source"])(judge)


def _seen(served: Served, case: Mapping[str, Any]) -> Seen:
    at = case["at"] if isinstance(case["at"], str) else tuple(case["at"])
    value = served.values.get(str(at))
    share = percent(value) if isinstance(value, float | int) else ""
    summary, remedy = (case[each].format(value=value, share=share, served=served) for each in ("summary", "remedy"))
    sure = all(_holds(served, *each) for each in case.get("certain", {}).items())
    return served.say(at, summary, remedy, severity=case.get("severity") if sure else case["otherwise"])


def _holds(served: Served, key: str, wanted: Any) -> bool:
    """Whether one condition of a row is true."""
    if key in {"since", "until"}:
        return served.since(*map(int, wanted.split("."))) is (key == "since")
    if key == "model":
        return served.named(*wanted)
    if key in {"args", "env", "draft"}:
        named = {"args": served.values, "env": served.playbook.env, "draft": served.draft}[key]
        return all(_is(named.get(name), value) for name, value in wanted.items())
    found = getattr(served if hasattr(served, key) else served.playbook, key)
    return any(_is(each, wanted) for each in found) if isinstance(found, list) else _is(found, wanted)


def _is(found: Any, wanted: Any) -> bool:
    """Whether a value matches the value of a row, or one of its list."""
    if isinstance(wanted, list):
        return any(_is(found, each) for each in wanted)
    if isinstance(wanted, dict):
        return _is_within(found, **wanted)
    if isinstance(wanted, str):
        return fnmatch.fnmatchcase("" if found is None else str(found).lower(), wanted)
    if isinstance(wanted, bool):
        return found is not None and bool(found) is wanted
    return bool(found == wanted)


def _is_within(found: Any, above: float | None = None, least: float | None = None, most: float | None = None) -> bool:
    try:
        number = float("" if found is None or isinstance(found, bool) else found)
    except (TypeError, ValueError):
        return False
    return (above is None or number > above) and (least is None or number >= least) and (most is None or number <= most)


for _row in _TABLE["rules"]:
    _register(_row)
