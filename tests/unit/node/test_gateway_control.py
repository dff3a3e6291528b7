"""The control socket of a gateway, in a directory whose path is too long for a Unix socket address."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import threading
from pathlib import Path

import pytest

from sparkcluster.node import door_place, gateway_control


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # and back, since the program changes to the directory of the socket
    state_dir = tmp_path / ("long" * 30)
    (state_dir / "clusters/home-gateway/run").mkdir(parents=True)
    state_dir.chmod(0o700)
    return {"state_dir": str(state_dir), "cluster": "home-gateway", "method": "POST", "path": "/load/embed"}


def test_the_gateways_answer_is_forwarded(request_of):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.dumps({"error": f"{self.path} is full"}).encode()
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

        def address_string(self):
            return "unix"

    directory = os.open(f"{request_of['state_dir']}/clusters/home-gateway/run", os.O_PATH)
    with socketserver.UnixStreamServer(f"/proc/self/fd/{directory}/control.sock", Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert gateway_control.main(request_of) == {"error": "/load/embed is full"}


def test_without_a_gateway_the_reason_is_reported(request_of):
    assert "does not answer: FileNotFoundError" in gateway_control.main(request_of)["error"]


def test_the_gateway_gets_no_token_that_can_start_ranks(request_of):
    cluster = Path(request_of["state_dir"]) / "clusters/home-gateway"
    (cluster / "enabled").mkdir()
    (cluster / "start.json").write_text('{"ask": {"endpoint": "http://192.168.177.12:8001/v1"}}')
    assert door_place.main(request_of) == {}
    tokens = {"token": "of the guards", "door_token": "of the door"}
    config = {"node": "beta", "port": 29751, "on_demand": True, **tokens}
    (cluster / "enabled/config.json").write_text(json.dumps(config))
    place = {"node": "beta", "address": "192.168.177.12", "port": 29751, "token": "of the door"}
    assert door_place.main(request_of) == place
