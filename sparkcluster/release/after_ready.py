"""Commands of the inventory's ``after_ready``: on this machine, once a change has ended verified."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from sparkcluster.errors import Interrupted
from sparkcluster.release.rollout import Rollout
from sparkcluster.report import Report, duration
from sparkcluster.spec import Spec

# How long a command has to end after SIGTERM.
GRACE_S = 2.0
_LINE = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """How one command ended; ``problem`` is None for exit code 0."""

    command: Sequence[str]
    seconds: float
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"command": list(self.command), "seconds": round(self.seconds, 2), "problem": self.problem}


def run(spec: Spec, done: Rollout, report: Report) -> list[Ran]:
    """Run the commands in order if ``done`` changed something; what fails is reported, and changes nothing.

    The cluster serves whatever they do, so that none is an error. They start in the inventory's directory.

    Raises:
        Interrupted: by Ctrl-C, which ends the command that runs.
    """
    commands = spec.inventory.after_ready if done.changed else []
    out: list[Ran] = []
    for command in commands:
        limit_s = spec.inventory.after_ready_timeout_s
        report.step("run", f"{shlex.join(command)}, within {duration(limit_s)}")
        try:
            directory = spec.inventory_path.absolute().parent
            ran = _run(command, environment(spec, done), directory=directory, limit_s=limit_s, report=report)
        except KeyboardInterrupt:
            text = f"interrupted; {spec.inventory.cluster} serves release {done.number}"
            raise Interrupted(text, step="after_ready") from None
        if ran.problem:
            report.failed()
            report.note(f"warning: after_ready: {shlex.join(command)}: {ran.problem}; release {done.number} serves")
        out.append(ran)
    return out


def environment(spec: Spec, done: Rollout) -> dict[str, str]:
    """What commands are told, in addition to the environment of sparkcluster."""
    endpoints = [group.endpoint for group in done.view.plan.groups] if done.view.plan else []
    return {
        "SPARKCLUSTER_CLUSTER": spec.inventory.cluster,
        "SPARKCLUSTER_ENDPOINT": next(iter(endpoints), ""),
        "SPARKCLUSTER_ENDPOINTS": " ".join(endpoints),
        "SPARKCLUSTER_MODEL": done.view.spec.playbook.model_name,
        "SPARKCLUSTER_RELEASE": str(done.number),
    }


def _run(
    command: Sequence[str], variables: Mapping[str, str], *, directory: Path, limit_s: float, report: Report
) -> Ran:
    began, name = time.monotonic(), Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(command, time.monotonic() - began, f"cannot be started: {error.strerror}")
    reader = threading.Thread(target=_lines, args=(process.stdout, name, report), daemon=True)
    reader.start()
    try:
        process.wait(limit_s)
        code = process.returncode
        problem = f"exited with {f'code {code}' if code > 0 else f'signal {-code}'}" if code else None
    except subprocess.TimeoutExpired:
        problem = f"took longer than {limit_s:g} s (after_ready_timeout_s) and was stopped"
    finally:
        _stop(process)
    # Not until the output ends: a process that the command left behind may hold it open.
    reader.join(1)
    return Ran(command, time.monotonic() - began, problem)


def _lines(output: IO[bytes] | None, name: str, report: Report) -> None:
    with output or contextlib.nullcontext() as lines:
        while line := lines.readline(_LINE) if lines else b"":
            report.note(f"  {name}: {line.decode(errors='replace').rstrip()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End what still runs of a session."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
