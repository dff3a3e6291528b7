"""Shows bench runs: as text on stdout, or as an HTML file."""

from __future__ import annotations

import datetime as dt
import importlib.util
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster import output_file
from sparkcluster.bench import judge, pictures
from sparkcluster.bench.record import Record, kept
from sparkcluster.cli.output import data, message, paint, table
from sparkcluster.errors import UsageError
from sparkcluster.report import count
from sparkcluster.spec.playbook import Playbook

_STYLES = {"better": "good", "worse": "bad"}


def show(found: Record, playbook: Playbook | None) -> None:
    """Show a run: its cells, notes, and the published figures of ``playbook``."""
    data(paint(found.model, "bold"), f"  on {', '.join(found.nodes)}; release {found.release}")
    data(f"profile {found.profile}, {count(found.runs, 'run')}, through the {found.client['path']}, {_at(found)} UTC")
    names, rows, legend = judge.table(found)
    table(names, rows)
    message(legend)
    for text in judge.notes(found, playbook):
        data(text)


def listed(found: Sequence[Record]) -> None:
    """List runs; DECODE is the speed of one request without context, in tokens/s."""
    rows = []
    for each in found:
        decode = judge.figure(judge.alone(each), "decode")
        rows.append(
            (each.id, _at(each), each.playbook, each.profile, decode, each.ended.partition(":")[0], each.change)
        )
    if rows:
        table(("RUN", "WHEN (UTC)", "PLAYBOOK", "PROFILE", "DECODE", "ENDED", "CHANGE"), rows)
    else:
        data("no runs on this machine; measure with: sparkcluster bench INVENTORY")


def compared(found: Mapping[str, Any]) -> None:
    """Compare A and B: for each cell and metric, whether B is better."""
    data(f"A: {', '.join(found['a'])}; B: {', '.join(found['b'])}")
    rows = []
    for each in found["cells"]:
        title, _, form = judge.METRICS[each["metric"]]
        prompt = f"{each['prompt']:,}/{each['answer']}" if each["phase"] == "prompt" else each["phase"]
        sides = [form.format(statistics.median(each[side])) for side in ("a", "b")]
        shares = f"{each['change']:+z.1%}", f"{each['band']:.1%}"
        verdict = paint(each["verdict"], _STYLES.get(each["verdict"], "dim"))
        rows.append((prompt, f"{each['depth']:,}", str(each["concurrency"]), title, *sides, *shares, verdict))
    table(("PROMPT", "DEPTH", "CONC", "METRIC", "A", "B", "CHANGE", "NOISE", "VERDICT"), rows)
    if found["marks"]:
        message(f"some cells are marked: {', '.join(found['marks'])}", kind="warning")
    shown = {each["metric"] for each in found["cells"]}
    message("; ".join(f"{title}: {unit}" for name, (title, unit, _) in judge.METRICS.items() if name in shown))


def page(found: Record, path: Path, playbook: Playbook | None = None) -> None:
    """Write ``found`` to ``path`` as HTML; for an A/B test with the comparison.

    Raises:
        UsageError: the file cannot be written, or matplotlib is not installed.
    """
    if not importlib.util.find_spec("matplotlib"):
        raise UsageError(
            "matplotlib and jinja2 are missing", hint="in the clone: uv tool install --reinstall '.[bench]'"
        )
    text = pictures.html(found, kept(found.pair)[0] if found.pair else [], playbook)
    output_file.write(path, lambda file: file.write(text.encode()))
    message(f"wrote {path}")


def _at(found: Record) -> str:
    return dt.datetime.fromtimestamp(found.at, tz=dt.UTC).strftime("%Y-%m-%d %H:%M")
