"""The record of a run, kept on the machine where it was started: one JSON document per run.

llama-benchy's own JSON and CSV are next to it. A run is named CLUSTER-N, where N counts on this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from sparkcluster.answers import problem
from sparkcluster.errors import UsageError
from sparkcluster.output_file import state_home, write
from sparkcluster.suggest import did_you_mean


@dataclasses.dataclass
class Measured:
    """One measured phase of a cell.

    Attributes:
        prompt, answer, depth, concurrency: of the cell, in tokens and concurrent requests.
        phase: ``prompt``, or ``context`` for a cell that sends its context first.
        began_s, ended_s: by the sampler's clock.
        figures: the results by name, without empty ones. Per pass, for all its requests together: ``prefill`` and
            ``decode`` (tokens/s), or for an embedding model only ``texts`` (texts/s). Per request: ``decode_user``
            (tokens/s), ``ttft_s``, ``prompt_tokens`` and ``answer_tokens``.
        engine: the engine's counters, by the names of ``inspect.signals.between``; the same for all phases of a cell.
        marks: its faults, in the words of ``bench.judge.marks``.
    """

    prompt: int
    answer: int
    depth: int
    concurrency: int
    phase: str = "prompt"
    began_s: float = 0.0
    ended_s: float = 0.0
    figures: dict[str, list[int | float]] = dataclasses.field(default_factory=dict)
    engine: dict[str, float | None] = dataclasses.field(default_factory=dict)
    marks: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Record:
    """A run.

    Attributes:
        id: its name; empty before it is saved for the first time.
        at: when it began, in seconds since 1970.
        kind: kind of the model, for example ``chat``.
        release: its number.
        versions: by name, None if unknown: ``plan_hash``, ``image`` (as written), ``digest`` (as any node can pull it),
            ``driver`` of the head's GPU, the engine's versions as the head reports them, ``sparkcluster`` and
            ``llama_benchy``.
        nodes: of the group, the head first.
        args: engine arguments of the running playbook; ``selected`` holds the changes from the command line.
        client: ``host`` (the machine that measured) and ``path`` (``engine`` or ``gateway``).
        samples: by node, a list per field, all of the same length: ``at_s``, ``available_gib``, ``power_w`` (of the
            GPU), ``system_w`` (of the Spark), ``sm_clock_mhz``, ``temperature_c``, ``throttle``, ``rdma_bytes`` and
            ``swapped_pages``.
        skipped: skipped cells, a sentence each.
        ended: ``complete``, ``time``, ``interrupted``, or ``failed: `` and why; ``running`` also after a kill.
        change: ``KEY=VALUE`` of B in an A/B test; ``pair`` has the runs of the test in order.
        answers: greedy answers by prompt, only in an A/B test.
    """

    cluster: str
    model: str
    playbook: str
    profile: str
    runs: int
    kind: str
    group: str
    nodes: list[str]
    id: str = ""
    version: Literal[2] = 2
    at: float = 0.0
    release: int = 0
    versions: dict[str, str | None] = dataclasses.field(default_factory=dict)
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    client: dict[str, Any] = dataclasses.field(default_factory=dict)
    cells: list[Measured] = dataclasses.field(default_factory=list)
    samples: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    skipped: list[str] = dataclasses.field(default_factory=list)
    ended: str = "running"
    change: str = ""
    pair: list[str] = dataclasses.field(default_factory=list)
    answers: dict[str, str] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The document of ``--json``, which is also the saved document."""
        return dataclasses.asdict(self)


_RECORD, _NAMES = TypeAdapter(Record), "*-*[0-9].json"


def directory() -> Path:
    """The directory of runs, below the user's state directory."""
    return state_home() / "bench"


def save(record: Record, beside: Iterable[Path] = ()) -> None:
    """Save ``record``; the first time it gets a name that no other command can take.

    ``beside`` are files to copy next to it, under its name.

    Raises:
        UsageError: it cannot be written.
    """
    folder = directory()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    numbers = itertools.count(1)
    while not record.id:
        name = f"{record.cluster}-{next(numbers)}"
        with contextlib.suppress(FileExistsError):
            (folder / f"{name}.json").touch(exist_ok=False)
            record.id = name

    files = {"json": _RECORD.dump_json(record, indent=1), **{each.name: each.read_bytes() for each in beside}}
    for name, content in files.items():
        write(folder / f"{record.id}.{name}", operator.methodcaller("write", content))


def load(run: str) -> Record:
    """The run named ``run``.

    Raises:
        UsageError: there is none, or its file cannot be read.
    """
    known = {path.stem: path for path in directory().glob(_NAMES)}
    if run not in known:
        hint = did_you_mean(run, known, "sparkcluster bench list")
        raise UsageError(f"there is no run {run[:80]} on this machine", hint=hint)
    return _read(known[run])


def kept(names: Collection[str] = ()) -> tuple[list[Record], list[str]]:
    """The runs named ``names``, or all, newest first; and a sentence about each unreadable file."""
    records, notes = [], []
    for path in directory().glob(_NAMES):
        try:
            records += [_read(path)] if not names or path.stem in names else []
        except UsageError as error:
            notes.append(error.message)
    return sorted(records, key=lambda record: record.at, reverse=True), notes


def _read(path: Path) -> Record:
    try:
        return _RECORD.validate_json(path.read_bytes())
    except ValidationError as error:
        raise UsageError(f"{path} cannot be read: {problem(error)}", hint=f"rm {path}") from None
