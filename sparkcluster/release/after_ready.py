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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from sparkcluster.errors import Interrupted
from sparkcluster.release.rollout import Rollout
from sparkcluster.report import Report
from sparkcluster.spec import Spec

STILL_S, GRACE_S = 15.0, 2.0
"""How often a command without an end is reported; how long it has to end after SIGTERM."""
_LINE = 4096


class _NotStartedError(Exception):
    """A command could not be started; the text says why."""


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
        report.step("run", shlex.join(command))
        try:
            ran = _run(
                command,
                environment(spec, done),
                directory=spec.inventory_path.absolute().parent,
                limit_s=spec.inventory.after_ready_timeout_s,
                report=report,
            )
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
        with _started(command, cwd=directory, env={**os.environ, **variables}) as process:
            reader = threading.Thread(target=_lines, args=(process.stdout, name, report), daemon=True)
            reader.start()
            until = began + limit_s
            while (left_s := until - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(STILL_S, left_s))
                    break
                if time.monotonic() < until:
                    report.note(f"  {name}: runs for {time.monotonic() - began:.0f} s of at most {limit_s:g} s")
    except _NotStartedError as error:
        return Ran(command, time.monotonic() - began, f"cannot be started: {error}")
    # Not until the output ends: a process that the command left behind may hold it open.
    reader.join(1)
    seconds = time.monotonic() - began
    if left_s <= 0:
        return Ran(command, seconds, f"took longer than {limit_s:g} s (after_ready_timeout_s) and was stopped")
    code = process.returncode
    return Ran(command, seconds, f"exited with {f'code {code}' if code > 0 else f'signal {-code}'}" if code else None)


def _lines(output: IO[bytes] | None, name: str, report: Report) -> None:
    with output or contextlib.nullcontext() as lines:
        while line := lines.readline(_LINE) if lines else b"":
            report.note(f"  {name}: {line.decode(errors='replace').rstrip()}")


@contextlib.contextmanager
def _started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all that it starts in a session of its own, which is stopped if it still runs at the end.

    Raises:
        _NotStartedError: the program is missing, or cannot be executed.
    """
    process = None
    try:
        try:
            process = subprocess.Popen(
                command,
                **options,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise _NotStartedError(error.strerror) from error
        yield process
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if process is None or process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
