"""The process that measures: llama-benchy as a library, apart from ours for what it prints, exits with and imports.

It runs as a program by itself. A JSON document a line comes in: the job, then a cell each time, and ``go`` once its
warm-up is over. These go out:

- ``warm``, once the pass that warms up has ended; what comes after ``go`` is counted
- ``request``, as each request ends: ``run`` (number of its pass), ``phase``, ``start_s``, ``first_s`` and ``last_s``
  (of the process's clock: sent, first and last text), ``prompt_tokens`` (that are not in the cache by intention),
  ``tokens`` and ``first_tokens`` (of the first chunk)
- ``cell``, with ``template_tokens``; in ``reports`` is then what llama-benchy writes of all cells up to this one,
  ``llama-benchy.json`` and ``csv``; or with ``skipped``, why it cannot be measured

What fails ends it; the last line that it printed says why. So does the end of its input. The key comes with the job,
since others can read a command line and an environment.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MEMORY_BYTES, READ_S = 8 << 30, 120
"""What reading a tokenizer may take of memory, and seconds of a processor: 500 bytes of one, which a node sends, can
ask for more than any machine has."""

LOG_BYTES = 64 << 20
"""Of any file: an engine's error, which is printed, has any size."""

Document = dict[str, Any]
Call = Callable[..., Any]


def read_book(job: Document) -> Any:
    """Prompts cut from the packed book, in tokens of the model.

    llama-benchy's ``TokenizedCorpus`` would download a book, and take gpt2's tokenizer where it cannot read another.
    """
    from llama_benchy import corpus, prompts  # noqa: PLC0415 - of the extra

    try:
        tokenizer = corpus.LightweightTokenizer.from_pretrained("tokenizer.json")
    except Exception as error:  # noqa: BLE001 - any of its library's
        sys.exit(f"the tokenizer of {job['model']} cannot be read: {error}")
    text = gzip.decompress(Path(__file__).with_name("book.txt.gz").read_bytes()).decode()
    tokens = tokenizer.encode(text)
    return prompts.PromptGenerator(SimpleNamespace(get_tokenizer=lambda: tokenizer, get_tokens=lambda: tokens))


def chat(job: Document, prompts: Any, say: Call) -> Call:
    """What measures a cell of a chat model, and calls its second argument once that is warm: its ``cell`` document."""
    from llama_benchy import client, config, runner  # noqa: PLC0415

    class Sender(client.LLMClient):  # type: ignore[misc,unused-ignore] # untyped where the extra is not installed
        """Measures the template once, and says what became of each request of ``cell``."""

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
            # tokens without text come before the first or after the last one that has: not in the time between them
            first = tokens - sum(map(len, ids[1:])) if all(ids) else len(ids[0] or tokenizer.encode(chunks[0]["text"]))
            times = {"first_s": chunks[0]["timestamp"], "last_s": chunks[-1]["timestamp"]}
            result.said = {**times, "tokens": tokens, "first_tokens": first}

        async def run_generation(self, *args: Any, request_id: int, **options: Any) -> Any:
            result = await super().run_generation(*args, request_id=request_id, **options)
            batch, phases = request_id // self.cell["concurrency"], 2 if self.cell["caching"] else 1
            phase = "context" if batch % phases < phases - 1 else "prompt"
            # what is before a prompt may be cached
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
        # apart from those before, which it would print below the error that ends it
        found = await suite(cell, job["runs"])
        found.runs[:0] = every
        every[:] = found.runs
        found.metadata.max_concurrency = max(run.concurrency for run in every)
        found.save_report("reports/llama-benchy.json", "json")
        found.save_report("reports/csv", "csv")
        return {"template_tokens": max(user, context, 0)}  # an engine may count fewer than its tokenizer

    return measure


def embeddings(job: Document, prompts: Any, say: Call) -> Call:
    """The same of an embedding model, which llama-benchy cannot measure: passages of the book, a request each."""
    import aiohttp  # noqa: PLC0415 - llama-benchy's

    async def measure(cell: Document, warm: Call) -> Document:
        headers = {"Authorization": f"Bearer {job['key'] or 'EMPTY'}"}
        async with aiohttp.ClientSession(job["url"] + "/", headers=headers, raise_for_status=True) as session:
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
    os.dup2(2, 1)  # llama-benchy prints what it does

    def say(event: str, **document: Any) -> None:
        out.write(json.dumps({"event": event, **document}) + "\n")

    def warm() -> None:
        say("warm")
        sys.stdin.readline()

    import aiohttp  # noqa: PLC0415 - llama-benchy's, as numpy is
    import numpy  # noqa: ICN001, PLC0415

    ask = aiohttp.ClientSession._request  # noqa: SLF001 - a redirect of the engine's could lead to anything here
    aiohttp.ClientSession._request = lambda *args, **more: ask(*args, **{**more, "allow_redirects": False})  # type: ignore[method-assign,unused-ignore] # noqa: SLF001
    job = json.loads(sys.stdin.readline())
    for kind, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, LOG_BYTES)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CPU, (READ_S, resource.RLIM_INFINITY))
    prompts = read_book(job)
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    numpy.random.seed(job["seed"])  # noqa: NPY002 - which llama-benchy draws from
    measure = {"chat": chat, "embeddings": embeddings}[job["kind"]](job, prompts, say)
    with asyncio.Runner() as cells:
        cells.get_loop().add_reader(0, os._exit, 1)  # nothing comes while it measures, but the end
        while line := sys.stdin.readline():
            say("cell", **cells.run(measure(json.loads(line), warm)))


if __name__ == "__main__":
    main()
