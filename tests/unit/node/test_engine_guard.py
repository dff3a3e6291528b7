"""When a guard calls an engine dead: as endpoint.dead does, with a real endpoint."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from sparkcluster.node import group_guard


class Engine(http.server.ThreadingHTTPServer):
    """An engine on this node; ``status`` of completions, ``delay_s`` before them, and its counters."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.daemon_threads = True
        self.statuses = [200]
        self.delay_s = 0.0
        self.counters = {"generated": 5, "prompted": 5}
        self.moving = self.readable = True
        self.asked = 0
        self.over = threading.Event()

    @property
    def request_document(self):
        counters = {"generated": ["generated"], "prompted": ["prompted"]}
        url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        return {"endpoint": url, "model": "m", "messages": [], "max_tokens": 1, "stream": True, "counters": counters}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Engine

    def log_message(self, *_):
        pass

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        if self.path != "/metrics":
            self.answer(200, json.dumps({"data": [{"id": "m", "max_model_len": 100}]}))
        elif self.server.readable:
            if self.server.moving:
                self.server.counters["prompted"] += 1
            self.answer(200, "".join(f"{name} {value}\n" for name, value in self.server.counters.items()))
        else:
            self.answer(404, "")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        self.server.over.wait(self.server.delay_s)
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        if status != 200:
            self.answer(status, json.dumps({"error": {"message": "EngineDeadError"}}))
            return
        chunk = {"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}
        self.answer(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(group_guard, "COUNTERS_S", 0.05)
    monkeypatch.setattr(group_guard, "RETRY_S", 0.05)
    monkeypatch.setattr(group_guard, "REFUSED_S", 0.05)
    monkeypatch.setattr(group_guard, "stall_limit_s", lambda _: 0.5)
    with Engine() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.over.set()
        made.shutdown()
        thread.join()


def test_an_engine_that_answers_is_alive(engine):
    assert group_guard.why_dead(engine.request_document) is None


def test_no_progress_for_too_long_while_a_request_waits(engine):
    engine.delay_s, engine.moving = 60, False
    why = group_guard.why_dead(engine.request_document)
    assert why is not None
    assert why.startswith("no counter of the engine has moved for")


@pytest.mark.parametrize("change", [{"moving": True}, {"readable": False}])
def test_a_long_wait_is_not_death_while_counters_change_or_are_unreadable(engine, change):
    engine.delay_s, engine.moving = 1.5, False
    vars(engine).update(change)
    assert group_guard.why_dead(engine.request_document) is None


def test_a_500_is_death_only_the_second_time(engine):
    engine.moving = False
    engine.statuses = [500, 200]
    assert group_guard.why_dead(engine.request_document) is None
    engine.statuses = [500]
    assert "EngineDeadError" in (group_guard.why_dead(engine.request_document) or "")


def test_an_engine_without_counters_is_not_queried_for_them(engine):
    """TensorRT-LLM resets its statistics with every answer."""
    engine.delay_s = 0.3
    assert group_guard.why_dead({**engine.request_document, "counters": {}}) is None
    assert engine.counters["prompted"] == 5, "as it was before the first request for metrics"
