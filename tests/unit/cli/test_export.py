"""``export`` and ``web``: where they listen, what they print, and how they end; other tests check what they serve."""

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
from tests.unit.telemetry.fake_live import FakeLive


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """``run(*words)``: exit code, stdout and stderr of a command with a fake ``Live``."""
    (tmp_path / "atlas.yaml").write_text("cluster: atlas\nplaybook: gpt-oss-120b\nnodes: [{host: 192.168.1.11}]\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "live", lambda *_, **__: contextlib.nullcontext(FakeLive()))

    def command(*words: str) -> tuple[int, str, str]:
        code = guarded([words[0], "atlas.yaml", *words[1:]])
        return code, *capsys.readouterr()

    return command


def interrupted_at_once(*_: object) -> None:
    raise KeyboardInterrupt


def test_once_prints_only_the_metrics(run):
    code, out, err = run("export", "--once")
    assert (code, err) == (0, "")
    assert 'sparkcluster_node_up{node="spark-1"} 1.0\n' in out
    assert {line[0] for line in out.splitlines()} == {"#", "s"}
    document = json.loads(run("export", "--once", "--json")[1])
    json_schemas.validate("export", document)
    assert document["metrics"] == out


def test_export_serves_until_ctrl_c_and_then_exits_without_a_traceback(run):
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
    said = [f"listening: http://{address}/metrics", "warning: HOST-017 spark-1: the clocks differ"]
    assert (code, out, err.splitlines()) == (130, "", said)


@pytest.mark.parametrize("name", ["export", "web"])
def test_beyond_loopback_the_path_of_the_token_is_shown_and_not_the_token(run, monkeypatch, name):
    """A unit's stderr goes to the journal."""
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


def test_an_impossible_export_is_one_error_line_before_any_node_is_contacted(run, monkeypatch):
    monkeypatch.setattr(common, "live", None)
    with serve.listening("127.0.0.1:0") as taken:
        code, _, err = run("web", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (code, err.count("\n"), "in use" in err) == (2, 2, True)
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "aiohttp" else known(name))
    for name in ("export", "web"):
        code, _, err = run(name)
        assert (code, "uv tool install --reinstall '.[export]'" in err) == (2, True)
