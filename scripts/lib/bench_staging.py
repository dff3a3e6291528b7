"""The measurements of scripts/bench-staging, which runs this."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from bench import ENVIRONMENT, PROGRAM, Turns, show
from lab_registry import registry_of
from staging_lab import HUB, MB, Memory, Rails, write_repository

from sparkcluster.lab import Lab, LabError, images
from sparkcluster.lab.sparks import Spark
from sparkcluster.lab.spec import LabSpec, SparkSpec, plain

RATE_MBIT = 200  # on each of the two rails
RECORDS = "/root/.local/state/sparkcluster/models"
SHAPED, ONE, PEERS = (30, 20 * MB), (1, 400 * MB), (5, 20 * MB)
LARGE, SMALL, CACHED = (5, 600 * MB), (20_000, 2_000), (10, 30 * MB)
"""Number of files of a payload, and bytes of each: several, as shards of a model, if receivers share the rate."""
LAYER_BYTES, IMAGE_BYTES = 60 * MB, 400 * MB


class Missing(Exception):
    """A row cannot be measured; the benchmark continues with the other rows, and exits with code 1."""


class Staged:
    """The durations of one ``stage``.

    Attributes:
        whole_s: the complete command.
        span_s: from the first byte on a rail until the last node is complete.
        copy_s: the copy as ``stage`` reports it, including the start of its programs on the nodes; at least ``span_s``.
    """

    def __init__(self, bench: Bench, inventory: Path, *words: str) -> None:
        argv = [PROGRAM, "stage", str(inventory), *words, "--json-lines", "--yes"]
        began = time.monotonic()
        with Rails(bench.lab) as self.rails, bench.memory:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        self.whole_s = time.monotonic() - began
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        copied = lines[-1].get("copied") if lines and not done.returncode else None
        if not copied:
            raise Missing(f"sparkcluster {' '.join(argv[1:])}: {(done.stdout + done.stderr).strip()[-600:]}")
        ends = [each["at"] for each in lines if each.get("event") == "transfer" and each["state"] == "complete"]
        self.span_s: float = max([self.rails.ended, *ends]) - self.rails.began
        self.copy_s: float = max(self.span_s, *(each["seconds"] for each in copied))


class Bench:
    """A lab with its inventories, and with payloads on its first Spark."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.first = lab.sparks[0]
        self.memory = Memory(lab.sparks)
        key = (lab.directory / "id_ed25519").read_text()
        script = "umask 077; cat > ~/.ssh/id_ed25519; echo 'StrictHostKeyChecking no\nLogLevel ERROR' > ~/.ssh/config"
        self.first.run(["sh", "-c", script], text_in=key)

    def inventory(self, receivers: int, name: str, playbook: dict[str, Any]) -> Path:
        """An inventory of the first Spark and ``receivers`` others; ``playbook`` replaces keys of the lab's."""
        document, base = (yaml.safe_load(path.read_text()) for path in (self.lab.inventory, self.lab.playbook))
        document["nodes"] = document["nodes"][: receivers + 1]
        document["permit"] = {"mounts": [HUB]}  # a hidden directory
        document["playbook"] = str(self.lab.directory / f"{name}-{receivers}-playbook.yaml")
        Path(document["playbook"]).write_text(yaml.safe_dump({**base, **playbook}))
        path = self.lab.directory / f"{name}-{receivers}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def payload(self, name: str, shape: tuple[int, int], directory: str = HUB) -> str:
        """Write a repository of random tensors on the first Spark; return its directory."""
        return write_repository(self.first, f"bench/{name}", *shape, directory=directory)

    def hub(self, receivers: int, name: str) -> Path:
        """An inventory whose model is a payload in the hub's cache."""
        return self.inventory(receivers, name, {"model": {"id": f"bench/{name}"}})

    def empty(self, top: str) -> None:
        """Remove a payload and its records from all Sparks except the first."""
        for spark in self.lab.sparks[1:]:
            spark.run(["rm", "-rf", top, RECORDS])

    def stage(self, inventory: Path, top: str, *words: str) -> Staged:
        """``stage`` weights onto empty receivers; compare every copy with the first Spark's."""
        self.empty(top)
        staged = Staged(self, inventory, "weights", *words)
        receivers = len(yaml.safe_load(inventory.read_text())["nodes"]) - 1
        script = 'cd "$1" && find . -type f -path "*$2*" | sort | xargs sha256sum'
        names = "/blobs/" if "models--" in top else ".safetensors"
        sums = [
            spark.run(["sh", "-c", script, "sh", top, names], timeout_s=300).stdout
            for spark in self.lab.sparks[: receivers + 1]
        ]
        if not sums[0] or len(set(sums)) != 1:
            raise Missing(f"the copies of {top} differ")
        return staged

    def peer(self, spark: Spark, *argv: str) -> Callable[[], float]:
        """A copy to a Spark by another program; ``{}`` is the address on its first rail. Returns seconds."""
        address = (spark.address(spark.cabled[0]) or "").partition("/")[0]
        words = [word.replace("{}", address) for word in argv]

        def run() -> float:
            began = time.monotonic()
            self.first.run(words, timeout_s=600)
            return time.monotonic() - began

        return run


