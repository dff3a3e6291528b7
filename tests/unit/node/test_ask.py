"""What the ask program makes of an endpoint: text as it comes, and every trouble by its name."""

import contextlib
import gc
import http.server
import json
import re
import socket
import subprocess
import sys
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
    """Starts an endpoint that answers every request in one way; returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(
        body: bytes | str, status: int = 200, seen: list[Any] | None = None, hold: threading.Event | None = None
    ) -> str:
        data = body.encode() if isinstance(body, str) else body

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                sent = self.rfile.read(length)
                if seen is not None:
                    seen.append((self.path, dict(self.headers), json.loads(sent) if sent else None))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()
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
        "stream": True,
        "timeout_s": 5,
        **more,
    }


def test_text_is_told_as_it_comes_and_whole_at_the_end(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
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
    """A reasoning model may spend all its tokens thinking: its content is null, and it lives."""
    body = stream_of({"delta": {field: "Hmm"}}, {"delta": {"content": None}, "finish_reason": "length"})
    done = ask.main(request(serve(body)))["done"]
    assert done["reasoning"] == "Hmm"
    assert done["content"] == ""
    assert done["ttft_s"] is not None


@pytest.mark.parametrize("text", ["", "half an ans"])
def test_an_answer_that_the_engine_broke_off_is_none(serve: Serve, text: str) -> None:
    """vLLM ends every new request so while it lets those in flight finish, and without that, those in flight."""
    body = stream_of({"delta": {"content": text}, "finish_reason": "abort"}, usage={"completion_tokens": 0})
    error = ask.main(request(serve(body)))["error"]
    assert (error["kind"], "aborted" in error["message"]) == ("unavailable", True)
    whole = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "abort"}]})
    assert ask.main(request(serve(whole), stream=False))["error"]["kind"] == "unavailable"


def test_a_tool_call_alone_is_a_sign_of_life(serve: Serve) -> None:
    body = stream_of(
        {"delta": {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "{"}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}, "finish_reason": "tool_calls"},
    )
    done = ask.main(request(serve(body), tools=[{"type": "function"}]))["done"]
    assert done["tool_calls"] == [{"name": "look", "arguments": "{}"}]
    assert done["ttft_s"] is not None


def test_without_a_stream_and_with_a_prompt(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    body = json.dumps({"choices": [{"text": "ok", "finish_reason": "stop"}], "usage": {"total_tokens": 3}})
    wanted = request(serve(body, seen=seen), stream=False, prompt="hi")
    del wanted["messages"]
    done = ask.main(wanted)["done"]
    assert done["content"] == "ok"
    assert seen[0][0] == "/v1/completions"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, {"error": "Unauthorized"}, "unauthorized", "requires an API key, and its rank was started without one"),
        (404, {"error": {"message": "The model `x` does not exist.", "code": 404}}, "unknown-model", "does not exist"),
        (400, {"error": {"message": "max_tokens is too large"}}, "rejected", "too large"),
        (
            400,
            {
                "error": {
                    "message": "This model's maximum context length is 16384 tokens. However, you requested 122946"
                }
            },
            "too-long",
            "16384",
        ),
        (500, {"error": {"message": "no", "code": "context_length_exceeded"}}, "too-long", "no"),
        # of a request without max_tokens whose prompt alone is longer than the context
        (400, {"error": {"message": "max_tokens must be at least 1, got -1981."}}, "too-long", "-1981"),
        (400, {"error": {"message": "max_tokens must be at least 1, got 0."}}, "rejected", "got 0"),
        (500, {"error": {"message": "EngineCore encountered an issue"}}, "engine-dead", "EngineCore"),
        (
            500,
            {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause."}},
            "engine-dead",
            "the engine answers 500: EngineCore encountered an issue.",
        ),
    ],
)
def test_what_the_endpoint_refuses_is_told_by_kind(
    serve: Serve, status: int, body: dict[str, Any], kind: str, words: str
) -> None:
    error = ask.main(request(serve(json.dumps(body), status)))["error"]
    assert (error["status"], error["kind"]) == (status, kind)
    assert words in error["message"]
    assert "trace" not in error["message"]


def test_an_engine_that_dies_in_the_middle_is_an_error(serve: Serve) -> None:
    """The status was 200 by then, and the API may well go on answering /health."""
    body = stream_of({"delta": {"content": "Hel"}}, end=False)
    told = 'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n'
    assert ask.main(request(serve(body + told)))["error"]["kind"] == "engine-dead"
    assert ask.main(request(serve(body)))["error"]["kind"] == "lost"


def test_a_stopped_engine_is_a_time_out(serve: Serve) -> None:
    """Connection and health are fine and no token ever comes; seen with a stopped EngineCore."""
    hold = threading.Event()
    try:
        error = ask.main(request(serve("", hold=hold), timeout_s=0.3))["error"]
    finally:
        hold.set()
    assert error["kind"] == "timeout"


def test_nothing_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    error = ask.main(request(f"http://127.0.0.1:{port}/v1"))["error"]
    assert error == {"status": None, "kind": "refused", "message": f"nothing is listening at 127.0.0.1:{port}"}


def test_something_else_listens(serve: Serve) -> None:
    assert ask.main(request(serve("<html>hello</html>"), stream=False))["error"]["kind"] == "malformed"
    assert ask.main({"endpoint": "http://127.0.0.1:1/v1"})["error"]["kind"] == "malformed"


def test_the_key_comes_from_its_file_and_is_never_told(
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
    assert error["message"] == f"the API key cannot be read from {tmp_path}/gone: No such file or directory"


def test_models(serve: Serve) -> None:
    body = json.dumps({"object": "list", "data": [{"id": "tiny"}, {"id": "lora"}]})
    assert ask.main({"endpoint": serve(body), "mode": "models"})["done"]["models"] == ["tiny", "lora"]


METRICS = """# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 40.0
vllm:generation_tokens_total{engine="1",model_name="m"} 2.0
vllm:gpu_cache_usage_perc{engine="0"} 1.5e-2
vllm:broken nonsense
"""


@pytest.mark.parametrize("every_s", [0.02, 60])
def test_counters_are_told_while_the_answer_is_waited_for_and_with_an_error_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], every_s: float
) -> None:
    monkeypatch.setattr(ask, "COUNTERS_S", every_s)
    waiting = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            models = {"data": [{"id": "m", "max_model_len": 4096}]}
            self.wfile.write(METRICS.encode() if self.path == "/metrics" else json.dumps(models).encode())

        def do_POST(self) -> None:
            waiting.wait(0.5)
            self.send_response(500)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    counters = {
        "generated": ["vllm:generation_tokens_total"],
        "kv_cache": ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
        "waiting": ["vllm:num_requests_waiting"],
    }
    request = {
        "endpoint": f"http://127.0.0.1:{server.server_port}/v1",
        "model": "m",
        "messages": [],
        "counters": counters,
    }
    assert ask.main(request)["error"]["kind"] == "engine-dead"
    server.shutdown()
    server.server_close()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told
    assert told[0] == {"counters": {"generated": 42.0, "kv_cache": 0.015}, "context": 4096 if every_s < 1 else None}


def test_an_engine_without_metrics_has_no_counters(serve: Serve) -> None:
    request = {"endpoint": serve("{}", status=404), "model": "m", "counters": {"generated": ["x"]}}
    assert ask.read_counters(request) == {}
    assert ask.longest(request) is None


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_stands_before_an_engine_does_not_make_it_dead(serve: Serve, status: int) -> None:
    answer = ask.main({"endpoint": serve("overloaded", status=status), "model": "m", "messages": [], "stream": False})
    assert answer["error"]["kind"] == "unavailable"


def test_a_request_ends_with_the_connection_that_asked_for_it(serve: Serve) -> None:
    hold = threading.Event()
    endpoint = serve("", hold=hold)
    argv, stdin = command("ask", request(endpoint, timeout_s=60), python=sys.executable)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.stdin.close()
        try:
            assert process.wait(5) != 0
        finally:
            hold.set()
            process.kill()


class Slow:
    """An endpoint that sends a token, and then waits, for each of ``pauses_s``."""

    def __init__(self, *pauses_s: float) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):
                    for pause_s in pauses_s:
                        time.sleep(pause_s)
                        self.wfile.write(stream_of({"delta": {"content": "ab"}}, end=False).encode())
                        self.wfile.flush()
                    self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_time_without_a_token_counts_and_not_the_whole_answer() -> None:
    """2,048 tokens of reasoning at 8 tokens/s take four minutes, and all is well."""
    with Slow(1.0, *[0.3] * 6) as endpoint:
        answer = ask.main(request(endpoint, timeout_s=3, idle_s=0.8))
    assert answer["done"]["content"] == "ab" * 7


def test_an_answer_that_stops_is_told_with_how_far_it_came() -> None:
    with Slow(0.1, 0.1, 2.0) as endpoint:
        error = ask.main(request(endpoint, timeout_s=3, idle_s=0.5))["error"]
        assert error["kind"] == "timeout"
        assert re.search(r"sent no token for 0 s, after 4 characters$", error["message"])
        error = ask.main(request(endpoint, timeout_s=0.05, idle_s=5))["error"]
        assert re.search(r"sent no token for 0 s$", error["message"])


def test_a_connection_without_an_answer_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = ask.main(request(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", timeout_s=0.2))["error"]
        gc.collect()  # a socket that was left open is a warning, and so an error
        assert error["kind"] == "timeout"


def test_who_waits_for_tokens_gives_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask, "WAITING_S", 0.1)
    with Slow(0.5) as endpoint:
        ask.main(request(endpoint, idle_s=5))
        assert capsys.readouterr().out.count('{"waiting": true}') >= 2
        ask.main(request(endpoint))
        assert "waiting" not in capsys.readouterr().out
