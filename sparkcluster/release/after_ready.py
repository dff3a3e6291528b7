"""Commands of the inventory's ``after_ready``: run on this machine after a verified change."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import Interrupted
from sparkcluster.release.rollout import Rollout
from sparkcluster.report import Report, duration
from sparkcluster.spec import Spec


def run(spec: Spec, done: Rollout, report: Report) -> list[dict[str, Any]]:
    """Run the commands in order if ``done`` changed something; returns their results, ``problem`` None for exit code 0.

    They start in the inventory's directory. A failure is only reported: the cluster serves anyway.

    Raises:
        Interrupted: by Ctrl-C, which ends the running command.
    """
    out = []
    for command in spec.inventory.after_ready if done.changed else []:
        began = time.monotonic()
        report.step("run", f"{shlex.join(command)}, within {duration(spec.inventory.after_ready_timeout_s)}")
        try:
            problem = _run(command, spec, environment(spec, done), report)
        except KeyboardInterrupt:
            text = f"interrupted; {spec.inventory.cluster} serves release {done.number}"
            raise Interrupted(text, step="after_ready") from None
        if problem:
            report.failed()
            report.note(f"warning: after_ready: {shlex.join(command)}: {problem}; release {done.number} serves")
        out.append({"command": list(command), "seconds": round(time.monotonic() - began, 2), "problem": problem})
    return out


def environment(spec: Spec, done: Rollout) -> dict[str, str]:
    """Variables for the commands, in addition to the environment of sparkcluster."""
    endpoints = [group.endpoint for group in done.view.plan.groups] if done.view.plan else []
    return {
        "SPARKCLUSTER_CLUSTER": spec.inventory.cluster,
        "SPARKCLUSTER_ENDPOINT": next(iter(endpoints), ""),
        "SPARKCLUSTER_ENDPOINTS": " ".join(endpoints),
        "SPARKCLUSTER_MODEL": done.view.spec.playbook.model_name,
        "SPARKCLUSTER_RELEASE": str(done.number),
    }


def _run(command: Sequence[str], spec: Spec, variables: Mapping[str, str], report: Report) -> str | None:
    """Run ``command`` and report its output when it has ended; returns what went wrong."""
    limit_s = spec.inventory.after_ready_timeout_s
    # A file instead of a pipe: a background process of the command would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=spec.inventory_path.absolute().parent,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"took longer than {limit_s:g} s (after_ready_timeout_s) and was stopped"
        finally:
            _stop(process)
            output.seek(0)
            for line in output:
                report.note(f"  {Path(command[0]).name}: {line.decode(errors='replace').rstrip()}")
    return f"exited with {f'code {code}' if code > 0 else f'signal {-code}'}" if code else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs in the session."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
