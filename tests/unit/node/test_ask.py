"""The ask program: it streams the text of an endpoint, and reports every kind of failure by name."""

import http.server
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparkcluster.hosts.program import command
from sparkcluster.node import ask

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts an endpoint that answers every request in the same way; returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(
        body: str,
        status: int = 200,
        seen: list[Any] | None = None,
        hold: threading.Event | None = None,
        pause_s: float = 0,
    ) -> str:

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                sent = self.rfile.read(length)
                if seen is not None:
                    seen.append((self.path, dict(self.headers), json.loads(sent) if sent else None))
                self.send_response(status)
                self.end_headers()
                for line in body.splitlines(keepends=True):
                    self.wfile.write(line.encode())
                    time.sleep(pause_s if line.strip() else 0)
                if hold is not None:
                    hold.wait(10)

            do_POST = answer  # noqa: N815
            do_GET = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def stream_of(*choices: dict[str, Any], usage: dict[str, int] | None = None, end: bool = True) -> str:
    lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    if usage:
        lines.append(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n")
    return "".join(lines) + ("data: [DONE]\n\n" if end else "")


def request(endpoint: str, **more: Any) -> dict[str, Any]:
    return {
        "endpoint": endpoint,
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "temperature": 0.0,
        "first_s": 5,
        "token_s": 5,
        **more,
    }


def test_text_is_streamed_and_returned_completely_at_the_end(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    body = stream_of(
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"content": "Hel"}},
        {"delta": {"content": "lo"}, "finish_reason": "stop"},
        usage={"completion_tokens": 2},
    )
    answer = ask.main(request(serve(body, seen=seen), chat_template_kwargs={"enable_thinking": False}))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"text": "Hel"}, {"text": "lo"}]
    done = answer["done"]
    assert (done["content"], done["finish_reason"], done["usage"]) == ("Hello", "stop", {"completion_tokens": 2})
    assert 0 <= done["ttft_s"] <= done["total_s"]
    path, _, sent = seen[0]
    assert path == "/v1/chat/completions"
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert (sent["max_tokens"], sent["temperature"]) == (8, 0.0)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_alone_is_a_sign_of_life(serve: Serve, field: str) -> None:
    """A reasoning model may spend all its tokens on reasoning: its content is null, and it is alive."""
    body = stream_of({"delta": {field: "Hmm"}}, {"delta": {"content": None}, "finish_reason": "length"})
    done = ask.main(request(serve(body)))["done"]
    assert done["reasoning"] == "Hmm"
    assert done["content"] == ""
    assert done["ttft_s"] is not None


@pytest.mark.parametrize("text", ["", "half an ans"])
def test_an_answer_aborted_by_the_engine_is_not_an_answer(serve: Serve, text: str) -> None:
    """vLLM ends new requests that way while it finishes those in flight, and otherwise those in flight."""
    body = stream_of({"delta": {"content": text}, "finish_reason": "abort"}, usage={"completion_tokens": 0})
    error = ask.main(request(serve(body)))["error"]
    assert (error["kind"], "aborted" in error["message"]) == ("unavailable", True)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, {"error": "Unauthorized"}, "unauthorized", "rejects the API key that its rank was started with"),
        (400, {"error": {"message": "max_tokens is too large"}}, "rejected", "too large"),
        (400, {"error": {"message": "This model's maximum context length is 16384 tokens."}}, "too-long", "16384"),
        (500, {"error": {"message": "EngineCore encountered an issue"}}, "engine-dead", "EngineCore"),
        (503, {}, "unavailable", "503"),
    ],
)
def test_refusals_of_the_endpoint_are_reported_by_kind(
    serve: Serve, status: int, body: dict[str, Any], kind: str, words: str
) -> None:
    error = ask.main(request(serve(json.dumps(body), status)))["error"]
    assert error["kind"] == kind
    assert words in error["message"]


def test_an_engine_that_dies_during_an_answer_is_an_error(serve: Serve) -> None:
    """The status was already 200, and the API may still answer /health."""
    body = stream_of({"delta": {"content": "Hel"}}, end=False)
    told = 'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n'
    assert ask.main(request(serve(body + told)))["error"]["kind"] == "engine-dead"
    assert ask.main(request(serve(body)))["error"]["kind"] == "lost"


def test_a_port_without_a_listener() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    error = ask.main(request(f"http://127.0.0.1:{port}/v1"))["error"]
    assert error == {"kind": "refused", "message": f"nothing is listening at 127.0.0.1:{port}"}


