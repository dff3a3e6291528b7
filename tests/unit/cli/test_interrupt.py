"""Ctrl-C ends a command with exit code 130, wherever it is."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkcluster.cli import main as frame

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = ROOT / "inventory" / "two-spark.yaml"


def ends_with(monkeypatch: pytest.MonkeyPatch, run: Callable[[object], int]) -> int:
    """Exit code of a command that runs the function ``run``."""
    module = types.ModuleType("sparkcluster.cli.status")
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sparkcluster.cli.status", module)
    return frame.guarded(["status"])


def interrupted_at(event: int, argv: list[str]) -> tuple[int, int]:
    """Exit code of a command that gets SIGINT at its ``event``-th line, call or return, and the number of events."""
    count = 0

    def trace(_frame: types.FrameType, _event: str, _arg: object) -> object:
        nonlocal count
        count += 1
        if count == event:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sys.settrace(trace)
        try:
            return frame.guarded(argv), count
        finally:
            sys.settrace(before)


# an interrupt between open() and the with of it leaves the file to the collector
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_validation_can_be_interrupted_anywhere() -> None:
    argv = ["lint", str(INVENTORY)]
    interrupted_at(0, argv)  # performs all imports
    code, events = interrupted_at(0, argv)
    assert code == 0
    assert events > 5_000
    ends = {event: interrupted_at(event, argv) for event in range(20, events - 20, events // 50)}
    # a run with cached patterns is shorter than the counted one: its last events do not happen
    codes = {event: code for event, (code, count) in ends.items() if count >= event}
    assert len(codes) > 40
    assert {event: code for event, code in codes.items() if code != 130} == {}


@pytest.mark.parametrize("at", [20_000, 300_000, 800_000])
def test_imports_can_be_interrupted_anywhere(at: int) -> None:
    """In a separate process, since modules are imported only once."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_interrupt
sys.exit(test_interrupt.interrupted_at(int(sys.argv[1]), ["lint", {str(INVENTORY)!r}])[0])
"""
    done = subprocess.run([sys.executable, "-c", code, str(at)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_interrupt_that_a_finalizer_drops_is_raised_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def run(_: object) -> int:
        Finalized()
        threading.Event().wait(600)
        return 0

    assert ends_with(monkeypatch, run) == 130


def test_an_interrupt_dropped_without_a_trace_still_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_: object) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("not a number")

    assert ends_with(monkeypatch, run) == 130


def test_reading_ssh_config_can_be_interrupted_immediately(tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches ``ssh -G`` as well, whose exit looked like a broken ssh_config: exit code 2."""
    slow = tmp_path / "ssh"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 600\n")
    slow.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "sparkcluster", "status", str(INVENTORY)]
    running = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        limit = time.monotonic() + 30
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < limit
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=30)
    finally:
        running.kill()
    assert (running.returncode, said) == (130, "error: interrupted\n")
