"""The live view: problems first, on a terminal of any size; and the same as JSON lines, until the reader ends."""

from __future__ import annotations

import fcntl
import io
import json
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest
from rich.console import Console

from sparkcluster.cli.status_watch import sparkline, view
from tests.unit.on_terminal import COMMAND, ROOT, OnTerminal

NODE = {
    "available_bytes": 28 * 10**9, "total_bytes": 128 * 10**9, "rdma": {},
    "gpu": {"utilization": 0.87, "power_w": 45.2},
}  # fmt: skip
PAST = {"available_bytes": [28e9, 64e9], "gpu_utilization": [None, 0.87], "rdma_per_s": [0.0, 4e9]}
LOAD = {"running": 2.0, "waiting": 1.0, "tokens_per_s": 40.0, "kv_cache": 0.38}


def finding(code: str, severity: str = "error", node: str | None = None) -> dict[str, Any]:
    remedy = ["sparkcluster doctor home.yaml"]
    return {"code": code, "severity": severity, "summary": "it fails", "node": node, "why": "w", "remedy": remedy}


def home(*findings: dict[str, Any], nodes: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """A document and a history: a serving model, one on demand, and a lost last node."""
    names = [f"spark-{number}" for number in range(1, nodes + 1)]
    group = {"name": "default", "state": "serving", "load": LOAD}
    chat = {
        "name": "chat",
        "model": "m",
        "cluster": "atlas",
        "state": "serving",
        "groups": [group],
        "findings": findings,
    }
    code = {**chat, "name": "code", "cluster": "atlas-code", "state": "on demand", "groups": [], "findings": []}
    seen = {name: {"state": "up", "why": None, "age_s": 0.5, "vitals": NODE} for name in names[:-1]}
    lost = {names[-1]: {"state": "lost", "why": "no route to host", "age_s": None, "vitals": None}}
    document = {
        "inventory": "home",
        "state": "serving",
        "checked_s": 12.4,
        "models": [chat, code],
        "nodes": seen | lost,
    }
    groups = {"atlas/default": {"tokens_per_s": [10.0, 20.0, 40.0], "kv_cache": [0.0, 0.38, 0.38]}}
    return document, {"nodes": dict.fromkeys(names, PAST), "groups": groups}


def shown(found: tuple[dict[str, Any], dict[str, Any]], width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(view(*found, width, height))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_problems_are_first_followed_by_models_and_nodes_with_their_load():
    assert shown(home(finding("RUN-023", "warning"), finding("RUN-003", node="spark-1"))) == [
        "home  ● serving   last check 12 s ago",
        "error: RUN-003 spark-1: it fails",
        "  hint: sparkcluster doctor home.yaml",
        "warning: RUN-023 it fails",
        "  hint: sparkcluster doctor home.yaml",
        "",
        "MODEL  STATE        REQUESTS  TOKENS/S             KV",
        "chat   ● serving    2 + 1       40.0          ▃▅█   38 %        ▁▄▄",
        "code   ● on demand  -         -                    -",
        "",
        "NODE     MEMORY             GPU                     RDMA",
        "spark-1   78 %          ▇▅   87 %  45 W          ▇   32.0 Gb/s         ▁█",
        "spark-2  lost",
        "",
        "q quits this view; models keep running",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (200, 60)])
def test_eight_sparks_and_many_findings_fit(width, height):
    found = shown(home(*(finding(f"RUN-{number:03}") for number in range(9)), nodes=8), width, height)
    assert max(map(len, found)) <= width
    assert len(found) <= height
    said = sum(line.startswith("error: ") for line in found)
    assert 1 <= said <= 5
    assert f"and {9 - said} more" in found


def test_a_sparkline_shows_means_right_aligned_and_blanks_for_unknown_values():
    assert sparkline([0.0, 1.0], 4, 1.0) == "  ▁█"
    assert sparkline([0.0, 0.0, 4.0, 4.0, None, None, 2.0, 2.0], 4) == "▁█ ▅"
    assert sparkline([None, None], 2) == "  "
    assert sparkline([0.0, 0.0], 2) == "▁▁"
    assert len(sparkline([1.0] * 179, 10)) <= 10


LIVE = (
    COMMAND
    + """
import contextlib
from types import SimpleNamespace
from sparkcluster.cli import common, status_watch, streams
from tests.unit.cli.test_status_watch import home
document, history = home()
class Live:
    document, history = document, history
    def wait(self, number, limit_s):
        import time
        time.sleep(min(limit_s, 0.1))
        self.document = {**self.document, "checked_s": self.document["checked_s"] + 1}
        return number + 1
common.live = lambda *_, **__: contextlib.nullcontext(Live())
streams.install()
args = SimpleNamespace(json=%r, inventory="atlas.yaml")
as_command(lambda: status_watch.%s(args))
"""
)


def test_the_view_uses_the_alternate_screen_and_q_ends_it():
    with OnTerminal(LIVE % (False, "run")) as terminal:
        terminal.until("\x1b[?1049h")
        terminal.until("check 1")
        fcntl.ioctl(terminal.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
        terminal.type("xyz")
        terminal.until("check 3")
        assert not terminal.echo
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.echo
        assert "xyz" not in terminal.shown


def test_ctrl_c_ends_the_view_and_restores_the_echo():
    with OnTerminal(LIVE % (False, "run")) as terminal:
        terminal.until("spark-1")
        terminal.type("\x03")
        terminal.end()
        assert terminal.echo
        assert terminal.shown.rstrip().endswith("\x1b[?1049l")


def test_json_lines_continue_until_the_reader_closes_the_pipe():
    argv = [sys.executable, "-c", LIVE % (True, "follow")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout
        assert process.stderr
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [line["checked_s"] for line in lines] == [13.4, 14.4]
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == b""
