"""Our end of the process that measures."""

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
    """llama-benchy in a process of its own, for the cells of one run; it has to be closed.

    Args:
        url: of the API, with ``/v1``.
        key: of the API; None where it asks for none.
        model: name by which the engine serves it.
        home: a directory of this run with the model's ``tokenizer.json``; the process's home and working directory.
        runs: measured passes of each cell.
        kind: of the model, ``chat`` or ``embeddings``.
        seed: of what prompts are cut from the book, for runs that are compared and whose engine has no such prompts in
            its cache; None for others every time.
    """

    def __init__(
        self, url: str, key: str | None, model: str, home: Path, *, runs: int, kind: str, seed: int | None = None
    ) -> None:
        self.home = home
        environment = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(home)}
        with (home / "log").open("wb") as log:
            # in a session of its own: Ctrl-C reaches us alone, and whoever has the client closes it
            self._process: Any = subprocess.Popen(
                [sys.executable, "-Pu", str(Path(__file__).with_name("client.py"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0, cwd=home, start_new_session=True,
                env={**environment, "HF_HUB_OFFLINE": "1", "NO_PROXY": "*"},
            )  # fmt: skip
        self._tell({"url": url, "key": key, "model": model, "runs": runs, "kind": kind, "seed": seed})

    def run(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """Measure a cell: what the process says as ``bench.client`` describes it, ``cell`` last.

        A document without news comes every second, for who may want to give up. What is measured begins once the one
        after ``warm`` is asked for.

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
        """End the process, whatever it is doing."""
        with self._process:
            self._process.kill()

    def _tell(self, document: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # why it ended is said where its results are read
            os.write(self._process.stdin.fileno(), json.dumps(document).encode() + b"\n")
