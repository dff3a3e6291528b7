"""A temporary Docker engine, for building an image."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self

from sparkcluster.errors import LabError
from sparkcluster.lab.machine import wait_until

START_LIMIT_S = 60
LIMIT_S = 900
"""Time limit of a command after its input is written."""


class Docker:
    """A context in which a Docker engine runs on ``data_root``, without a network."""

    def __init__(self, data_root: Path) -> None:
        self.data_root = data_root
        self._run = Path()
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for tool in ("setpriv", "dockerd", "docker"):
            if shutil.which(tool) is None:
                hint = "sudo apt-get install -y docker.io"
                raise LabError(f"{tool} is not installed", step="build image", hint=hint)
        with contextlib.ExitStack() as stack:
            # Short, since the path of a socket is limited to 108 bytes.
            self._run = Path(tempfile.mkdtemp(prefix="sclab-", dir="/run"))
            stack.callback(shutil.rmtree, self._run, ignore_errors=True)
            self.data_root.mkdir(parents=True, exist_ok=True)
            stack.callback(self._unmount)
            self._start(stack)
            self._exit = stack.pop_all()
        return self

    def _start(self, stack: contextlib.ExitStack) -> None:
        # It must end with a builder that is killed.
        argv = ["setpriv", "--pdeathsig", "KILL", "dockerd", "--data-root", str(self.data_root)]
        argv += ["--exec-root", str(self._run / "exec")]
        argv += ["--pidfile", str(self._run / "pid"), "--host", f"unix://{self._run}/docker.sock"]
        argv += ["--config-file", str(self._run / "none.json"), "--storage-driver", "overlay2"]
        argv += ["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--bridge=none"]
        (self._run / "none.json").write_text("{}")
        with (self._run / "log").open("wb") as log:
            daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(_stop, daemon)

        def answers() -> bool:
            return subprocess.run([*self._client, "version"], capture_output=True, check=False).returncode == 0

        wait_until(lambda: daemon.poll() is not None or answers(), limit_s=START_LIMIT_S, step_s=0.1)
        if not answers():
            last = (self._run / "log").read_text(errors="replace").strip().splitlines()[-1:]
            raise LabError(f"dockerd did not start: {''.join(last)}", step="build image")

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def run(self, arguments: list[str], write: Callable[[IO[bytes]], object] = lambda _: None) -> str:
        """Run ``docker ARGUMENTS`` with the input that ``write`` writes; return its output.

        Raises:
            LabError: it failed.
        """
        argv = [*self._client, *arguments]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
            assert client.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its output has the reason
                write(client.stdin)
            output, errors = client.communicate(timeout=LIMIT_S)
        if client.returncode != 0:
            lines = (errors or output).decode(errors="replace").strip().splitlines() or ["no message"]
            raise LabError(f"docker {arguments[0]} failed: {lines[-1]}", step="build image")
        return output.decode(errors="replace")

    def import_stream(self, source: IO[bytes], reference: str, changes: Sequence[str]) -> str:
        """Create an image with one layer from a tar stream, with ``changes`` as in a Dockerfile; return its ID.

        Raises:
            LabError: Docker failed.
        """
        options = [word for change in changes for word in ("--change", change)]
        return self.run(["import", *options, "-", reference], lambda stdin: shutil.copyfileobj(source, stdin)).strip()

    @property
    def _client(self) -> list[str]:
        return ["docker", "--host", f"unix://{self._run}/docker.sock"]

    def _unmount(self) -> None:
        for target in (self.data_root / "overlay2", self.data_root):
            if os.path.ismount(target):
                subprocess.run(["umount", str(target)], check=False, capture_output=True)


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(30)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
