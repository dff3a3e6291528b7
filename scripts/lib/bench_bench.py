"""The measurements of scripts/bench-bench, which runs this."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import ENVIRONMENT, PYTHON, show, timed, wait_until_quiet
from bench_gateway import free_port
from timeline import TEMPLATE, Note, Timeline, serving, tokenizer
from tokenizers import Tokenizer

from sparkcluster.bench import judge
from sparkcluster.bench.child import Client
from sparkcluster.bench.profiles import Cell

CACHE = Path(os.environ.get("SPARKCLUSTER_CACHE") or "~/.cache/sparkcluster").expanduser()
MODEL = CACHE / "models" / "smollm2-135m-instruct"
ROOT = Path(__file__).parents[2]
PREFILL_S, TOKEN_S = 0.001, 0.01
"""Seconds per token. A prefill of 1,000 tokens and a decode of 128 take more than 1 s each; 2 % of that is 20 ms."""
PLAIN = Cell(1000, 128)

# By name: arguments of the timeline, and the cell that is measured on it.
TRICKS: dict[str, tuple[dict[str, Any], Cell]] = {
    "plain": ({}, PLAIN),
    "several tokens a chunk": ({"per_chunk": 4}, PLAIN),
    "several tokens a chunk, without IDs": ({"per_chunk": 4, "token_ids": False}, PLAIN),
    "reasoning": ({"field": "reasoning"}, PLAIN),
    "reasoning_content": ({"field": "reasoning_content"}, PLAIN),
    "late usage": ({"token_ids": False, "usage": "late", "late_s": 0.5}, PLAIN),
    "a stall": ({"stall_s": 0.5}, PLAIN),
    "no early role": ({"role": False}, PLAIN),
    "two concurrent requests": ({}, PLAIN._replace(concurrency=2)),
    "after a context": ({}, Cell(500, 128, depth=500)),
    "prefix cache": ({"cache": True}, Cell(2048, 128, depth=2048, caching=True)),
}


class Speed(NamedTuple):
    """Medians over passes: tokens/s, and seconds to the first token."""

    prefill: float
    decode: float
    ttft_s: float


class Served(NamedTuple):
    """A model: the URL of its API, its name there, its tokenizer's directory, and the tokens of its template."""

    url: str
    model: str
    files: Path
    template: int


def ours(requests: Sequence[Mapping[str, Any]]) -> Speed:
    """The figures that ``sparkcluster bench`` computes from the requests of one phase."""
    found = judge.figures(requests)
    return Speed(*(statistics.median(found[name]) for name in Speed._fields))


def noted(notes: Sequence[Note], at_once: int) -> Speed:
    """The true figures from the engine's notes, with ``at_once`` concurrent requests per pass."""
    prefill, decode = [], []
    for at in range(0, len(notes), at_once):
        batch = notes[at : at + at_once]
        read_s = max(note.sent[0][0] for note in batch) - min(note.at_s for note in batch)
        prefill.append(sum(note.prompt - note.cached for note in batch) / read_s)
        wrote_s = max(note.sent[-1][0] for note in batch) - min(note.sent[0][0] for note in batch)
        decode.append(sum(note.tokens - note.sent[0][1] for note in batch) / wrote_s)
    ttft_s = [note.sent[0][0] - note.at_s for note in notes]
    return Speed(*map(statistics.median, (prefill, decode, ttft_s)))


def within(what: str, found: Speed, real: Speed, most: float) -> bool:
    """Whether ``found`` differs from ``real`` by at most ``most`` percent; prints the difference."""
    verdicts = []
    for name, a, b in zip(Speed._fields, found, real, strict=True):
        verdicts.append(show(f"{what}: % off in {name}", abs(a / b - 1) * 100, f"{a:.5g} / {b:.5g}", at_most=most))
    return all(verdicts)


@contextlib.contextmanager
def client(url: str, model: str, files: Path, runs: int) -> Iterator[Callable[[Cell], list[dict[str, Any]]]]:
    """A function that measures a cell and returns its requests."""

    def measure(cell: Cell) -> list[dict[str, Any]]:
        measured = itertools.dropwhile(lambda said: said["event"] != "warm", made.run(cell))
        return [said for said in measured if said["event"] == "request"]

    with tempfile.TemporaryDirectory() as home:
        shutil.copy(files / "tokenizer.json", home)
        job = {"url": url, "key": None, "model": model, "runs": runs, "kind": "chat", "seed": None}
        made = Client(Path(home), {**job, "tokenize_field": None})
        with contextlib.closing(made):
            yield measure


def against_notes(files: Path, tokens: Tokenizer, runs: int) -> list[bool]:
    verdicts = []
    with (
        serving(Timeline(PREFILL_S, TOKEN_S), tokens) as engine,
        client(engine.url, "timeline", files, runs) as measure,
    ):
        wait_until_quiet()
        for trick, (changes, cell) in TRICKS.items():
            engine.timeline = Timeline(PREFILL_S / (2 if cell.caching else 1), TOKEN_S, **changes)
            before = len(engine.notes)
            requests = measure(cell)
            phases = ["context", "prompt"] if cell.caching else ["prompt"]
            notes = engine.notes[before + cell.concurrency * len(phases) :]  # without the warm-up pass
            for at, phase in enumerate(phases):
                own = [each for each in requests if each["phase"] == phase]
                real = noted(notes[at :: len(phases)], cell.concurrency)
                verdicts.append(within(f"{trick}, {phase}" if cell.caching else trick, ours(own), real, 2))
    return verdicts


