"""Published measurements on Sparks, compared with the predictions of ``fit``: tables of docs/internals/fit.md.

Figures that the source calls approximate (≈, +) are shown, but not judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from docgen import fit_weights
from sparkcluster.fit.config import ModelConfig, parse
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.source import GIB, SYSTEM_BYTES, spark
from sparkcluster.fit.verdict import Fit, fit
from sparkcluster.fit.weights import Weights, of_config

WITHIN = 0.10


QWEN = fit_weights.config("nvidia/Qwen3.6-35B-A3B-NVFP4")
NEMOTRON = fit_weights.config("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4")
QWEN_ENGINE = EngineSettings(
    65536, version=(0, 23), sequences=4, kv_dtype="fp8", prefix_caching=True, drafted=3, mtp_drafts=True
)
NEMOTRON_ENGINE = EngineSettings(8192, version=(0, 18), sequences=1, kv_dtype="fp8", eager=True)
QWEN_WEIGHTS = Weights(int(21.94 * GIB), int(21.94 * GIB), counted=True)
NEMOTRON_WEIGHTS = Weights(19 * 10**9, 19 * 10**9, counted=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One figure of a table.

    Attributes:
        where: the row.
        what: the column.
        measured: the figure, in ``unit``.
        about: whether the source calls it approximate.
        set_by: whether a constant of ``fit`` was fitted to this cell.
    """

    where: str
    what: str
    measured: float
    unit: str
    predicted: float
    about: bool = False
    set_by: bool = False

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return (self.predicted - self.measured) / abs(self.measured)

    @property
    def verdict(self) -> str:
        """Its cells in the table."""
        if self.about:
            return "about, not judged"
        return ("within" if abs(self.error) <= WITHIN else "OUT") + (
            ", a constant was set by it" if self.set_by else ""
        )


def qwen(utilization: float) -> Fit:
    config = parse(QWEN, "Qwen3.6-35B-A3B")
    return fit(config, QWEN_ENGINE, QWEN_WEIGHTS, spark(), utilization=utilization)


def nemotron(utilization: float, *, falls_back: bool = False) -> Fit:
    config = parse(NEMOTRON, "Nemotron-3-Nano-30B-A3B")
    engine = dataclasses.replace(NEMOTRON_ENGINE, falls_back=falls_back)
    return fit(config, engine, NEMOTRON_WEIGHTS, spark(), utilization=utilization)


def qwen_cells() -> Iterator[Cell]:
    """The start-up log and the table of the guide, for Qwen3.6-35B-A3B-NVFP4 with its built-in drafts (MTP)."""
    log = qwen(0.85)
    yield Cell("log at 0.85", "KV cache", 76.49, "GiB", log.pool_bytes / GIB, set_by=True)
    yield Cell("log at 0.85", "tokens", 4_843_965, "tokens", log.tokens)
    yield Cell("log at 0.85", "concurrency at 65,536", 73.91, "x", log.concurrency)
    pool = int(76.49 * GIB)
    yield Cell("log, from its own 76.49 GiB", "tokens", 4_843_965, "tokens", log.layout.tokens(pool))
    yield Cell("log, from its own 76.49 GiB", "concurrency at 65,536", 73.91, "x", log.layout.concurrency(pool))
    yield Cell("log, from its own 76.49 GiB", "bytes of a token", 16.6, "KiB", pool / log.layout.tokens(pool) / 1024)
    yield Cell("log at 0.85", "weights, estimated from the config", 21.94, "GiB", _weights(QWEN, drafts=True))
    table = ((0.85, 76, 4.8, 74), (0.5, 39, 2.4, 37), (0.4, 23, 1.4, 22))
    for utilization, gib, million, times in table:
        found = qwen(utilization)
        where = f"table at {utilization}"
        yield Cell(where, "KV cache", gib, "GiB", found.pool_bytes / GIB, about=True)
        yield Cell(where, "tokens", million, "million", found.tokens / 1e6, about=True)
        yield Cell(where, "concurrency at 64K", times, "x", found.concurrency, about=True)
    for utilization, freed in ((0.5, 45), (0.4, 58)):
        more = (log.budget_bytes - qwen(utilization).budget_bytes) / 1e9
        yield Cell(f"table at {utilization}", "freed against 0.85", freed, "GB", more, about=True)


