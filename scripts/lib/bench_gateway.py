"""The measurements of scripts/bench-gateway, which runs this."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import ENVIRONMENT, PYTHON, show, timed, wait_until_quiet

from sparkcluster.hosts.program import standalone

STREAMS, TOKENS_S = 16, 1000
PATH = "/v1/chat/completions"

# Its events have about the length of vLLM's.
ENGINE = """
import asyncio, json, sys
from aiohttp import web

EVENT = b'data: {"id":"chatcmpl-7f1c","object":"chat.completion.chunk","created":1764500000,"model":"gpt","choices":' \\
        b'[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\\n\\n'

async def chat(request):
    asked = json.loads(await request.read())
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(asked["max_tokens"]):
        await response.write(EVENT)
        await asyncio.sleep(asked["every_s"])
    return response

app = web.Application()
app.add_routes([web.post("/v1/chat/completions", chat)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
"""

# A typical proxy, as in tutorials.
PROXY = """
import json, sys
import httpx, uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

app = FastAPI()
engines = {"gpt": sys.argv[2]}
client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))

@app.post("/{path:path}")
async def forward(path: str, request: Request):
    body = await request.body()
    url = engines[json.loads(body)["model"]] + "/" + path
    kept = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
    answer = await client.send(client.build_request("POST", url, content=body, headers=kept), stream=True)
    kind, end = answer.headers["content-type"], BackgroundTask(answer.aclose)
    return StreamingResponse(answer.aiter_raw(), answer.status_code, media_type=kind, background=end)

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="warning")
"""


def config(url: str, port: int) -> dict[str, Any]:
    """The gateway's config.json."""
    model = {"name": "gpt", "served": ["gpt"], "kind": "chat", "context": None, "sizes": {"a": None}, "idle_s": None}
    where = {"listen": "127.0.0.1", "port": port, "room": 0}
    return {**where, "keys": {}, "engine_key": None, "models": [{**model, "start_s": None, "backends": [url]}]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def fastapi_python() -> str:
    """Python of a virtual environment with FastAPI; creates it if missing."""
    place = Path(os.environ.get("SPARKCLUSTER_CACHE") or "~/.cache/sparkcluster").expanduser() / "bench" / "fastapi"
    python, uv = place / "bin/python", str(Path(PYTHON).with_name("uv"))
    if not python.exists() or subprocess.run([python, "-c", "import fastapi, httpx, uvicorn"], check=False).returncode:
        timed([uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(place)])
        timed([uv, "pip", "install", "--quiet", "--python", str(python), "fastapi", "httpx", "uvicorn"])
    return str(python)


@contextlib.contextmanager
def running(argv: list[str], port: int) -> Iterator[int]:
    """The PID of a server on ``port``, once it answers."""
    process = subprocess.Popen(argv, env=ENVIRONMENT)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        else:
            sys.exit(f"{argv[1]} does not listen")
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def first_token(port: int, connections: dict[int, http.client.HTTPConnection]) -> float:
    """Milliseconds to the first token of an answer, on a keep-alive connection."""
    connection = connections.setdefault(port, http.client.HTTPConnection("127.0.0.1", port))
    messages = [{"role": "user", "content": "word " * 1000}]
    body = json.dumps({"model": "gpt", "stream": True, "max_tokens": 1, "every_s": 0, "messages": messages}).encode()
    began = time.perf_counter()
    connection.request("POST", PATH, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    line = answer.readline()
    taken = time.perf_counter() - began
    if answer.status != 200 or not line.startswith(b"data: ") or not answer.read():
        sys.exit(f"port {port} answered {answer.status}: {line!r}")
    return taken * 1000


def used(pid: int) -> tuple[float, float]:
    """CPU seconds and resident memory in MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def stream(port: int, tokens: int) -> None:
    every_s = STREAMS / TOKENS_S
    body = json.dumps({"model": "gpt", "stream": True, "max_tokens": tokens, "every_s": every_s}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    answer = await reader.read(-1)
    writer.close()
    if answer.count(b"data: ") != tokens:
        sys.exit(f"port {port} lost tokens: {answer[:200]!r}")


async def load(port: int, pid: int, seconds: float) -> float:
    """Share of a core that ``pid`` uses for all streams through ``port``, scaled to ``TOKENS_S`` tokens per second."""
    before, tokens = used(pid)[0], int(seconds * TOKENS_S / STREAMS)
    await asyncio.gather(*(stream(port, tokens) for _ in range(STREAMS)))
    return (used(pid)[0] - before) / (tokens * STREAMS) * TOKENS_S


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-gateway", description="the gateway against no gateway and FastAPI")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    quick = parser.parse_args().quick
    python = fastapi_python()
    engine, gateway, proxy = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{engine}"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as servers:
        files = {"config.json": json.dumps(config(url, gateway))}
        files |= {"gateway.py": standalone("program", package="gateway"), "engine.py": ENGINE, "proxy.py": PROXY}
        for each, text in files.items():
            Path(name, each).write_text(text)
        servers.enter_context(running([PYTHON, f"{name}/engine.py", str(engine)], engine))
        argv = [PYTHON, "-I", f"{name}/gateway.py", f"{name}/config.json", name]
        pids = {"gateway": servers.enter_context(running(argv, gateway))}
        pids["FastAPI"] = servers.enter_context(running([python, f"{name}/proxy.py", str(proxy), url], proxy))
        ports = {"direct": engine, "gateway": gateway, "FastAPI": proxy}
        wait_until_quiet()
        connections: dict[int, http.client.HTTPConnection] = {}
        turns = [[first_token(port, connections) for port in ports.values()] for _ in range(100 if quick else 1000)]
        shares: dict[str, list[float]] = {each: [] for each in pids}
        for _ in range(2 if quick else 5):
            for each, pid in pids.items():
                shares[each].append(asyncio.run(load(ports[each], pid, 3 if quick else 5)))
        memory = {each: used(pid)[1] for each, pid in pids.items()}

    within = []
    for at, each in enumerate(pids, 1):
        more = [turn[at] - turn[0] for turn in turns[10:]]
        detail = f"p99 {statistics.quantiles(more, n=100)[98]:.2f}; direct {statistics.median(t[0] for t in turns):.2f}"
        share = statistics.median(shares[each]) * 100
        for what, number, about, most in (
            ("ms more than direct to the first token, median", statistics.median(more), detail, 2),
            (f"% of a core at {TOKENS_S} tokens/s, {STREAMS} streams", share, "", 5),
            ("MiB of memory", memory[each], "", 60),
        ):
            within.append(show(f"{each}: {what}", number, about, at_most=most if each == "gateway" else None))
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