def peers(bench: Bench, spark: Spark, top: str) -> dict[str, Callable[[], float]]:
    """Copies by common programs from the first Spark to ``spark``."""
    tuned = "ssh -T -x -c aes128-gcm@openssh.com -o Compression=no"
    return {
        "rsync": bench.peer(spark, "rsync", "-a", "-e", "ssh", top, f"{{}}:{top.rpartition('/')[0]}/"),
        "tuned rsync": bench.peer(spark, "rsync", "-a", "-W", "--inplace", "-e", tuned, top, f"{{}}:{HUB}/"),
        "scp": bench.peer(spark, "sh", "-c", f"ssh {{}} mkdir -p {top} && scp -qr {top}/blobs {{}}:{top}/"),
    }


def shaped(bench: Bench) -> Iterator[bool]:
    """One and seven receivers over links of limited rate; rsync and scp over the same links."""
    top = bench.payload("shaped", SHAPED)
    for spark in bench.lab.sparks:
        bench.lab.fault(spark.name, "slow-link", f"{RATE_MBIT}mbit")
    runs: list[Staged] = []

    def span(name: str, receivers: int) -> float:
        runs.append(bench.stage(bench.hub(receivers, name), top))
        return runs[-1].span_s

    turns = Turns(2, partial(span, "shaped", 1), partial(span, "shaped", 7))
    payload = SHAPED[0] * SHAPED[1]
    share = payload * 8 / turns.median(0) / (2 * RATE_MBIT * MB)
    yield show(f"share of two rails of {RATE_MBIT} Mbit/s, 1 receiver", share, f"{turns.median(0):.3g} s", at_least=0.9)
    yield show("7 receivers / 1", turns.ratio(1, 0), turns.detail(1, 0), at_most=1.2)
    sent = runs[-1].rails.bytes(bench.first, sent=True) / payload
    yield show("bytes that the source sends to 7 / payload", sent, "", at_most=1.05)
    whole = sum(run.whole_s - run.span_s for run in runs) / len(runs)
    show("complete command, without the copy (s)", whole, f"{runs[-1].whole_s:.3g} s with 7 receivers")
    bench.empty(top)
    bench.first.run(["rm", "-rf", top])

    top = bench.payload("one", ONE)
    turns = Turns(1, partial(span, "one", 1), partial(span, "one", 7))
    yield show("one file, 7 receivers / 1", turns.ratio(1, 0), turns.detail(1, 0), at_most=1.3)
    bench.empty(top)
    bench.first.run(["rm", "-rf", top])

    top = bench.payload("peers", PEERS)
    ours = bench.stage(bench.hub(7, "peers"), top).copy_s
    by_spark = [peers(bench, spark, top) for spark in bench.lab.sparks[1:]]
    for name, at_least in (("rsync", 3.0), ("scp", None)):
        bench.empty(top)
        seconds = sum(each[name]() for each in by_spark)
        yield show(f"{name} to 7 in turn / stage", seconds / ours, f"{seconds:.3g} s / {ours:.3g} s", at_least=at_least)
    bench.empty(top)
    began = time.monotonic()
    threads = [threading.Thread(target=each["rsync"]) for each in by_spark]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    show("rsync to 7 in parallel / stage", seconds / ours, f"{seconds:.3g} s / {ours:.3g} s")
    bench.empty(top)
    bench.first.run(["rm", "-rf", top])
    bench.lab.heal()


