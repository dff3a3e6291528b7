"""A temporary Docker engine, for building an image."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from sparkcluster.errors import LabError

START_LIMIT_S = 60
LOAD_LIMIT_S = 900


class Docker:
    """A context in which a Docker engine runs on ``data_root``, without a network."""

    def __init__(self, data_root: Path) -> None:
        self.data_root = data_root
        self._daemon: subprocess.Popen[bytes] | None = None
        self._run = Path()

    def __enter__(self) -> Self:
        self.data_root.mkdir(parents=True, exist_ok=True)
        # Short: the path of a socket is limited to 108 bytes.
        self._run = Path(tempfile.mkdtemp(prefix="sclab-", dir="/run"))
        # It must not outlive a builder that is killed.
        argv = ["setpriv", "--pdeathsig", "KILL", "dockerd", "--data-root", str(self.data_root)]
        argv += ["--exec-root", str(self._run / "exec")]
        argv += ["--pidfile", str(self._run / "pid"), "--host", f"unix://{self._run}/docker.sock"]
        argv += ["--config-file", str(self._run / "none.json"), "--storage-driver", "overlay2"]
        argv += ["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--bridge=none"]
        (self._run / "none.json").write_text("{}")
        with (self._run / "log").open("wb") as log:
            try:
                self._daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            except FileNotFoundError as error:
                self._clean()
                raise LabError(
                    "dockerd is not installed", step="build image", hint="sudo apt-get install -y docker.io"
                ) from error
        until = time.monotonic() + START_LIMIT_S
        while subprocess.run([*self._client(), "version"], capture_output=True, check=False).returncode != 0:
            if self._daemon.poll() is not None or time.monotonic() > until:
                last = (self._run / "log").read_text(errors="replace").strip().splitlines()[-1:]
                self.__exit__(None, None, None)
                raise LabError(f"dockerd did not start: {''.join(last)}", step="build image")
            time.sleep(0.1)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(30)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
        self._clean()

    def run(self, arguments: list[str]) -> str:
        """Run ``docker ARGUMENTS``; its output.

        Raises:
            LabError: it failed.
        """
        done = subprocess.run([*self._client(), *arguments], capture_output=True, stdin=subprocess.DEVNULL, check=False)
        return self._checked(done.returncode, done.stdout, done.stderr, arguments[0])

    def import_stream(self, source: IO[bytes]) -> str:
        """Make a layer of a tar stream, as the image ``base:import``; its diff ID.

        Raises:
            LabError: Docker refused it.
        """
        argv = [*self._client(), "import", "-", "base:import"]
        done = subprocess.run(argv, stdin=source, capture_output=True, check=False)
        self._checked(done.returncode, done.stdout, done.stderr, "import")
        return self.run(["image", "inspect", "--format", "{{index .RootFS.Layers 0}}", "base:import"]).strip()

    def load(self, write: Callable[[IO[bytes]], None]) -> None:
        """Load the archive that ``write`` writes.

        Raises:
            LabError: Docker refused it.
        """
        with subprocess.Popen(
            [*self._client(), "load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as loader:
            assert loader.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its output says why
                write(loader.stdin)
            output, _ = loader.communicate(timeout=LOAD_LIMIT_S)
        self._checked(loader.returncode, output, b"", "load")

    def _client(self) -> list[str]:
        return ["docker", "--host", f"unix://{self._run}/docker.sock"]

    def _clean(self) -> None:
        for mounted in ("overlay2", ""):
            target = self.data_root / mounted
            if os.path.ismount(target):
                subprocess.run(["umount", str(target)], check=False, capture_output=True)
        shutil.rmtree(self._run, ignore_errors=True)

    @staticmethod
    def _checked(code: int, output: bytes, errors: bytes, what: str) -> str:
        if code != 0:
            lines = (errors or output).decode(errors="replace").strip().splitlines() or ["no message"]
            raise LabError(f"docker {what} failed: {lines[-1]}", step="build image")
        return output.decode(errors="replace")