def test_the_key_is_read_from_its_file_and_never_printed(
    serve: Serve, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    key_file = tmp_path / "secrets.env"
    key_file.write_text("HF_TOKEN=hf_x\nVLLM_API_KEY=s3cret=with=signs\n")
    key_file.chmod(0o600)
    answer = ask.main(
        request(
            serve(stream_of({"delta": {"content": "x"}}), seen=seen), key_file=str(key_file), key_name="VLLM_API_KEY"
        )
    )
    assert seen[0][1]["Authorization"] == "Bearer s3cret=with=signs"
    assert "s3cret" not in json.dumps(answer) + capsys.readouterr().out
    wrong = request(serve("{}", 401), key_file=str(key_file), key_name="VLLM_API_KEY")
    assert "rejects the API key that its rank was started with" in ask.main(wrong)["error"]["message"]
    error = ask.main(request(serve(""), key_file=str(tmp_path / "gone")))["error"]
    assert error["kind"] == "unauthorized"
    assert error["message"] == f"cannot read the API key from {tmp_path}/gone: No such file or directory"


def test_a_request_ends_with_the_connection_of_its_caller(serve: Serve) -> None:
    hold = threading.Event()
    endpoint = serve("", hold=hold)
    argv, stdin = command("ask", request(endpoint, first_s=60))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.flush()
        process.stdin.close()
        try:
            assert process.wait(60) != 0
        finally:
            hold.set()
            process.kill()


def test_the_limit_is_the_time_without_a_token_and_not_the_total(serve: Serve) -> None:
    """2,048 tokens of reasoning at 8 tokens/s take four minutes without a fault."""
    body = stream_of(*[{"delta": {"content": "ab"}}] * 12)
    answer = ask.main(request(serve(body, pause_s=0.2), first_s=2, token_s=2))
    assert answer["done"]["content"] == "ab" * 12
    assert answer["done"]["total_s"] > 2


def test_an_answer_that_stops_is_reported_with_its_progress(serve: Serve) -> None:
    hold = threading.Event()
    endpoint = serve(stream_of(*[{"delta": {"content": "ab"}}] * 2, end=False), hold=hold)
    silent = serve("", hold=hold)
    error = ask.main(request(endpoint, token_s=1.5))["error"]
    assert (error["kind"], "after 4 characters" in error["message"]) == ("timeout", True)
    error = ask.main(request(silent, first_s=0.2))["error"]
    hold.set()
    assert (error["kind"], "after 0 characters" in error["message"]) == ("timeout", True)


NEAR, FAR = [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]


def vectors(*found: list[float]) -> str:
    return json.dumps({"data": [{"index": at, "embedding": each} for at, each in enumerate(found)], "usage": {}})


def scores(near: object, far: object) -> str:
    # the better one comes first
    return json.dumps({"results": [{"index": 1, "relevance_score": far}, {"index": 0, "relevance_score": near}]})


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("embeddings", vectors([1.0, 0.1, 1.0], NEAR, FAR), "vectors of 3 numbers: 0.998 for a text"),
        ("rerank", scores(0.9, 0.1), "scores: 0.900 for a text"),
    ],
)
def test_a_model_that_writes_no_text_returns_the_best_matching_text(
    serve: Serve, kind: str, body: str, said: str
) -> None:
    seen: list[Any] = []
    answer = ask.main(request(serve(body, seen=seen), kind=kind))
    assert answer["done"]["content"].startswith(said)
    (path, _, sent), *_ = seen
    assert path == f"/v1/{kind}"
    assert sent["model"] == "tiny"
    assert "messages" not in sent


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("embeddings", vectors(NEAR, NEAR, NEAR)),
        ("embeddings", vectors([0.0] * 3, [0.0] * 3, [0.0] * 3)),
        ("embeddings", vectors(NEAR, NEAR)),
        ("embeddings", vectors(NEAR, NEAR, [1.0])),
        ("embeddings", '{"data": [{"index": 0, "embedding": ["x"]}]}'),
        ("rerank", scores(0.5, 0.5)),
        ("rerank", scores(float("nan"), 0.1)),
        ("rerank", "[]"),
    ],
)
def test_meaningless_vectors_and_scores_are_not_an_answer(serve: Serve, kind: str, body: str) -> None:
    assert ask.main(request(serve(body), kind=kind))["error"]["kind"] == "malformed"