def nemotron_cells() -> Iterator[Cell]:
    """The two tables of the NVFP4 guide; its GB are GiB, as 0.2 of 121.6 GiB being 24.3 shows."""
    rows = ((0.2, "Marlin, eager", 32.1, 4.2, 292), (0.3, "Marlin, CUDA graphs", 45.6, 15.9, 1100))
    for utilization, name, loaded, gib, thousand in (*rows, (0.9, "Marlin", 117.3, 89.4, 6200)):
        found, first = nemotron(utilization), utilization == 0.2
        where = f"{name}, {utilization}"
        yield Cell(where, "memory in use", loaded, "GiB", _used(found), set_by=first)
        yield Cell(where, "KV cache", gib, "GiB", found.pool_bytes / GIB, set_by=first)
        yield Cell(where, "tokens", thousand, "thousand", found.tokens / 1000)
        own = found.layout.tokens(int(gib * GIB)) / 1000
        yield Cell(f"{where}, from its own {gib} GiB", "tokens", thousand, "thousand", own)
    yield Cell("Marlin, 0.9", "requests of 8,192 tokens", 1247, "x", nemotron(0.9).concurrency)
    found = nemotron(0.2, falls_back=True)
    yield Cell("FlashInfer, 0.2", "memory in use", 39.0, "GiB", _used(found), set_by=True)
    yield Cell("FlashInfer, 0.2", "KV cache", 3.3, "GiB", found.pool_bytes / GIB, set_by=True)
    yield Cell("FlashInfer, 0.2", "tokens", 225, "thousand", found.tokens / 1000)
    own = found.layout.tokens(int(3.3 * GIB)) / 1000
    yield Cell("FlashInfer, 0.2, from its own 3.3 GiB", "tokens", 225, "thousand", own)
    yield Cell("NVIDIA's defaults, 0.9", "memory in use", 120, "GiB", _used(nemotron(0.9)), about=True)
    yield Cell("NVIDIA's defaults, 0.9", "KV cache", 90, "GiB", nemotron(0.9).pool_bytes / GIB, about=True)
    for utilization, allowed in (
        (0.01, 1.2),
        (0.05, 6.1),
        (0.15, 18.2),
        (0.2, 24.3),
        (0.3, 36.5),
        (0.5, 60.8),
        (0.9, 109.4),
    ):
        yield Cell(f"at {utilization}", "allowed", allowed, "GiB", nemotron(utilization).budget_bytes / GIB)
    for utilization, gib in ((0.05, -14.0), (0.15, -1.8)):
        yield Cell(f"at {utilization}", "KV cache", gib, "GiB", nemotron(utilization).pool_bytes / GIB)
    yield Cell("at 0.5", "KV cache", 40, "GiB", nemotron(0.5).pool_bytes / GIB, about=True)
    yield Cell("on disk", "weights, estimated from the config", 19, "GB", _weights(NEMOTRON) * GIB / 1e9)


def starts() -> list[tuple[float, bool, str]]:
    """Utilization, whether Nemotron started with it, and the verdict of ``fit``."""
    cases = ((0.01, False), (0.05, False), (0.15, False), (0.2, True), (0.3, True), (0.5, True), (0.9, True))
    return [(utilization, started, nemotron(utilization).verdict) for utilization, started in cases]


def _used(found: Fit) -> float:
    """Memory in use as ``/proc/meminfo`` would report it, in GiB."""
    return (SYSTEM_BYTES + found.host_bytes + found.budget_bytes) / GIB


def _weights(document: dict[str, Any], *, drafts: bool = False) -> float:
    config: ModelConfig = parse(document, "model")
    return of_config(config, drafts=drafts).rank_bytes / GIB


def table(cells: Callable[[], Iterator[Cell]]) -> str:
    """Cells as Markdown."""
    lines = ["| where | what | measured | `fit` | off by | |", "|---|---|---|---|---|---|"]
    for cell in cells():
        about = "≈ " if cell.about else ""
        measured, predicted = _number(cell.measured, cell.unit), _number(cell.predicted, cell.unit)
        lines.append(
            f"| {cell.where} | {cell.what} | {about}{measured} | {predicted} | {cell.error:+.1%} | {cell.verdict} |"
        )
    return "\n".join(lines)


def _number(value: float, unit: str) -> str:
    if unit in {"tokens", "thousand"}:
        return f"{value:,.0f} {unit}"
    return f"{value:,.2f}{'' if unit == 'x' else ' '}{unit}"
