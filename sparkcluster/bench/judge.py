"""Interprets figures: which are invalid, whether two runs differ, whether a run is as fast as published.

Pure.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkcluster.bench.profiles import TABLES, knee
from sparkcluster.bench.record import Measured, Record
from sparkcluster.checks.gpu import short_of_power
from sparkcluster.errors import UsageError
from sparkcluster.inspect import playbooks
from sparkcluster.inspect.vitals import Sample
from sparkcluster.spec.playbook import Playbook

Samples = Mapping[str, Sequence[Sample]]
INVALID = {"cached", "miscounted"}
"""Marks of a cell whose figures are wrong; the other marks say why figures may be low."""
METRICS: Mapping[str, Sequence[str]] = TABLES["metrics"]
FIGURES: Mapping[str, Sequence[str]] = {**METRICS, **TABLES["counted"]}
"""Measured metrics, and those that the engine counts: title, unit, and format of the median."""
THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, thermal slowdown by software and by hardware, power brake (nvmlClocksEventReasons in nvml.h)."""
CHANCE = 0.05
"""Share of prompt tokens that may be cached by chance: two of many prompts begin at the same word of the book."""
LEAST_BAND, SLOWER = 0.02, 0.9
"""A change below 2 % is always noise; below 0.9 of a published figure a run counts as slower."""
CELL = ("prompt", "answer", "depth", "concurrency", "phase", "metric")
"""Fields that identify an element of ``compare``."""


