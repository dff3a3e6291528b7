"""Helpers for bench-staging and tests: payloads, bytes on the rails, and memory of programs on the nodes."""

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
from sparkcluster.lab.engine.tiny_llama import tiny_model_files
from sparkcluster.lab.sparks import Spark

HUB = "/root/.cache/huggingface/hub"
MB = 10**6
FEW_BYTES = 250_000
"""Bytes at the beginning and at the end that do not count as payload."""

# A repository as the hub's client leaves it: content in blobs named by their SHA-256, links in a snapshot.
WRITE = """
import hashlib, json, os, sys
top, count, size, config, tokenizer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
names = ["model-%05d-of-%05d.safetensors" % (at + 1, count) for at in range(count)]
os.makedirs(top + "/blobs"), os.makedirs(top + "/snapshots/" + "1" * 40), os.makedirs(top + "/refs")
def put(name, blocks):
    digest = hashlib.sha256()
    with open(top + "/fresh", "wb") as file:
        for block in blocks:
            file.write(block), digest.update(block)
    os.rename(top + "/fresh", top + "/blobs/" + digest.hexdigest())
    os.symlink("../../blobs/" + digest.hexdigest(), top + "/snapshots/" + "1" * 40 + "/" + name)
def tensors(at):
    head = json.dumps({"w%d" % at: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    yield len(head).to_bytes(8, "little") + head
    for begin in range(0, size, 1 << 20):
        yield os.urandom(min(1 << 20, size - begin))
for at, name in enumerate(names):
    put(name, tensors(at))
index = {"metadata": {"total_size": count * size}, "weight_map": {"w%d" % at: name for at, name in enumerate(names)}}
put("model.safetensors.index.json", [json.dumps(index).encode()])
put("config.json", [config.encode()])
put("tokenizer.json", [tokenizer.encode()])
with open(top + "/refs/main", "w") as file:
    file.write("1" * 40)
"""

# Samples every 20 ms how many bytes the switches received from and sent to each Spark; runs in the switches' namespace.
WATCH = """
import json, sys, threading, time
lock = threading.Lock()
files = [[open("/sys/class/net/%s/statistics/%s_bytes" % (name, way)) for way in ("rx", "tx")] for name in sys.argv[1:]]
def read():
    with lock:
        return [[(file.seek(0), int(file.read()))[1] for file in pair] for pair in files]
begin, samples, over = read(), [], threading.Event()
def listen():
    for _ in sys.stdin:
        print(json.dumps(moved()), flush=True)
    over.set()
def moved():
    return dict(zip(sys.argv[1:], ([after[at] - before[at] for at in (0, 1)] for before, after in zip(begin, read()))))
threading.Thread(target=listen, daemon=True).start()
while not over.wait(0.02):
    now = read()
    samples.append((time.time(), sum(each[0] for each in now)))
print(json.dumps({"samples": samples, "moved": moved()}))
"""


def write_repository(spark: Spark, repository: str, files: int, size: int, *, directory: str = HUB) -> str:
    """Write a repository of ``files`` files with ``size`` bytes of random tensors each; return its directory."""
    top = f"{directory}/models--{repository.replace('/', '--')}"
    texts = [tiny_model_files()[name].decode() for name in ("config.json", "tokenizer.json")]
    spark.run(["python3", "-c", WRITE, top, str(files), str(size), *texts], timeout_s=300)
    return top


def span(samples: Sequence[tuple[float, int]], few: int = FEW_BYTES) -> tuple[float, float]:
    """When the first and the last payload byte moved, from samples (time, total bytes) in order of time."""
    if not samples:
        return 0.0, 0.0
    first, last = samples[0][1] + few, samples[-1][1] - few
    began = next((at for at, moved in samples if moved > first), samples[-1][0])
    return began, next(at for at, moved in samples if moved >= last)


class Rails:
    """Counts bytes on the rails, or in the ``management`` network, within a ``with`` block, and when they moved.

    Attributes:
        began: when the first payload byte was sent, in seconds since 1970; set at the end of the block.
        ended: when the last payload byte was sent; set at the end of the block.
    """

    def __init__(self, lab: Lab, *, management: bool = False) -> None:
        self._cables = {
            network.peer(spark.index, function): spark.index
            for spark in lab.sparks
            for function in ((None,) if management else spark.cabled)
        }
        self._switch = lab.state.switch
        self.began = self.ended = 0.0

    def __enter__(self) -> Self:
        argv = ["ip", "netns", "exec", self._switch, sys.executable, "-c", WATCH, *self._cables]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask()
        return self

    def __exit__(self, *exception: object) -> None:
        out = json.loads(self._process.communicate()[0])
        self._moved: dict[str, list[int]] = out["moved"]
        self.began, self.ended = span(out["samples"])

    def _ask(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._moved = json.loads(self._process.stdout.readline())

    def bytes(self, spark: Spark, *, sent: bool) -> int:
        """Bytes that a Spark sent, or received, until now or the end of the block."""
        if self._process.poll() is None:
            self._ask()
        return sum(pair[0 if sent else 1] for name, pair in self._moved.items() if self._cables[name] == spark.index)


class Memory:
    """Peak memory of sparkcluster's programs on Sparks, over all ``with`` blocks.

    Attributes:
        most: peak of a single program, in bytes.
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
