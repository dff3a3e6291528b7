"""The measuring process: llama-benchy as a library, separate because it prints, exits and imports.

Runs as a program. It reads one JSON document per line: the job, then a cell each time, and ``go`` after a cell's
warm-up. It writes these events:

- ``warm``, once the warm-up pass has ended; requests after ``go`` are counted
- ``request``, at the end of each request: ``run`` (number of its pass), ``phase``, ``start_s``, ``first_s`` and
  ``last_s`` (the process's clock: sent, first and last text), ``prompt_tokens`` (without tokens cached on purpose),
  ``tokens`` and ``first_tokens`` (of the first chunk)
- ``cell``, with ``template_tokens``; ``reports`` then has llama-benchy's files about all cells so far,
  ``llama-benchy.json`` and ``csv``; or with ``skipped``, why it cannot be measured

An error ends it, and the last line that it printed says why. The end of its input ends it too. The key is in the job,
since other users can read a command line and an environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

MEMORY_BYTES, READ_S = 8 << 30, 120
"""Limits of memory and processor seconds for reading a tokenizer: 500 bytes of one, which comes from a node, can ask
for more than any machine has."""

LOG_BYTES = 64 << 20
"""Limit of any file: the log has engine errors, which can have any size."""

Document = dict[str, Any]
Call = Callable[..., Any]


def engine_tokenizer(job: Document) -> Any:
    """The tokenizer of a model whose weights have no ``tokenizer.json``, such as a GGUF: the engine's, by its API."""
    place, field = urlsplit(job["url"]).netloc, job["tokenize_field"]

    def ask(path: str, **body: Any) -> Any:
        with contextlib.closing(http.client.HTTPConnection(place, timeout=READ_S)) as connection:  # follows no redirect
            connection.request("POST", path, json.dumps({"model": job["model"], **body}), job["headers"])
            answer = connection.getresponse()
            return json.load(answer) if answer.status == http.HTTPStatus.OK else sys.exit(f"{path}: {answer.reason}")

    return SimpleNamespace(
        encode=lambda text, **_: ask("/tokenize", **{field: text})["tokens"],
        decode=lambda tokens: ask("/detokenize", tokens=tokens)[field],
    )


def read_book(job: Document) -> Any:
    """A generator of prompts cut from the packed book, in tokens of the model.

    llama-benchy's ``TokenizedCorpus`` would download a book, and use gpt2's tokenizer if it cannot read the model's.
    """
    from llama_benchy import corpus, prompts  # noqa: PLC0415 - from the extra

    try:
        file = None if job["tokenize_field"] else corpus.LightweightTokenizer.from_pretrained("tokenizer.json")
    except Exception as error:  # noqa: BLE001 - any error of its library
        sys.exit(f"the tokenizer of {job['model']} cannot be read: {error}")
    tokenizer = file or engine_tokenizer(job)
    text = gzip.decompress(Path(__file__).with_name("book.txt.gz").read_bytes()).decode()
    tokens = tokenizer.encode(text)
    return prompts.PromptGenerator(SimpleNamespace(get_tokenizer=lambda: tokenizer, get_tokens=lambda: tokens))