def figures(requests: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """``Measured.figures`` of one phase of a cell.

    Tokens come in chunks: those of the first chunk count for prefill, not decode. Nothing is subtracted from times.

    Args:
        requests: ``request`` events of ``bench.client``, of complete passes; without tokens for an embedding model.
    """
    found: defaultdict[str, list[Any]] = defaultdict(list)

    def add(name: str, amount: float, seconds: float) -> None:
        if amount > 0 and seconds > 0:
            found[name].append(amount / seconds)

    for run in sorted({each["run"] for each in requests}):
        own = [each for each in requests if each["run"] == run]
        start, last = min(each["start_s"] for each in own), max(each["last_s"] for each in own)
        if not any(each["tokens"] for each in own):
            add("texts", len(own), last - start)
            continue
        firsts, decoded = [each["first_s"] for each in own], [each["tokens"] - each["first_tokens"] for each in own]
        add("prefill", sum(each["prompt_tokens"] for each in own), max(firsts) - start)
        add("decode", sum(decoded), last - min(firsts))
        for each, tokens in zip(own, decoded, strict=True):
            add("decode_user", tokens, each["last_s"] - each["first_s"])
            found["ttft_s"].append(each["first_s"] - each["start_s"])
            found["prompt_tokens"].append(each["prompt_tokens"])
            found["answer_tokens"].append(each["tokens"])
    return dict(found)


def marks(
    measured: Measured, samples: Samples, *, runs: int, caching: bool, template_tokens: int, busy: bool
) -> list[str]:
    """The marks of a cell (docs/bench.md); marks in ``INVALID`` make it invalid.

    Args:
        measured: the cell without its marks; its engine's counters begin after the warm-up pass.
        samples: of every node, by the clock of the cell; samples of other cells are ignored.
        runs: measured passes.
        caching: whether the cell sends its context first, to have it cached.
        template_tokens: tokens of the chat template, with which every prompt begins.
        busy: whether other requests were in flight when the run began.
    """
    requests, prompt = runs * measured.concurrency, measured.prompt + (0 if caching else measured.depth)
    hits, generated = (measured.engine.get(name) or 0 for name in ("hits", "generated"))
    prompts, answers = (measured.figures.get(name, []) for name in ("prompt_tokens", "answer_tokens"))
    expected, texts = sum(answers) * (1 + caching), "texts" in measured.figures
    during = [
        [each for each in found if measured.began_s <= each.at_s <= measured.ended_s] for found in samples.values()
    ]
    every = list(itertools.chain(*during))
    ends = [(found[0], found[-1]) for found in during if found[1:]]
    moved = [last.rdma_bytes - (first.rdma_bytes or 0) for first, last in ends if last.rdma_bytes is not None]
    wrong = {
        "miscounted": answers != [measured.answer] * (0 if texts else requests)
        or any(tokens < 0.8 * prompt for tokens in prompts),
        "cached": not texts and not caching and hits > requests * template_tokens + CHANCE * sum(prompts),
        "unchecked": measured.engine.get("generated") is None,
        "throttled": any((each.throttle or 0) & THROTTLED for each in every)
        or any(2 * sum(map(short_of_power, found)) > len(found) for found in during),
        "disturbed": busy
        or generated > max(1.05 * (expected + measured.concurrency), expected + 16)
        or any(each.count("running") > measured.concurrency for each in every),
        "swapped": any(last.swapped_pages > first.swapped_pages for first, last in ends),
        "no-rdma": len(samples) > 1 and max(moved, default=1) == 0,
    }
    return [mark for mark, is_so in wrong.items() if is_so]


def valid(record: Record) -> list[Measured]:
    """The cells without ``INVALID`` marks, by depth and concurrency."""
    found = [each for each in record.cells if not INVALID & set(each.marks)]
    return sorted(found, key=lambda each: (each.depth, each.concurrency))


def alone(record: Record) -> Measured | None:
    """The valid cell of one request without context; if there are several, the one with the longest answer."""
    found = [each for each in valid(record) if (each.depth, each.concurrency) == (0, 1)]
    return max(found, key=lambda each: each.answer, default=None)


def by_pass(measured: Measured, name: str) -> list[float]:
    """A value per pass for one of ``METRICS``, the median for per-request metrics; or the engine's total count.

    With one request at a time there is no separate speed per user.
    """
    if name not in METRICS:
        return [each for each in [measured.engine.get(name)] if each is not None]
    size = measured.concurrency if name in {"ttft_s", "decode_user"} else 1
    values = [] if name == "decode_user" and size == 1 else measured.figures.get(name, [])
    return [statistics.median(values[at : at + size]) for at in range(0, len(values), size)]


def figure(measured: Measured | None, name: str) -> str:
    """The median of its passes as text; empty without passes."""
    values = by_pass(measured, name) if measured else []
    return FIGURES[name][2].format(statistics.median(values)) if values else ""


def compare(a: Sequence[Record], b: Sequence[Record]) -> dict[str, Any]:
    """The document of ``bench compare``: whether the runs ``b`` are better than ``a``; runs of one side are pooled.

    Returns the names of both sides as ``a`` and ``b``, and ``cells``, an element for each metric of each cell that both
    have: its identifying fields, the values of its passes as ``a`` and ``b``, the ``change`` relative to A's median,
    the ``band`` by which passes of one side differ, and as ``verdict`` whether B is ``better``, ``worse``, or all is
    ``noise``.

    Raises:
        UsageError: they cannot be compared.
    """
    before, after, cells = _passes(a), _passes(b), []
    for key, values in before.items():
        sides = values, after.get(key, [])
        if min(map(len, sides)) > 1:
            change = statistics.median(sides[1]) / statistics.median(sides[0]) - 1
            band = max(LEAST_BAND, *((max(side) - min(side)) / statistics.median(side) for side in sides))
            better = "better" if (change > 0) == (key[-1] != "ttft_s") else "worse"
            judged = {"change": change, "band": band, "verdict": "noise" if abs(change) <= band else better}
            cells.append(dict(zip(CELL, key[1:], strict=True)) | {"a": sides[0], "b": sides[1]} | judged)
    if not cells:
        text = f"{a[0].id} and {b[0].id} have no valid cell of several passes in common"
        raise UsageError(text, hint="measure both with the same --profile and --through, and --runs 2 or more")
    marks = sorted({mark for record in (*a, *b) for each in record.cells for mark in each.marks})
    return {"a": [each.id for each in a], "b": [each.id for each in b], "marks": marks, "cells": cells}


def _passes(records: Sequence[Record]) -> dict[tuple[Any, ...], list[float]]:
    """Values of each metric of each valid cell, by the fields that must be equal to compare them.

    In profile ``arena`` a context is cached before its prompt.
    """
    found: defaultdict[tuple[Any, ...], list[float]] = defaultdict(list)
    for record, metric in itertools.product(records, METRICS):
        same = (record.kind, record.client.get("path"), record.profile == "arena")
        for each in valid(record):
            key = (same, *(getattr(each, name) for name in CELL[:-1]), metric)
            found[key] += by_pass(each, metric)
    return found


def expectation(record: Record, playbook: Playbook | None) -> str:
    """A sentence that compares single-request decode speed with the first decode figure of ``playbook``.

    It is as expected, slower (with the marks that may explain it), or not comparable.
    """
    cell, published = alone(record), playbooks.decode(playbook) if playbook else None
    if not playbook or not published:
        return f"not comparable: playbook {record.playbook} has no published decode speed"
    changed = record.selected.keys() - {"playbook"} or record.args != dict(playbook.args)
    if changed or not playbook.serves_on(len(record.nodes)):
        return "not comparable: the playbook was changed"
    if not cell or "decode" not in cell.figures:
        return "not comparable: no valid cell has one request without context"
    measured = statistics.median(cell.figures["decode"])
    text = f"decode {measured:.1f} tokens/s, published {playbooks.text(published)}"
    if measured < SLOWER * min(playbooks.values(published)):
        return f"slower: {text}; {', '.join(cell.marks) or 'the samples show no reason'}"
    return f"as expected: {text}"


def table(record: Record, names: Iterable[str] = METRICS) -> tuple[list[str], list[list[str]], str]:
    """All cells: titles, rows of texts, and the legend; empty columns are skipped.

    The bar shows DECODE; GUIDE has the published prefill, decode and TTFT of the scenarios of profile ``guide``.
    """
    most = max((statistics.median(by_pass(each, "decode") or [0.0]) for each in record.cells), default=0) or 1
    titles = {name: (title.upper(), unit) for name, (title, unit, _) in FIGURES.items()}
    rows = [
        {
            "PROMPT": f"{each.prompt:,}/{each.answer}" if each.phase == "prompt" else each.phase,
            "DEPTH": f"{each.depth:,}",
            "CONC": str(each.concurrency),
            "": "█" * round(8 * statistics.median(by_pass(each, "decode") or [0.0]) / most),
            **{titles[name][0]: figure(each, name) for name in names},
            "GUIDE": TABLES["published"].get(f"{each.prompt}/{each.answer}", ""),
            "MARKS": ", ".join(each.marks),
        }
        for each in sorted(record.cells, key=lambda each: (each.depth, each.concurrency))
    ]
    shown = [name for name in (rows or [{}])[0] if {row[name] for row in rows} - {"", "0", "1"}]
    known = [*titles.values(), *TABLES["titles"].items()]
    legend = "; ".join(["medians", *(f"{title}: {unit}" for title, unit in known if title in shown)])
    return shown, [[row[name] for name in shown] for row in rows], legend


def notes(record: Record, playbook: Playbook | None) -> list[str]:
    """Notes about a run: its A/B runs, the knee of a sweep, skipped cells, an early end, and ``expectation``."""
    found = [f"A, B and A again: {', '.join(record.pair)}"] if record.pair else []
    if record.profile == "sweep":
        found += [f"knee: concurrency {most} at depth {depth:,}" for depth, most in knee(valid(record)).items()]
    early = {"complete": "", "time": "--minutes exceeded"}.get(record.ended, record.ended)
    found += [f"skipped: {text}" for text in record.skipped] + ([f"ended early: {early}"] if early else [])
    return [*found, expectation(record, playbook)]
