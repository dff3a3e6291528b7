"""``scripts/demo`` on a bare machine (no .venv, no model, no capability of root), and a second run."""

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

from sparkcluster.fit import shipped
from sparkcluster.fit.config import parse
from sparkcluster.fit.headers import from_path
from sparkcluster.fit.weights import of_tensors
from tests import examples

ROOT = Path(__file__).parent.parent.parent
NOT_OF_A_CLONE = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "shared")
PORT = 8000

ASK = 'sparkcluster ask inventory/localhost.yaml "What is the capital of France?"'
STEPS = (
    "creating .venv",
    "installing sparkcluster",
    "installing torch",
    "installing vLLM's dependencies",
    "checking that vLLM starts",
    "downloading SmolLM2",
    "converting SmolLM2",
    "  localhost: starting the engine",
)

pytestmark = pytest.mark.engine


@dataclasses.dataclass
class Done:
    code: int
    out: str
    err: str
    seconds: float


class Machine:
    """A copy of the checkout and a separate home; processes are identified by that home."""

    def __init__(self, directory):
        self.checkout = directory / "sparkcluster"
        self.home = directory / "home"
        self.home.mkdir()
        shutil.copytree(ROOT, self.checkout, ignore=shutil.ignore_patterns(*NOT_OF_A_CLONE))
        # Uses the machine's package index, proxy, certificates and caches.
        dropped = ("XDG_", "SPARKCLUSTER_", "PYTHON", "VIRTUAL_ENV", "PYTEST", "NO_COLOR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        cache = os.environ.get("UV_CACHE_DIR") or Path("~/.cache/uv").expanduser()
        self.env = {**kept, "HOME": str(self.home), "UV_CACHE_DIR": str(cache)}

    def start(self, *argv, **streams):
        """Start a command in the checkout, without root's capabilities, as a terminal would."""
        powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        kinds = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        return subprocess.Popen(
            [*powerless, *argv], cwd=self.checkout, env=self.env, text=True, start_new_session=True, **kinds
        )

    def run(self, *argv, timeout=120, typed=""):
        """Run a command to its end."""
        began = time.monotonic()
        process = self.start(*argv, stdin=subprocess.PIPE)
        out, err = process.communicate(typed, timeout=timeout)
        return Done(process.returncode, out, err, time.monotonic() - began)

    def interrupt(self, *argv, at):
        """Run a command and press Ctrl-C after a line that begins with ``at``; returns exit code and output."""
        lines = []
        with self.start(*argv, stdout=subprocess.DEVNULL) as process:
            for line in process.stderr:
                lines.append(line)
                if line.startswith(at):
                    os.killpg(process.pid, signal.SIGINT)
        return process.returncode, lines

    def processes(self):
        """IDs of the processes that were started with this home or run in it: vLLM overwrites its environment."""
        mark, found = f"HOME={self.home}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                started = mark in (process / "environ").read_bytes().split(b"\0")
                if started or self.home in (process / "cwd").readlink().parents:
                    found.append(int(process.name))
        return found

    def listening(self):
        """Addresses on which its processes listen."""
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


def test_one_command_makes_a_bare_machine_serve_and_a_second_run_changes_nothing(machine):
    cold = machine.run("./scripts/demo", timeout=1500)
    assert cold.code == 0, cold
    lines = cold.out.splitlines()
    assert any(line.startswith("localhost is up ") for line in lines)
    assert f"http://127.0.0.1:{PORT}/v1" in cold.out
    assert "Paris" in answer(cold)
    assert not [line for line in cold.err.splitlines() if "%|" in line or " + " in line], "one line per step"

    sockets = machine.listening()
    assert f"127.0.0.1:{PORT}" in sockets
    assert {address.rpartition(":")[0] for address in sockets} <= {"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"}

    warm = machine.run("bash", "-c", "./scripts/demo 2>&1")
    assert warm.code == 0, warm
    assert "localhost is already up " in warm.out
    assert "installing" not in warm.out
    asked = warm.out.split(f"$ .venv/bin/{ASK}\n")[1].split("\n\n")[0]
    assert not examples.difference("ask", ASK, f"{asked}\n")
    played = machine.run(*offered(cold, "twenty_questions"), "--secret", "cat", typed="Is it alive?\nIs it a cat?\n")
    assert (played.code, "yes: the secret was cat, found with question 2" in played.out) == (0, True), played

    stopped = machine.run(*offered(cold, "sparkcluster down"))
    assert (stopped.code, "1 rank removed" in stopped.out) == (0, True), stopped
    assert machine.processes() == []
    assert machine.run(".venv/bin/sparkcluster", "status", "inventory/localhost.yaml").code == 1

    made = from_path(machine.home / ".cache/sparkcluster/models/smollm2-135m-instruct")
    recorded = shipped.recorded("~/.cache/sparkcluster/models/smollm2-135m-instruct")
    config = parse(made.config, "smollm2")
    assert config == parse(recorded.config, "smollm2")
    assert of_tensors(recorded.tensors, config, ranks=1) == of_tensors(made.tensors, config, ranks=1)


@pytest.mark.full
def test_ctrl_c_at_each_step_leaves_nothing_half_done(machine):
    for step in STEPS:
        code, lines = machine.interrupt("./scripts/demo", at=step)
        assert (code, machine.processes()) == (130, []), (step, lines)
        assert not [line for line in lines if "Traceback" in line], (step, lines)
    models = machine.home / ".cache/sparkcluster/models"
    assert [path.name for path in models.iterdir() if path.is_dir()] == ["smollm2-135m-instruct"]
    done = machine.run("./scripts/demo", timeout=600)
    assert (done.code, "Paris" in answer(done)) == (0, True), done
    assert "installing" not in done.err
    assert machine.run(*offered(done, "sparkcluster down")).code == 0

    tiny = machine.run("./scripts/demo", "--tiny", timeout=600)
    assert (tiny.code, len(answer(tiny).split()) > 8) == (0, True), tiny


def test_a_full_disk_is_reported_before_the_download(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "none", disk], check=True)
    try:
        machine = Machine(disk)
        for size, needed, hint in (
            ("300m", "2.8", "free some space"),
            ("3g", "3.4", "free some space, or ./scripts/demo --tiny: 0.6 GB less"),
        ):
            subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
            refused = machine.run("./scripts/demo")
            assert refused.code == 2
            assert f"error: not enough disk space in {disk}" in refused.err
            assert f": {needed} GB needed, " in refused.err
            assert refused.err.endswith(f"hint: {hint}\n")
        assert not (machine.checkout / ".venv").exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def answer(done):
    """The model's answer in the demo: the line below the prompt."""
    lines = done.out.splitlines()
    prompt = next(number for number, line in enumerate(lines) if line.startswith("$ ") and " ask " in line)
    return lines[prompt + 1]


def offered(done, part):
    """The command in the demo's output that contains ``part``."""
    return next(line for line in done.out.splitlines() if line.startswith("  .venv") and part in line).split()
