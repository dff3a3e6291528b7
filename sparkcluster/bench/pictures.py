"""A run as one shareable HTML file: no script, nothing from the network, light and dark.

matplotlib draws each picture as SVG, in the style of ``pictures.mplstyle``; the SVG is inserted into ``report.html``.
"""

# ruff: noqa: PLC0415 - only the extra bench installs these
from __future__ import annotations

import contextlib
import datetime as dt
import io
import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from sparkcluster.bench import judge
from sparkcluster.bench.profiles import TABLES
from sparkcluster.bench.record import Measured, Record
from sparkcluster.errors import UsageError
from sparkcluster.spec.playbook import Playbook

_SIDES = {"A": -0.1, "B": 0.1}

Lines = Mapping[str, Sequence[tuple[float, Sequence[float]]]]
"""By label, the x of each point and the values whose median is y."""
Plot = tuple[str, str, Lines, dict[str, Any], dict[str, Any]]
"""A picture: title, how to read it, lines, axes for matplotlib, and line styles that override the style file."""


def html(record: Record, pair: Sequence[Record] = (), playbook: Playbook | None = None) -> str:
    """The page of a run; ``pair`` are its A/B runs in any order, ``playbook`` has the published figures."""
    import jinja2
    from matplotlib import rc_context

    compared, notes = [], judge.notes(record, playbook)
    b = [each for each in pair if each.change]
    with contextlib.suppress(UsageError, IndexError):  # no valid cell, or no A/B test
        compared = judge.compare([each for each in pair if not each.change], b)["cells"]
        notes.append(f"B has {b[0].change}; noise: the passes of A or of B differ as much as A and B")
    room = files("sparkcluster.bench")
    plots = [*_compared(compared), *_speeds(judge.valid(record)), *_timelines(record)]
    with rc_context(fname=str(room / "pictures.mplstyle")):
        pictures = [
            (title, about, _svg(title, lines, axes, style))
            for title, about, lines, axes, style in plots
            if len({x for line in lines.values() for x, _ in line}) > 1
        ]
    shown = {"record": record, "at": dt.datetime.fromtimestamp(record.at, tz=dt.UTC), "judge": judge}
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string((room / "report.html").read_text())
    return template.render(shown, pictures=pictures, notes=notes)


def _compared(cells: Sequence[Mapping[str, Any]]) -> Iterator[Plot]:
    """A against B, by metric."""
    for metric, (title, unit, _) in judge.METRICS.items():
        own = [each for each in cells if each["metric"] == metric]
        lines = {side: [(at + by, each[side.lower()]) for at, each in enumerate(own)] for side, by in _SIDES.items()}
        labels = [f"{one['depth']:,} · {one['concurrency']}\n{one['change']:+z.0%} {one['verdict']}" for one in own]
        axes = {"xticks": range(len(own)), "xticklabels": labels, "xlim": (-0.5, len(own) - 0.5)}
        yield f"{title}: A against B", f"{unit} by depth · concurrency", lines, axes, {"linestyle": ""}


def _speeds(cells: Sequence[Measured]) -> Iterator[Plot]:
    """Each metric by depth and by concurrency, and aggregate decode speed against per-request speed."""
    cells = [each for each in cells if each.phase == "prompt"]
    axes = ("depth", "concurrency")
    for name, axis in itertools.product((*judge.METRICS, "acceptance"), axes):
        title, unit, _ = judge.FIGURES[name]
        found = [(each, getattr(each, axis), judge.by_pass(each, name)) for each in cells]
        yield f"{title} by {axis}", unit, _lines(found, axes[axis == "depth"]), {"xlabel": axis}, {}
    cells = [each for each in cells if "decode_user" in each.figures]
    if any(each.concurrency > 1 for each in cells):
        found = [(each, statistics.median(each.figures["decode_user"]), each.figures["decode"]) for each in cells]
        about, each_s = "tokens/s; more concurrent requests are further left", {"xlabel": "tokens/s of each"}
        yield "Decode of all against each request", about, _lines(found, "depth"), each_s, {}


def _lines(found: Sequence[tuple[Measured, float, list[float]]], by: str) -> Lines:
    """Up to three lines, for the least, the middle and the largest value of ``by``, with their x and values of y."""
    values = sorted({getattr(each, by) for each, _, y in found if y})
    few = dict.fromkeys(values[at * (len(values) - 1) // 2] for at in range(3 if values else 0))
    return {f"{by} {value:,}": [(x, y) for each, x, y in found if y and getattr(each, by) == value] for value in few}


def _timelines(record: Record) -> Iterator[Plot]:
    """The samples of every node over time."""
    for name, (title, unit) in TABLES["sampled"].items():
        lines = {
            node: [(at_s / 60, [y]) for at_s, y in zip(found["at_s"], found[name], strict=True) if y is not None]
            for node, found in record.samples.items()
        }
        yield f"{title} over the run", unit, lines, {"xlabel": "minutes"}, {"marker": "", "linewidth": 1.2}


def _svg(title: str, lines: Lines, axes: Mapping[str, Any], style: Mapping[str, Any]) -> str:
    """Lines with their spread, from 0, in the colours of the page."""
    from matplotlib import figure, rc_context

    drawing = figure.Figure()
    plot = drawing.add_subplot()
    for label, points in lines.items():
        spread = [(x, statistics.median(y), min(y), max(y)) for x, y in points]
        ends = [[y - low for _, y, low, _ in spread], [high - y for _, y, _, high in spread]]
        x, middles, *_ = zip(*spread, strict=True)
        plot.errorbar(x, middles, ends if any(map(any, ends)) else None, label=label, **style)
    plot.set(ylim=(0, 1.04 * plot.get_ylim()[1]), **axes)
    plot.tick_params("x", rotation=90 * (len(axes.get("xticks", ())) > 3))
    drawing.legend(loc="outside upper left", ncols=4)
    file = io.StringIO()
    with rc_context({"svg.hashsalt": title}):  # makes its names unique on the page
        drawing.savefig(file, format="svg", transparent=True)
    _, tag, svg = file.getvalue().partition("<svg")
    svg = re.sub(r' id="[^"]*_\d+"|<metadata>.*?</metadata>| (?:width|height)="[\d.]+pt"', "", svg, flags=re.DOTALL)
    svg = re.sub(r"#00001(\d)", r"var(--s\1)", svg.replace("#000001", "currentColor"))
    return f'{tag} role="img" aria-label="{title}"{svg}'