def unshaped(bench: Bench) -> Iterator[bool]:
    """Without a rate limit, onto tmpfs: the CPU is the bottleneck."""
    top, second = bench.payload("large", LARGE), bench.lab.sparks[1]
    inventory, gigabytes = bench.hub(1, "large"), LARGE[0] * LARGE[1] / 1e9

    def emptied(copy: Callable[[], float]) -> float:
        bench.empty(top)
        return copy()

    def ours(*words: str) -> float:
        return bench.stage(inventory, top, *words).copy_s

    others = peers(bench, second, top)
    turns = Turns(3, ours, *(partial(emptied, copy) for copy in others.values()))
    for at, (name, bound) in enumerate(zip(others, (2.0, 1.5, None), strict=True), start=1):
        rates = " / ".join(f"{gigabytes / turns.median(which):.2f} GB/s" for which in (0, at))
        yield show(f"unshaped: stage / {name}", turns.ratio(at, 0), rates, at_least=bound)
    address = (second.address(second.cabled[0]) or "").partition("/")[0]
    second.run(["iperf3", "-s", "-1", "-D"])
    found = json.loads(bench.first.run(["iperf3", "-c", address, "-P", "2", "-t", "5", "-J"]).stdout)
    line_rate = found["end"]["sum_received"]["bits_per_second"] / 8e9
    rate = gigabytes / turns.median(0)
    show("unshaped: stage / iperf3 -P 2, without disk and hash", rate / line_rate, f"{rate:.2f} / {line_rate:.2f} GB/s")
    plain_s = turns.median(0)
    try:
        encrypted = ours("--encrypt")
    except Missing as error:
        yield failed("stage --encrypt", error)
    else:
        show("unshaped: stage --encrypt / stage (seconds)", encrypted / plain_s, f"{encrypted:.3g} s / {plain_s:.3g} s")
    small = bench.payload("small", SMALL)
    both = Turns(1, lambda: bench.stage(bench.hub(1, "small"), small).copy_s, peers(bench, second, small)["rsync"])
    show(f"{SMALL[0]:,} small files: stage / rsync (seconds)", both.ratio(0, 1), both.detail(0, 1))
    bench.empty(small)
    bench.first.run(["rm", "-rf", small])
    directory = f"{HUB}/plain"
    files = 'for file in "$1"/snapshots/*/*; do mv "$(readlink -f "$file")" "$2/${file##*/}"; done'
    bench.empty(top)
    bench.first.run(["sh", "-c", f'mkdir "$2" && {files}; rm -r "$1"', "sh", top, directory])
    seconds = bench.stage(bench.inventory(1, "plain", {"model": {"path": directory}}), directory).copy_s
    detail = f"{seconds:.3g} s / {turns.median(1):.3g} s"
    show("unshaped: stage of a plain directory / rsync", turns.median(1) / seconds, detail)
    bench.empty(directory)
    bench.first.run(["rm", "-rf", directory])


def cache(bench: Bench) -> Iterator[bool]:
    """The share of the files that stays in the page cache of both nodes, on their disks."""
    hub = f"{HUB}/../disk"
    top = bench.payload("cached", CACHED, hub)
    for spark in bench.lab.sparks[:2]:
        spark.run(["sh", "-c", f"mkdir -p {hub} && mount --bind {hub} {HUB}"])
    bench.first.run(["sh", "-c", f"sync; find {top} -type f -exec dd if={{}} iflag=nocache count=0 status=none ';'"])
    staged_at = f"{HUB}/{top.rpartition('/')[2]}"
    try:
        bench.empty(staged_at)
        Staged(bench, bench.hub(1, "cached"), "weights")
        for name, spark in (("source", bench.first), ("receiver", bench.lab.sparks[1])):
            listed = spark.run(["sh", "-c", f"find {staged_at}/ -type f -exec fincore -n -b -o RES,SIZE {{}} +"]).stdout
            sizes = [[int(word) for word in line.split()] for line in listed.splitlines()]
            kept, size = (sum(column) for column in zip(*sizes, strict=True))
            yield show(f"share of the files in page cache, {name}", kept / size, f"{kept / MB:.3g} MB", at_most=0.05)
    finally:
        for spark in bench.lab.sparks[:2]:
            spark.run(["sh", "-c", f"umount {HUB}; rm -rf {hub}"])


