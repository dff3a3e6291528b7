"""What a run has measured, as it is kept on the machine where it was typed: one JSON document per run.

Beside it are llama-benchy's own JSON and CSV. A run is named CLUSTER-N, where N counts on this machine.
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
    """One phase of a cell that came to its end.

    Attributes:
        prompt, answer, depth, concurrency: of the cell, in tokens and requests at once.
        phase: ``prompt``, or ``context`` of a cell that sends its context first.
        began_s, ended_s: by the sampler's clock.
        figures: what was measured, by name, without those that there are none of. One per pass, of all its requests
            together, are ``prefill`` and ``decode`` (tokens/s), and of an embedding model ``texts`` (texts/s) alone;
            one per request are ``decode_user`` (tokens/s), ``ttft_s``, ``prompt_tokens`` and ``answer_tokens``.
        engine: what its counters say, by the names of ``inspect.signals.between``; all phases of a cell have the same.
        marks: what is wrong with it, in the words of ``bench.judge.marks``.
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
        kind: what the model is for, as ``chat``.
        release: its number.
        versions: of what was measured, by name, None where it is not known: ``plan_hash``, ``image`` as it is written,
            ``digest`` as any node can pull it, ``driver`` of the head's GPU, what the head reports of the engine,
            ``sparkcluster`` and ``llama_benchy``.
        nodes: of the group, the head first.
        args: of the engine, as the playbook that serves has them; ``selected`` is what the command line changed in it.
        client: ``host`` (the machine that measured) and ``path`` (``engine`` or ``gateway``).
        samples: by node, a list per field, all of one length: ``at_s``, ``available_gib``, ``power_w`` (of the
            GPU), ``system_w`` (of the Spark), ``sm_clock_mhz``, ``temperature_c``, ``throttle``, ``rdma_bytes`` and
            ``swapped_pages``.
        skipped: what was left out, a sentence each.
        ended: ``complete``, ``time``, ``interrupted``, ``failed: `` and why; ``running`` also of one that was killed.
        change: ``KEY=VALUE`` that tells B from A; with ``pair``, the runs of an A/B in the order they were measured.
        answers: greedy ones by prompt, of an A/B alone.
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
        """The document of ``--json``, which is also what is kept."""
        return dataclasses.asdict(self)


_RECORD, _NAMES = TypeAdapter(Record), "*-*[0-9].json"


def directory() -> Path:
    """Where runs are kept, below the user's state directory."""
    return state_home() / "bench"


def save(record: Record, beside: Iterable[Path] = ()) -> None:
    """Keep ``record`` as it is now; the first time it gets its name, which no other command takes from then on.

    ``beside`` are files to keep with it, as they are and under its name.

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
    """The run called ``run``.

    Raises:
        UsageError: there is none, or its file cannot be read.
    """
    known = {path.stem: path for path in directory().glob(_NAMES)}
    if run not in known:
        hint = did_you_mean(run, known, "sparkcluster bench list")
        raise UsageError(f"there is no run {run[:80]} on this machine", hint=hint)
    return _read(known[run])


def kept(names: Collection[str] = ()) -> tuple[list[Record], list[str]]:
    """The runs called ``names``, or all, newest first, and a sentence about each file that cannot be read."""
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
