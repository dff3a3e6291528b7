"""``export`` and ``web``: where they listen, what they say, and how they end; what they serve is tested beside it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import threading
import time
import urllib.request

import pytest
from docgen import json_schemas

from sparkcluster.cli import common
from sparkcluster.cli.main import guarded
from sparkcluster.telemetry import serve
from tests.unit.telemetry.stand_in import StandIn


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """``run(*words)``: exit code, stdout and stderr of a command whose Sparks are a stand-in."""
    (tmp_path / "atlas.yaml").write_text("cluster: atlas\nplaybook: gpt-oss-120b\nnodes: [{host: 192.168.1.11}]\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "live", lambda *_, **__: contextlib.nullcontext(StandIn()))

    def command(*words: str) -> tuple[int, str, str]:
        code = guarded([words[0], "atlas.yaml", *words[1:]])
        return code, *capsys.readouterr()

    return command


def interrupted_at_once(*_: object) -> None:
    raise KeyboardInterrupt


def test_once_prints_the_metrics_alone(run):
    code, out, err = run("export", "--once")
    assert (code, err) == (0, "")
    assert 'sparkcluster_node_up{node="spark-1"} 1.0\n' in out
    assert {line[0] for line in out.splitlines()} == {"#", "s"}
    document = json.loads(run("export", "--once", "--json")[1])
    json_schemas.validate("export", document)
    assert document["metrics"] == out


def test_it_serves_until_ctrl_c_and_then_ends_quietly(run):
    with serve.listening("127.0.0.1:0") as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    read = []

    def scrape_and_interrupt() -> None:
        until = time.monotonic() + 20
        while not read and time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics") as found:
                read.append(found.read())
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=scrape_and_interrupt).start()
    code, out, err = run("export", "--listen", address)
    assert b"sparkcluster_node_up" in read[0]
    said = [f"listening: http://{address}/metrics", "warning: HOST-017 the clocks differ"]
    assert (code, out, err.splitlines()) == (130, "", said)


@pytest.mark.parametrize("name", ["export", "web"])
def test_elsewhere_than_on_loopback_it_says_where_the_token_is_and_not_the_token(run, monkeypatch, name):
    """What a unit writes to stderr is in the journal."""
    monkeypatch.setattr(serve, "serve", interrupted_at_once)
    code, out, err = run(name, "--listen", "0.0.0.0:0")
    token, path = serve.token()
    assert (code, out) == (130, "")
    assert str(path) in err
    assert token not in err
    document = json.loads(run(name, "--listen", "0.0.0.0:0", "--json")[1])
    json_schemas.validate(name, document)
    assert document["token_file"] == str(path)
    assert json.loads(run(name, "--listen", "127.0.0.1:0", "--json")[1])["token_file"] is None


def test_what_cannot_be_served_is_one_line_before_any_node_is_asked(run, monkeypatch):
    monkeypatch.setattr(common, "live", None)
    with serve.listening("127.0.0.1:0") as taken:
        code, _, err = run("web", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (code, err.count("\n"), "in use" in err) == (2, 2, True)
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "aiohttp" else known(name))
    for name in ("export", "web"):
        code, _, err = run(name)
        assert (code, "pip install 'sparkcluster[export]'" in err) == (2, True)