def memory(bench: Bench) -> Iterator[bool]:
    """Peak memory over all runs so far."""
    yield show("most memory of a program on a node (MiB)", bench.memory.most / 2**20, "", at_most=96)


def update(bench: Bench, store: str) -> Iterator[bool]:
    """An image of which the other node already has all layers except the top layer."""
    first = bench.first
    with registry_of(bench.lab) as registry:
        old = registry.add("old", images.archive("stub"), level=0)
        new = registry.add("new", images.archive("stub"), level=0, more=secrets.token_hex(LAYER_BYTES // 2))
        # Copied by stage, so that the layers in a containerd store are recorded.
        Staged(bench, bench.inventory(1, "old", {"image": old}), "image")
        first.run(["docker", "pull", "--quiet", new], timeout_s=300)
    staged = Staged(bench, bench.inventory(1, "update", {"image": new}), "image")
    moved = staged.rails.bytes(first, sent=True)
    ratio = (moved - 5 * MB) / LAYER_BYTES
    detail = f"{moved / MB:.4g} MB for a layer of {LAYER_BYTES / MB:.3g} MB"
    yield show(f"image update: bytes - 5 MB / layer, {store}", ratio, detail, at_most=1.05)


def whole(bench: Bench, store: str) -> Iterator[bool]:
    """An image whose top layer the other nodes lack, to one node and to three."""
    names = {}
    with registry_of(bench.lab) as registry:
        for many in (1, 3):
            more = secrets.token_hex(IMAGE_BYTES // 2)
            names[many] = registry.add(f"whole-{many}", images.archive("stub"), level=0, more=more)
            bench.first.run(["docker", "pull", "--quiet", names[many]], timeout_s=300)
    one, three = (
        Staged(bench, bench.inventory(many, "whole", {"image": name}), "image").whole_s for many, name in names.items()
    )
    detail = f"{three:.3g} s / {one:.3g} s"  # the three Docker engines that unpack share this machine's cores
    yield show(f"image of {IMAGE_BYTES / MB:.3g} MB, command: to 3 / to 1, {store}", three / one, detail, at_most=2)


def failed(what: str, error: Exception) -> bool:
    """Print that a row could not be measured."""
    print(f"{what:<58}        {'':<8} FAILED {error}", flush=True)
    return False


def measured(name: str, bench: Bench, rows: Callable[[Bench], Iterator[bool]]) -> bool:
    """Whether all rows are within their bounds; false if a row cannot be measured."""
    try:
        return all([*rows(bench)])
    except (Missing, LabError) as error:
        return failed(name, error)


@contextlib.contextmanager
def made(name: str, spec: LabSpec) -> Iterator[Bench]:
    """A lab with tmpfs mounted on the hub's cache."""
    lab = Lab.up(engine="stub", spec=spec, name=name, report=lambda line: print(line, file=sys.stderr))
    with lab:
        for spark in lab.sparks:
            spark.run(["sh", "-c", f"mkdir -p {HUB} && mount -t tmpfs -o size=8g tmpfs {HUB}"])
        yield Bench(lab)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-staging", description="stage against the link and other programs")
    parser.add_argument("rows", nargs="*", metavar="ROWS", help="shaped, unshaped, cache, images; default: all")
    chosen = parser.parse_args().rows or ["shaped", "unshaped", "cache", "images"]
    results = []
    if files := [rows for rows in (cache, shaped, unshaped) if rows.__name__ in chosen]:
        with made("bench8", plain(8)) as bench:
            results += [measured(rows.__name__, bench, rows) for rows in (*files, memory)]
    for store in ("overlay2", "containerd") if "images" in chosen else ():
        spark = partial(SparkSpec, system="debian-13", docker=store, image="absent")
        sparks = tuple(spark(name=name) for name in ("first", "second", "third", "fourth"))
        with made(f"bench-{store}", LabSpec(sparks)) as bench:
            results += [measured(rows.__name__, bench, partial(rows, store=store)) for rows in (update, whole)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
