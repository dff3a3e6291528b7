"""The process that measures: its input, its output, and its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from timeline import Engine, Timeline, serving, tokenizer

from sparkcluster.bench.child import Client
from sparkcluster.bench.profiles import Cell
from sparkcluster.errors import SparkclusterError

KEY = "sk-very-secret"
Make = Callable[[], Client]


def run(client: Client, cell: Cell) -> list[dict[str, Any]]:
    return [said for said in client.run(cell) if said["event"]]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with serving(Timeline(key=KEY), tokenizer(tmp_path / "home")) as engine:
        yield engine


@pytest.fixture
def make(engine: Engine, tmp_path: Path) -> Iterator[Make]:
    clients: list[Client] = []

    def make() -> Client:
        job = {"url": engine.url, "key": KEY, "model": "timeline", "runs": 1, "kind": "chat", "seed": None}
        clients.append(Client(tmp_path / "home", {**job, "tokenize_field": None}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_cells_are_measured_until_the_client_is_closed(engine: Engine, make: Make, monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # discard, RFC 863: nothing listens there
    monkeypatch.setenv("SPARKCLUSTER_SECRET", KEY)
    client: Any = make()
    process = Path("/proc", str(client._process.pid))
    said = run(client, Cell(100, 4, concurrency=2))
    assert [(each["event"], each.get("tokens")) for each in said] == [
        ("request", 4), ("request", 4), ("warm", None), ("request", 4), ("request", 4), ("cell", None)
    ]  # fmt: skip
    assert json.loads((client.home / "reports/llama-benchy.json").read_text())["latency_mode"] == "none"
    for file in ("cmdline", "environ"):
        assert KEY.encode() not in (process / file).read_bytes()

    engine.timeline, before = Timeline(key=KEY, stall_s=60), len(engine.notes)
    for _ in client.run(Cell(100, 4)):
        if len(engine.notes) > before:  # in the middle of an answer
            break
    client._process.stdin.close()  # as when we are killed
    client._process.wait(10)
    client.close()
    assert not process.exists()


def test_the_error_is_the_engines_message(engine: Engine, make: Make):
    engine.timeline = Timeline(key=KEY, fails="the engine is dead")
    with pytest.raises(SparkclusterError, match="the engine is dead"):
        run(make(), Cell(100, 4))


def test_an_engine_that_sends_too_much_or_redirects_is_an_error(engine: Engine, make: Make):
    engine.timeline = Timeline(key=KEY, fails="x" * (1 << 20))
    with pytest.raises(SparkclusterError) as failed:
        run(make(), Cell(100, 4))
    assert len(failed.value.message) < 1000
    engine.timeline = Timeline(key=KEY, moved=True)
    with pytest.raises(SparkclusterError, match="307"):
        run(make(), Cell(100, 4))
    assert engine.redirected == 1


def test_another_tokenizer_than_the_models_is_an_error(engine: Engine, make: Make, tmp_path: Path):
    (tmp_path / "home/tokenizer.json").rename(tmp_path / "home/vocab.txt")
    with pytest.raises(SparkclusterError, match="llama-benchy: the tokenizer of timeline cannot be read: "):
        run(make(), Cell(100, 4))
    assert not engine.notes


def test_an_oversized_tokenizer_is_an_error(make: Make):
    """The process is killed by a CPU limit, or aborts at a memory limit."""
    client: Any = make()
    client._process.kill()
    client._process.wait()
    with pytest.raises(SparkclusterError, match="llama-benchy: SIGKILL"):
        run(client, Cell(100, 4))