def chat(job: Document, prompts: Any, say: Call) -> Call:
    """A function that measures a cell of a chat model and returns its ``cell`` document; calls ``warm`` when warm."""
    from llama_benchy import client, config, runner  # noqa: PLC0415

    class Sender(client.LLMClient):  # type: ignore[misc,unused-ignore] # untyped where the extra is not installed
        """Measures the chat template once, and reports each request of ``cell``."""

        deltas: Any = None
        cell: Document

        async def warmup(self, session: Any, tokenizer: Any = None) -> Any:
            self.deltas = self.deltas or await super().warmup(session, tokenizer)
            return self.deltas

        def _finalize_stream_tokens(self, result: Any, chunks: Any, usage: int | None, tokenizer: Any = None) -> None:
            super()._finalize_stream_tokens(result, chunks, usage, tokenizer)
            if not chunks:
                raise ValueError("the answer has no text")
            ids = [chunk["token_ids"] for chunk in chunks]
            tokens = result.total_tokens if usage is None else usage
            # tokens without text before the first or after the last text do not count for the time in between
            first = tokens - sum(map(len, ids[1:])) if all(ids) else len(ids[0] or tokenizer.encode(chunks[0]["text"]))
            times = {"first_s": chunks[0]["timestamp"], "last_s": chunks[-1]["timestamp"]}
            result.said = {**times, "tokens": tokens, "first_tokens": first}

        async def run_generation(self, *args: Any, request_id: int, **options: Any) -> Any:
            result = await super().run_generation(*args, request_id=request_id, **options)
            batch, phases = request_id // self.cell["concurrency"], 2 if self.cell["caching"] else 1
            phase = "context" if batch % phases < phases - 1 else "prompt"
            # the context before a prompt may be cached
            prompt_tokens = self.cell["prompt"] if (phase, phases) == ("prompt", 2) else result.prompt_tokens
            said = {"phase": phase, "prompt_tokens": prompt_tokens, "start_s": result.start_ts}
            say("request", run=batch // phases, **said, **getattr(result, "said", {}))
            return result

    sender = Sender(job["url"], job["key"] or "EMPTY", job["model"], exact_tg=True)
    every: list[Any] = []
    Path("reports").mkdir(exist_ok=True)

    async def suite(cell: Document, runs: int) -> Any:
        chosen = config.BenchmarkConfig(
            base_url="", api_key="", served_model_name="", book_url="", model=job["model"], pp_counts=[cell["prompt"]],
            tg_counts=[cell["answer"]], depths=[cell["depth"]], concurrency_levels=[cell["concurrency"]],
            enable_prefix_caching=cell["caching"], no_cache=not cell["caching"], num_runs=runs, latency_mode="none",
            adapt_prompt=True, no_warmup=True, skip_coherence=True, exit_on_first_fail=True,
        )  # fmt: skip
        one = runner.BenchmarkRunner(chosen, sender, prompts)
        await one.run_suite()
        return one.results

    async def measure(cell: Document, warm: Call) -> Document:
        sender.cell = cell
        await suite(cell, 1)
        user, context = sender.deltas
        if cell["prompt"] <= user or 0 < cell["depth"] <= context:
            return {"skipped": f"the chat template alone takes {max(user, context)} tokens"}
        warm()
        # separate from earlier cells, which llama-benchy would print below the error that ends it
        found = await suite(cell, job["runs"])
        found.runs[:0] = every
        every[:] = found.runs
        found.metadata.max_concurrency = max(run.concurrency for run in every)
        found.save_report("reports/llama-benchy.json", "json")
        found.save_report("reports/csv", "csv")
        return {"template_tokens": max(user, context, 0)}  # an engine may count fewer tokens than its tokenizer

    return measure


def embeddings(job: Document, prompts: Any, say: Call) -> Call:
    """As ``chat``, for an embedding model, which llama-benchy cannot measure: one passage of the book per request."""
    import aiohttp  # noqa: PLC0415 - a dependency of llama-benchy

    async def measure(cell: Document, warm: Call) -> Document:
        async with aiohttp.ClientSession(job["url"] + "/", headers=job["headers"], raise_for_status=True) as session:
            for run in range(-1, job["runs"]):
                passages = prompts.generate_batch(cell["concurrency"], cell["prompt"])
                bodies = [{"model": job["model"], "input": passage} for _, passage in passages]
                said = {"run": run, "phase": "prompt", "start_s": time.perf_counter(), "tokens": 0}
                for answer in await asyncio.gather(*(session.post("embeddings", json=body) for body in bodies)):
                    counted = (await answer.json())["usage"]["prompt_tokens"]
                    say("request", **said, last_s=time.perf_counter(), prompt_tokens=counted)
                if run < 0:
                    warm()
        return {"template_tokens": 0}

    return measure


def main() -> None:
    """Measure cells until the input ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # llama-benchy prints to stdout

    def say(event: str, **document: Any) -> None:
        out.write(json.dumps({"event": event, **document}) + "\n")

    def warm() -> None:
        say("warm")
        sys.stdin.readline()

    import aiohttp  # noqa: PLC0415 - dependencies of llama-benchy
    import numpy  # noqa: ICN001, PLC0415

    ask = aiohttp.ClientSession._request  # noqa: SLF001 - an engine's redirect could lead anywhere
    aiohttp.ClientSession._request = lambda *args, **more: ask(*args, **{**more, "allow_redirects": False})  # type: ignore[method-assign,unused-ignore] # noqa: SLF001
    job = json.loads(sys.stdin.readline())
    job["headers"] = {"Authorization": f"Bearer {job['key'] or 'EMPTY'}", "Content-Type": "application/json"}
    for kind, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, LOG_BYTES)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CPU, (READ_S, resource.RLIM_INFINITY))
    prompts = read_book(job)
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    numpy.random.seed(job["seed"])  # noqa: NPY002 - llama-benchy uses it
    measure = {"chat": chat, "embeddings": embeddings}[job["kind"]](job, prompts, say)
    with asyncio.Runner() as cells:
        cells.get_loop().add_reader(0, os._exit, 1)  # input while it measures can only be its end
        while line := sys.stdin.readline():
            say("cell", **cells.run(measure(json.loads(line), warm)))


if __name__ == "__main__":
    main()
