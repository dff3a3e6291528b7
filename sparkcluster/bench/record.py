"""What a run has measured, as it is kept on the machine where it was typed: one JSON document per run.

Beside it are llama-benchy's own JSON and CSV. A run is named CLUSTER-N, where N counts on this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Mapping
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
        prefill, decode: tokens/s, one per pass, of all its requests together.
        decode_user: tokens/s, one per request.
        ttft_s, total_s, prompt_tokens, answer_tokens: one per request.
        texts: of an embedding model texts/s, one per pass; else empty.
        engine: what its counters say, by the names of ``inspect.vitals.between``: of one cell all phases have the same.
        marks: what is wrong with it, in the words of ``bench.judge.marks``.
    """

    prompt: int
    answer: int
    depth: int
    concurrency: int
    phase: str = "prompt"
    began_s: float = 0.0
    ended_s: float = 0.0
    prefill: list[float] = dataclasses.field(default_factory=list)
    decode: list[float] = dataclasses.field(default_factory=list)
    decode_user: list[float] = dataclasses.field(default_factory=list)
    ttft_s: list[float] = dataclasses.field(default_factory=list)
    total_s: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: list[int] = dataclasses.field(default_factory=list)
    answer_tokens: list[int] = dataclasses.field(default_factory=list)
    texts: list[float] = dataclasses.field(default_factory=list)
    engine: dict[str, float | None] = dataclasses.field(default_factory=dict)
    marks: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Record:
    """A run.

    Attributes:
        id: its name; empty before it is saved for the first time.
        at: when it began, in seconds since 1970.
        kind: what the model is for, as ``chat``.
        release: its number, with ``plan_hash``; ``image`` as it is written, ``digest`` as any node can pull it.
        versions: of ``sparkcluster``, ``llama_benchy`` and what the head reports of the engine.
        driver: of the head's GPU; empty where it is not known.
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
    tensor_parallel: int
    id: str = ""
    version: Literal[1] = 1
    at: float = 0.0
    release: int = 0
    plan_hash: str = ""
    image: str | None = None
    digest: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    driver: str = ""
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


_RECORD = TypeAdapter(Record)


def directory() -> Path:
    """Where runs are kept, below the user's state directory."""
    return state_home() / "bench"


def save(record: Record, found: Mapping[str, Any] | None = None) -> None:
    """Keep ``record`` as it is now; the first time it gets its name, which no other command takes from then on.

    ``found`` is a ``cell`` document of ``bench.client``: its ``report`` and ``csv`` are kept beside as they are.

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

    def put(ending: str, text: str) -> None:
        write(folder / f"{record.id}{ending}", lambda file: file.write(text.encode()))

    put(".json", json.dumps(record.as_json(), indent=1))
    if found:
        put(".llama-benchy.json", json.dumps(found["report"], indent=2))
        put(".csv", found["csv"])


def load(run: str) -> Record:
    """The run called ``run``.

    Raises:
        UsageError: there is none, or its file cannot be read.
    """
    known = {path.stem: path for path in _paths()}
    if run not in known:
        hint = did_you_mean(run, known, "sparkcluster bench list")
        raise UsageError(f"there is no run {run[:80]} on this machine", hint=hint)
    try:
        return _RECORD.validate_json(known[run].read_bytes())
    except ValidationError as error:
        raise UsageError(f"{known[run]} cannot be read: {problem(error)}", hint=f"rm {known[run]}") from None


def kept() -> tuple[list[Record], list[str]]:
    """All runs, newest first, and a sentence about each file that cannot be read."""
    records, notes = [], []
    for path in _paths():
        try:
            records.append(load(path.stem))
        except UsageError as error:
            notes.append(error.message)
    return sorted(records, key=lambda record: record.at, reverse=True), notes


def _paths() -> list[Path]:
    return list(directory().glob("*-*[0-9].json"))
