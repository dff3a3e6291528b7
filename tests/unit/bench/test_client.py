"""llama-benchy as the client uses it, against an engine that records each sent token: tokens, and their phases."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from timeline import TEMPLATE, Engine, Timeline, book, serving, tokenizer

from sparkcluster.bench import client, judge
from sparkcluster.bench.profiles import Cell
from sparkcluster.bench.record import Measured

RUNS = 2

Found = tuple[list[dict[str, Any]], dict[str, Any]]
Measure = Callable[..., Found]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def engine(tokens: Any) -> Iterator[Engine]:
    with serving(Timeline(), tokens) as engine:
        yield engine


@pytest.fixture
def prompts(tokens: Any) -> Any:
    from llama_benchy.corpus import LightweightTokenizer
    from llama_benchy.prompts import PromptGenerator

    light = LightweightTokenizer(tokens)
    ids = light.encode(book()[:100_000])
    return PromptGenerator(SimpleNamespace(get_tokenizer=lambda: light, get_tokens=lambda: ids))


@pytest.fixture
def measure(engine: Engine, prompts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """The requests of a cell, and its document with the engine's counters ``before`` and ``after``."""
    monkeypatch.chdir(tmp_path)

    def measure(cell: Cell, kind: str = "chat") -> Found:
        requests: list[dict[str, Any]] = []
        before: list[dict[str, int]] = []
        job = {"url": engine.url, "key": None, "model": "timeline", "runs": RUNS, "headers": {}}
        measure = getattr(client, kind)(job, prompts, lambda _, **request: requests.append(request))
        engine.notes.clear()

        def warm() -> None:
            engine.notes.clear()
            requests.clear()
            before.append(counters(engine))

        document = asyncio.run(measure(cell._asdict(), warm))
        after = counters(engine)
        return requests, {**document, "engine": {name: after[name] - before[0][name] for name in after}}

    return measure


def counters(engine: Engine) -> dict[str, int]:
    with urllib.request.urlopen(engine.url.removesuffix("/v1") + "/metrics") as answer:
        lines = dict(line.split() for line in answer.read().decode().splitlines())
    return {
        name: int(lines[f"vllm:{metric}_total"])
        for name, metric in (
            ("hits", "prefix_cache_hits"), ("prompted", "prompt_tokens"), ("generated", "generation_tokens")
        )
    }  # fmt: skip


def benchmarks() -> list[dict[str, Any]]:
    """Output of llama-benchy for each phase of each cell."""
    return list(json.loads(Path("reports/llama-benchy.json").read_text())["benchmarks"])


def marks(cell: Cell, found: Found) -> list[str]:
    requests, document = found
    whole = Measured(
        **{name: getattr(cell, name) for name in ("prompt", "answer", "depth", "concurrency")},
        figures=judge.figures(requests), engine=document["engine"],
    )  # fmt: skip
    rules = {"runs": RUNS, "caching": cell.caching, "template_tokens": document["template_tokens"], "busy": False}
    return judge.marks(whole, {}, **rules)


