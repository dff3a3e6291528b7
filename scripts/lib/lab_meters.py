"""What benches and tests read of a lab while commands run: bytes on the rails, and memory of programs on the nodes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from sparkcluster.lab import Lab, cgroups, network
from sparkcluster.lab.sparks import Spark

FEW_BYTES = 250_000
"""So many at the begin and at the end are no payload."""

# What the switches received from each Spark's cable and sent to it, every 20 ms; runs where the switches are.
WATCH = """
import json, sys, threading, time
files = [[open("/sys/class/net/%s/statistics/%s_bytes" % (name, way)) for way in ("rx", "tx")] for name in sys.argv[1:]]
def read():
    return [[(file.seek(0), int(file.read()))[1] for file in pair] for pair in files]
begin, samples, over = read(), [], threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
print(flush=True)
while not over.wait(0.02):
    now = read()
    samples.append((time.time(), sum(each[0] for each in now)))
end = read()
moved = [[after[at] - before[at] for at in (0, 1)] for before, after in zip(begin, end)]
print(json.dumps({"samples": samples, "moved": dict(zip(sys.argv[1:], moved))}))
"""


def span(samples: Sequence[tuple[float, int]], few: int = FEW_BYTES) -> tuple[float, float]:
    """When the first and the last payload byte moved, of (time, bytes in all) in the order of time."""
    if not samples:
        return 0.0, 0.0
    first, last = samples[0][1] + few, samples[-1][1] - few
    began = next((at for at, moved in samples if moved > first), samples[-1][0])
    return began, next(at for at, moved in samples if moved >= last)


class Rails:
    """Bytes on the rails while a context lasts, and when they moved.

    Attributes:
        began: seconds since 1970 when the first payload byte was sent.
        ended: when the last one was.
    """

    def __init__(self, lab: Lab) -> None:
        self._cables = {network.peer(spark.index, each): spark.index for spark in lab.sparks for each in spark.cabled}
        argv = ["ip", "netns", "exec", lab.state.switch, sys.executable, "-c", WATCH, *self._cables]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.began = self.ended = 0.0

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *exception: object) -> None:
        out = json.loads(self._process.communicate("")[0])
        self._moved: dict[str, list[int]] = out["moved"]
        self.began, self.ended = span(out["samples"])

    def bytes(self, spark: Spark, *, sent: bool) -> int:
        """Bytes that a Spark sent, or received."""
        return sum(pair[0 if sent else 1] for name, pair in self._moved.items() if self._cables[name] == spark.index)


class Memory:
    """Peak memory of the programs of sparkcluster on Sparks, over all times that it is entered.

    Attributes:
        most: of any of them, bytes.
    """

    def __init__(self, sparks: Sequence[Spark]) -> None:
        self.most = 0
        self._sparks = sparks

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            for pid in {pid for spark in self._sparks for pid in cgroups.processes(spark.unit)}:
                with contextlib.suppress(OSError, StopIteration):
                    if b"boot['start']" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        status = Path(f"/proc/{pid}/status").read_text().splitlines()
                        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
                        self.most = max(self.most, 1024 * int(peak))

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