def engine_python() -> Path:
    """Python of a virtual environment with vLLM's CPU build; creates the environment and the model if missing."""
    place = CACHE / "bench" / "engine"
    python, uv = place / "bin/python", str(Path(PYTHON).with_name("uv"))
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}
    install = [str(python), "-m", "sparkcluster.lab.engine.install"]
    if not python.exists():
        timed([uv, "venv", "--quiet", "--seed", "--python", PYTHON, str(place)])
    if subprocess.run([*install, "--is-installed"], env=environment, check=False).returncode:
        timed(install, env=environment)
    if not MODEL.is_dir():
        timed([str(python), "-m", "sparkcluster.lab.engine.smollm2", str(MODEL)], env=environment)
    return python


def vllm_bench(python: Path, served: Served, cell: Cell, runs: int) -> Speed:
    """The figures of ``vllm bench serve`` for ``cell``; the engine counts its prompt tokens."""
    with tempfile.TemporaryDirectory() as name:
        options = {
            "--backend": "openai-chat",
            "--base-url": served.url.removesuffix("/v1"),
            "--endpoint": "/v1/chat/completions",
            "--model": served.model,
            "--tokenizer": str(served.files),
            "--dataset-name": "random",
            "--random-input-len": str(cell.prompt - served.template),
            "--random-output-len": str(cell.answer),
            "--num-prompts": str(runs),
            "--num-warmups": "1",
            "--max-concurrency": "1",
            # llama-benchy sends no temperature; the engine's default is 1
            "--temperature": "1",
            "--extra-body": json.dumps({"min_tokens": cell.answer}),
            "--seed": str(time.time_ns() % 1_000_000),
            "--result-dir": name,
            "--result-filename": "result.json",
        }
        argv = [str(python.with_name("vllm")), "bench", "serve", "--ignore-eos", "--disable-tqdm", "--save-result"]
        argv += itertools.chain.from_iterable(options.items())
        timed(argv, env={**ENVIRONMENT, "HF_HUB_OFFLINE": "1"})
        found = json.loads(Path(name, "result.json").read_text())
    if found["completed"] != runs:
        sys.exit(f"vllm bench serve completed {found['completed']} of {runs} requests")
    ttft_s = found["median_ttft_ms"] / 1000
    return Speed(cell.prompt / ttft_s, 1000 / found["median_tpot_ms"], ttft_s)


@contextlib.contextmanager
def cpu_engine(python: Path) -> Iterator[str]:
    """The URL of vLLM on this machine's CPU, with the demo's arguments and without prefix cache.

    It gets all cores but one; the benchmark clients get the last core. Otherwise a client would slow down the engine,
    and each of the two clients by a different amount.
    """
    port, cores = free_port(), sorted(os.sched_getaffinity(0))
    engines, ours = set(cores[:-1] or cores), {cores[-1]}
    argv = [
        str(python.with_name("vllm")),
        "serve",
        str(MODEL),
        "--served-model-name",
        "smollm2-135m",
        "--port",
        str(port),
    ]
    argv += ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "8192", "--max-num-seqs", "4"]
    argv += ["--enforce-eager", "--no-enable-prefix-caching", "--generation-config", "vllm"]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "passive"}
    settings |= {
        "OMP_NUM_THREADS": str(len(engines)),
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryFile() as log:
        environment = {**ENVIRONMENT, **settings}
        os.sched_setaffinity(0, engines)  # inherited by the engine
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
        os.sched_setaffinity(0, ours)
        try:
            until = time.monotonic() + 300
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    sys.exit(f"the engine does not answer:\n{log.read().decode(errors='replace')[-4000:]}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.sched_setaffinity(0, cores)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def template_tokens(url: str, model: str, tokens: Tokenizer) -> int:
    """How many tokens the engine's chat template adds to a prompt."""
    text = "In the beginning was the Word"
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        counted = int(json.load(answer)["usage"]["prompt_tokens"])
    return counted - len(tokens.encode(text, add_special_tokens=False).ids)


def side_by_side(what: str, served: Served, python: Path, cell: Cell, most: float) -> bool:
    """Compare ``sparkcluster bench`` and ``vllm bench serve`` over five turns of three passes each."""
    with client(served.url, served.model, served.files, 3) as measure:
        wait_until_quiet()
        turns = []
        for _ in range(5):
            mine = ours(measure(cell))
            turns.append((mine, vllm_bench(python, served, cell, 3)))
    mine, theirs = (Speed(*map(statistics.median, zip(*side, strict=True))) for side in zip(*turns, strict=True))
    return within(what, mine, theirs, most)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-bench", description="the accuracy of `sparkcluster bench`")
    parser.add_argument("--quick", action="store_true", help="without vllm bench serve, one pass of each cell")
    quick = parser.parse_args().quick
    print("ours / the engine's notes: tokens/s, tokens/s and s")
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        tokens = tokenizer(files)
        verdicts = against_notes(files, tokens, 1 if quick else 3)
        if not quick:
            python = engine_python()
            print("ours / vllm bench serve")
            # vllm bench serve counts an early chunk with only the role as first token; vLLM sends no such chunk
            with serving(Timeline(PREFILL_S, TOKEN_S, role=False), tokens) as engine:
                served = Served(engine.url, "timeline", files, TEMPLATE)
                verdicts.append(side_by_side("timeline", served, python, PLAIN, 2))
            with cpu_engine(python) as url:
                template = template_tokens(url, "smollm2-135m", Tokenizer.from_file(str(MODEL / "tokenizer.json")))
                served = Served(url, "smollm2-135m", MODEL, template)
                verdicts.append(side_by_side("CPU", served, python, Cell(256, 32), 15))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
