"""``scripts/demo`` on a machine made bare: no .venv, no cache, no capability of root, and then again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NOT_OF_A_CLONE = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "shared")
PORT = 8000

pytestmark = [pytest.mark.full, pytest.mark.engine]


@dataclasses.dataclass
class Done:
    code: int
    out: str
    err: str
    seconds: float


class Machine:
    """A copy of the checkout and a home of its own; all that is started in it is known by that home."""

    def __init__(self, directory):
        self.checkout = directory / "sparkcluster"
        self.home = directory / "home"
        self.home.mkdir()
        shutil.copytree(ROOT, self.checkout, ignore=shutil.ignore_patterns(*NOT_OF_A_CLONE))
        # How packages are found, by what proxy and certificates, is the machine's matter; that nothing is cached is ours.
        dropped = ("XDG_", "SPARKCLUSTER_", "PYTHON", "VIRTUAL_ENV", "UV_CACHE", "PIP_CACHE", "PYTEST", "NO_COLOR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self.env = {**kept, "HOME": str(self.home)}

    def run(self, *argv, timeout=120):
        """Run a command in the checkout, without any of root's capabilities."""
        powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        began = time.monotonic()
        done = subprocess.run(
            [*powerless, *argv],
            cwd=self.checkout,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def processes(self):
        """Ids of the processes that were started with this home."""
        mark, found = f"HOME={self.home}".encode(), []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in file.read_bytes().split(b"\0"):
                    found.append(int(file.parent.name))
        return found

    def listening(self):
        """Addresses on which its processes take connections."""
        lines = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout.splitlines()
        pids = [f"pid={pid}," for pid in self.processes()]
        return {line.split()[3] for line in lines if any(pid in line for pid in pids)}

    def end(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def machine(tmp_path):
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"something listens at 127.0.0.1:{PORT}, where the demo serves")
    machine = Machine(tmp_path)
    yield machine
    machine.end()


def test_one_command_makes_a_bare_machine_answer_and_a_second_finds_it_so(machine):
    cold = machine.run("./scripts/demo", timeout=1500)
    assert cold.code == 0, cold
    lines = cold.out.splitlines()
    assert any(line.startswith("localhost is up (release 1, ") for line in lines)
    assert f"http://127.0.0.1:{PORT}/v1" in cold.out
    prompt_line = next(number for number, line in enumerate(lines) if line.startswith("$ ") and " ask " in line)
    assert len(lines[prompt_line + 1].split()) >= 8
    assert "32 tokens" in cold.err

    sockets = machine.listening()
    assert f"127.0.0.1:{PORT}" in sockets
    assert {address.rpartition(":")[0] for address in sockets} <= {"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"}

    warm = machine.run("./scripts/demo")
    assert warm.code == 0, warm
    assert "localhost is already up, nothing changed (release 1, " in warm.out
    # 10 s are promised, on a machine that does nothing else.
    assert warm.seconds < 30
    answer = warm.out.splitlines()
    prompt_line = next(number for number, line in enumerate(answer) if line.startswith("$ ") and " ask " in line)
    assert answer[prompt_line + 1] == lines[next(n for n, line in enumerate(lines) if line.startswith("$ ")) + 1]

    stop = next(line for line in lines if line.startswith("stop it:")).partition(":")[2].split()
    stopped = machine.run(*stop)
    assert (stopped.code, "1 rank removed" in stopped.out) == (0, True), stopped
    assert machine.processes() == []
    assert machine.run(".venv/bin/sparkcluster", "status", "inventory/localhost.yaml").code == 1