TRICKS = {
    "plain": {},
    "several tokens a chunk": {"per_chunk": 4},
    "several tokens a chunk, without IDs": {"per_chunk": 4, "token_ids": False},
    "reasoning": {"field": "reasoning"},
    "reasoning of older engines": {"field": "reasoning_content"},
    "late usage": {"token_ids": False, "usage": "late", "late_s": 0.05},
    "a stall": {"stall_s": 0.05},
    "no early role": {"role": False},
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tokens_are_counted_in_their_phase(trick: str, engine: Engine, measure: Measure):
    """The tokens of the first chunk belong to prefill, the others to decode; a role or usage is no token."""
    engine.timeline, cell = Timeline(**TRICKS[trick]), Cell(200, 32)
    requests, _ = found = measure(cell)
    for request, note in zip(requests, engine.notes, strict=True):
        assert (request["tokens"], request["first_tokens"]) == (note.tokens, note.sent[0][1]) == (32, note.sent[0][1])
        assert request["prompt_tokens"] == note.prompt
        # both use the same clock: the client's notes lie between the engine's consecutive notes
        assert request["start_s"] <= note.at_s <= note.sent[0][0] <= request["first_s"]
        assert note.sent[-1][0] <= request["last_s"]
    assert [each["run"] for each in requests] == [0, 1]
    assert {each["phase"] for each in requests} == {"prompt"}
    assert marks(cell, found) == []
    assert [each["prompt_size"] for each in benchmarks()] == [200]
    assert Path("reports/csv").read_text().count("timeline,") == 2


def test_tokens_without_text_are_excluded_from_the_time_between_tokens(engine: Engine, measure: Measure):
    engine.timeline = Timeline(silent=16)
    requests, _ = measure(Cell(200, 32))
    assert [(each["tokens"], each["tokens"] - each["first_tokens"]) for each in requests] == [(32, 15)] * RUNS


def test_a_context_sent_first_is_a_separate_phase(engine: Engine, measure: Measure):
    engine.timeline, cell = Timeline(cache=True), Cell(100, 8, depth=400, concurrency=2, caching=True)
    requests, _ = measure(cell)
    assert [(each["run"], each["phase"]) for each in requests] == [
        (run, phase) for run in range(RUNS) for phase in ("context", "prompt") for _ in range(2)
    ]
    read = sorted(note.prompt for note in engine.notes if note.cached < 350)
    assert sorted(each["prompt_tokens"] for each in requests) == [100] * 4 + read
    assert sorted(note.cached > 350 for note in engine.notes) == [False] * 4 + [True] * 4
    assert [each["is_context_prefill_phase"] for each in benchmarks()] == [True, False]


def test_a_second_cell_is_added_to_the_report_without_another_probe(
    engine: Engine, prompts: Any, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    job = {"url": engine.url, "key": None, "model": "timeline", "runs": 1, "headers": {}}
    measure = client.chat(job, prompts, lambda *_, **__: None)
    asyncio.run(measure(Cell(100, 4)._asdict(), lambda: None))
    before = counters(engine)
    asyncio.run(measure(Cell(200, 4, concurrency=2)._asdict(), lambda: None))
    assert counters(engine)["generated"] - before["generated"] == 2 * 2 * 4
    assert [line.split(",")[1] for line in Path("reports/csv").read_text().splitlines()[1:]] == [
        "pp100 (c1)", "tg4 (c1)", "pp200 (c2)", "tg4 (c2)"
    ]  # fmt: skip


def test_a_prompt_shorter_than_the_template_is_not_measured(
    engine: Engine, measure: Measure, prompts: Any, monkeypatch
):
    job = {"url": engine.url, "key": None, "model": "timeline", "runs": 1, "headers": {}}
    measure_it = client.chat(job, prompts, lambda *_, **__: None)
    document = asyncio.run(measure_it(Cell(TEMPLATE, 4)._asdict(), pytest.fail))
    assert document == {"skipped": f"the chat template alone takes {2 * TEMPLATE} tokens"}


def test_counting_chunks_as_tokens_is_detected(engine: Engine, measure: Measure):
    engine.timeline = Timeline(per_chunk=4, token_ids=False, usage="chunks")
    assert "miscounted" in marks(Cell(200, 32), measure(Cell(200, 32)))


def test_a_counted_warm_up_is_detected(measure: Measure, monkeypatch: pytest.MonkeyPatch):
    from llama_benchy import config

    right = config.BenchmarkConfig
    monkeypatch.setattr(
        config, "BenchmarkConfig", lambda **options: right(**{**options, "num_runs": options["num_runs"] + 1})
    )
    assert "miscounted" in marks(Cell(200, 4), measure(Cell(200, 4)))


@pytest.mark.parametrize("repeats", [False, True])
def test_prompts_answered_from_the_cache_are_detected(
    repeats: bool, engine: Engine, measure: Measure, prompts: Any, monkeypatch: pytest.MonkeyPatch
):
    engine.timeline, cell = Timeline(cache=True), Cell(58, 4)
    if repeats:
        same = itertools.repeat(prompts.generate(51))
        monkeypatch.setattr(prompts, "generate_batch", lambda *_: [next(same)])
    assert ("cached" in marks(cell, measure(cell))) is repeats


def test_an_embedding_model_is_measured_in_texts(engine: Engine, measure: Measure):
    requests, _ = measure(Cell(50, 0, concurrency=3), kind="embeddings")
    assert len(judge.figures(requests)["texts"]) == RUNS
    assert engine.embedded == (RUNS + 1) * 3
    assert {each["prompt_tokens"] for each in requests} <= set(range(45, 60))
    assert not Path("reports").exists()


def test_the_book_is_complete():
    text = book()
    assert len(text.split()) == 180_381
    assert text.startswith("The book of the generation of Jesus Christ")
    assert text.endswith("The grace of our Lord Jesus Christ be with you all. Amen.\n")
    assert not any(character.isdigit() for character in text)
