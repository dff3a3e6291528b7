"""An engine with an OpenAI API that computes nothing: it answers with configured delays and records send times.

It tests the benchmark client: with short delays in tests, with long ones in scripts/bench-bench. It counts tokens with
the tokenizer from ``tokenizer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import itertools
import json
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEMPLATE = 7
"""Template tokens added per message."""
BLOCK = 16
"""Block size of the prefix cache, in tokens."""


@dataclasses.dataclass
class Timeline:
    """The configured delays, stream format and faults of the engine.

    Attributes:
        prefill_s: seconds per prompt token that is not in the cache.
        token_s: seconds per output token after the first.
        per_chunk: tokens per chunk; sent when complete.
        field: name of the delta's text field.
        token_ids: whether chunks have ``token_ids``.
        usage: how usage is reported: after the last token, later, or not; ``chunks`` counts chunks as tokens.
        late_s: delay of usage for ``late``.
        stall_s: pause in the middle of an answer.
        cache: whether prompts that share a prefix with an earlier one skip its prefill and count as hits.
        role: whether a chunk with a role and no text is sent immediately, before the prefill.
        key: required API key; None: no key.
        fails: error text returned with HTTP 500; empty: success.
        moved: whether requests are redirected to their own URL.
        silent: trailing tokens without text, such as special tokens.
    """

    prefill_s: float = 0.00002
    token_s: float = 0.001
    per_chunk: int = 1
    field: str = "content"
    token_ids: bool = True
    usage: Literal["end", "late", "none", "chunks"] = "end"
    late_s: float = 0.0
    stall_s: float = 0.0
    cache: bool = False
    role: bool = True
    key: str | None = None
    fails: str = ""
    moved: bool = False
    silent: int = 0


@dataclasses.dataclass
class Note:
    """A streamed chat request and the chunks of its answer that have text.

    Attributes:
        at_s: arrival time.
        prompt: prompt tokens.
        cached: cached prompt tokens.
        sent: send time and number of tokens of each chunk.
    """

    at_s: float
    prompt: int
    cached: int
    sent: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return sum(tokens for _, tokens in self.sent)


def tokenizer(directory: Path) -> Tokenizer:
    """A byte-level tokenizer, trained on the start of the book and saved as ``tokenizer.json`` in ``directory``."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=alphabet)
    trained.train_from_iterator([book()[:20_000]], trainer)
    directory.mkdir(parents=True, exist_ok=True)
    trained.save(str(directory / "tokenizer.json"))
    return trained


def book() -> str:
    """The text that prompts are cut from."""
    return gzip.decompress(resources.files("sparkcluster.bench").joinpath("book.txt.gz").read_bytes()).decode()


class Engine:
    """The engine; ``timeline`` may be replaced between requests, and ``notes`` grows with each request."""

    def __init__(self, timeline: Timeline, tokens: Tokenizer) -> None:
        self.timeline = timeline
        self.notes: list[Note] = []
        self.url = ""
        self.embedded = self.redirected = 0
        self._tokens = tokens
        self._answer: list[int] = tokens.encode(book()[:40_000]).ids
        self._seen: list[list[int]] = []
        self._counters = dict.fromkeys(("prompt_tokens", "generation_tokens", "prefix_cache_hits"), 0)

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "timeline", "object": "model"}]})

    async def metrics(self, _request: web.Request) -> web.Response:
        counters = {**self._counters, "prefix_cache_queries": self._counters["prompt_tokens"]}
        return web.Response(text="".join(f"vllm:{name}_total {value}\n" for name, value in counters.items()))

    async def embeddings(self, request: web.Request) -> web.Response:
        asked = await request.json()
        prompt = len(self._tokens.encode(asked["input"]).ids)
        await asyncio.sleep(prompt * self.timeline.prefill_s)
        self.embedded += 1
        data = [{"object": "embedding", "index": 0, "embedding": [0.0] * 8}]
        return web.json_response({"data": data, "usage": {"prompt_tokens": prompt, "total_tokens": prompt}})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        at_s, line = time.perf_counter(), self.timeline
        asked = await request.json()
        if line.key is not None and request.headers.get("Authorization") != f"Bearer {line.key}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        if line.fails and asked.get("stream"):
            return web.json_response({"error": {"message": line.fails}}, status=500)
        if line.moved:
            self.redirected += 1
            return web.Response(status=307, headers={"Location": self.url + "/chat/completions"})
        prompt = [
            token
            for message in asked["messages"]
            for token in [-len(message["role"])] * TEMPLATE + self._tokens.encode(_text(message)).ids
        ]
        note = Note(at_s, len(prompt), self._cached(prompt))
        first_s = at_s + (len(prompt) - note.cached) * line.prefill_s
        most = asked.get("max_completion_tokens") or asked["max_tokens"]
        self._counters["prompt_tokens"] += len(prompt)
        self._counters["generation_tokens"] += most
        self._counters["prefix_cache_hits"] += note.cached
        if not asked.get("stream"):
            await _until(first_s)
            usage = {"prompt_tokens": len(prompt), "completion_tokens": most}
            return web.json_response({"choices": [{"message": {"content": "x"}}], "usage": usage})
        self.notes.append(note)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._stream(response, note, first_s, most)
        return response

    async def _stream(self, response: web.StreamResponse, note: Note, first_s: float, most: int) -> None:
        line = self.timeline

        async def send(document: Any) -> None:
            await response.write(b"data: " + (json.dumps(document) if document else "[DONE]").encode() + b"\n\n")

        async def delta(delta: dict[str, str], ids: list[int] | None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": None, **({"token_ids": ids} if ids else {})}
            await send({"object": "chat.completion.chunk", "choices": [choice]})

        if line.role:
            await delta({"role": "assistant", "content": ""}, None)
        ends = [*range(line.per_chunk, most, line.per_chunk), most]
        for begin, end in itertools.pairwise([0, *ends]):
            stall_s = line.stall_s if begin >= most // 2 else 0.0
            await _until(first_s + (end - 1) * line.token_s + stall_s)
            ids = self._answer[begin:end]
            note.sent.append((time.perf_counter(), end - begin))
            text = self._tokens.decode(ids) if end <= most - line.silent else ""
            await delta({line.field: text}, ids if line.token_ids else None)
        if line.usage != "none":
            await asyncio.sleep(line.late_s if line.usage == "late" else 0)
            counted = len(note.sent) if line.usage == "chunks" else most
            await send({"choices": [], "usage": {"prompt_tokens": note.prompt, "completion_tokens": counted}})
        await send(None)

    def _cached(self, prompt: list[int]) -> int:
        longest = 0
        for other in self._seen if self.timeline.cache else ():
            same = next((at for at, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), len(other))
            longest = max(longest, min(same, len(prompt) - 1) // BLOCK * BLOCK)
        self._seen.append(prompt)
        return longest


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.perf_counter()))


@contextlib.contextmanager
def serving(timeline: Timeline, tokens: Tokenizer) -> Iterator[Engine]:
    """Run the engine on loopback, in a separate thread; ``url`` is the URL of its API."""
    engine, loop = Engine(timeline, tokens), asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", engine.models)
        app.router.add_get("/metrics", engine.metrics)
        app.router.add_post("/v1/chat/completions", engine.chat)
        app.router.add_post("/v1/embeddings", engine.embeddings)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield engine
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
