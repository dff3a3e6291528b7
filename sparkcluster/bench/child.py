"""Starts and controls the measuring process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkcluster.bench.profiles import Cell
from sparkcluster.errors import SparkclusterError
from sparkcluster.printable import one_line


class Client:
    """llama-benchy in a separate process, for the cells of one run; must be closed.

    Args:
        home: a directory of this run, the process's home and working directory.
        job: what ``bench.client`` reads first: ``url`` of the API, with ``/v1``; its ``key``, or None; ``model``, the
            model's name in requests; ``runs``, measured passes per cell; ``kind`` of the model, ``chat`` or
            ``embeddings``; ``seed`` for the prompts, to compare runs whose engine has none of these prompts in its
            cache, or None for new prompts every time; ``tokenize_field`` of the engine, whose tokenizer is used then,
            or None if ``home`` has the model's ``tokenizer.json``.
    """

    def __init__(self, home: Path, job: dict[str, Any]) -> None:
        self.home = home
        environment = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(home)}
        with (home / "log").open("wb") as log:
            # in its own session: Ctrl-C reaches only us, and the owner of the client closes it
            self._process: Any = subprocess.Popen(
                [sys.executable, "-Pu", str(Path(__file__).with_name("client.py"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0, cwd=home, start_new_session=True,
                env={**environment, "HF_HUB_OFFLINE": "1", "NO_PROXY": "*"},
            )  # fmt: skip
        self._tell(job)

    def run(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """Measure a cell; yields the process's events as described in ``bench.client``, ``cell`` last.

        An empty event comes every second, so that the caller can give up. Measuring begins when the event after
        ``warm`` is requested.

        Raises:
            SparkclusterError: a request failed, or the tokenizer cannot be read; the message has the last line that the
                process printed.
        """
        self._tell(cell._asdict())
        said: dict[str, Any] = {"event": ""}
        while said["event"] != "cell":
            said = {"event": ""}
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                line = self._process.stdout.readline()
                if not line:
                    code = self._process.wait()
                    lines = (self.home / "log").read_text(errors="replace").strip().splitlines()
                    why = [one_line(line[:500]) for line in lines[-1:]]
                    why += [signal.Signals(-code).name] if code < 0 else []
                    raise SparkclusterError(f"llama-benchy: {', '.join(why) or f'exit code {code}'}")
                said = json.loads(line)
            yield said
            if said["event"] == "warm":
                self._tell({"go": True})

    def close(self) -> None:
        """Kill the process, whatever it is doing."""
        with self._process:
            self._process.kill()

    def _tell(self, document: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # reading its results reports why it ended
            os.write(self._process.stdin.fileno(), json.dumps(document).encode() + b"\n")
