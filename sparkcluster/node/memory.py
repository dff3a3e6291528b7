"""Memory of this node around a rank: before its start, after its end; and dropping the page cache.

Has steps of ``agent``, and a program that waits and changes nothing.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.node import common, docker, ranks
from sparkcluster.node.machine import Machine, Unreadable, owner
from sparkcluster.node.programs import Failed, run, run_once
from sparkcluster.node.shared import GATEWAY_GROUP, LABEL_CLUSTER, LABEL_GROUP, MEMORY_FILE, SHARED_MEMORY, SHARED_NAME

MEMINFO, SHARED = "/proc/meminfo", SHARED_MEMORY
# Normal fluctuation of a node's memory.
TOLERANCE = 2 << 30
# If less than this is freed in STILL_S, the memory is considered stable.
RISE, STILL_S = 256 << 20, 10.0
NAMED_BYTES = 1 << 20

# Drops files below the given directories from the page cache. Runs on the node for weights; for an image in a container
# as root, without network, capabilities or write access. Files it cannot open are skipped; root owns nearly all files.
EVICT = """
import os, stat, sys
def device(path):
    try:
        return os.lstat(path).st_dev
    except OSError:
        return None
for top in sys.argv[1:]:
    for here, folders, names in os.walk(top):
        folders[:] = [name for name in folders if device(os.path.join(here, name)) == device(here)]
        for path in (os.path.join(here, name) for name in names):
            try:
                found = os.stat(path)
                if stat.S_ISREG(found.st_mode) and found.st_size > 1 << 20:
                    file = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(file)
            except OSError:
                continue
"""


def main(
    request: dict[str, Any],
    _lines: Any = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait until the memory of ended ranks is free; return what is missing, and files left in /dev/shm.

    ``request`` has rank_dirs and limit_s. Memory that programs allocated or freed since the start is not counted.
    Takes no lock and needs no lease.
    """
    files = [os.path.join(common.expand(path), MEMORY_FILE) for path in request["rank_dirs"]]
    earlier = [found for path in files if (found := common.read_json(path))]
    if not earlier:
        return {}
    before = max(earlier, key=lambda each: each["MemAvailable"])
    began = changed = clock()
    least = None
    while True:
        now = meminfo()
        missing = before["MemAvailable"] - now["MemAvailable"] + before.get("AnonPages", 0) - now.get("AnonPages", 0)
        if least is None or missing <= least - RISE:
            least, changed = missing, clock()
        over = clock() - changed >= STILL_S or clock() - began >= request["limit_s"]
        if missing <= TOLERANCE or over:
            break
        pause(0.5)
    known = set.intersection(*(set(each["shm"]) for each in earlier))
    # Memory and /dev/shm that another model has used since cannot be distinguished from leftovers.
    alone = not beside(request["rank_dirs"])
    return {
        "missing_bytes": missing if alone and missing > TOLERANCE else 0,
        "difference_bytes": missing,
        "waited_s": round(clock() - began),
        "shm": left(known) if alone else [],
    }


def beside(rank_dirs: list[str]) -> list[str]:
    """Other running engine ranks on this node: containers, if Docker answers, and processes."""
    machine, own = Machine(), [common.expand(path) for path in rank_dirs]
    found = []
    for state_dir in {path.rpartition("/clusters/")[0] for path in own}:
        found += ranks.processes(machine, state_dir)
    with contextlib.suppress(Unreadable):
        found += ranks.containers(machine, LABEL_CLUSTER)
    engines = [each for each in found if each["labels"].get(LABEL_GROUP) != GATEWAY_GROUP]
    return [each["name"] for each in engines if each["state"] == "running" and each["rank_dir"] not in own]


def meminfo() -> dict[str, int]:
    """MemFree, MemAvailable and AnonPages in bytes, by name."""
    with open(MEMINFO) as file:
        found = re.findall(r"^(MemFree|MemAvailable|AnonPages):\s+(\d+) kB", file.read(), re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


def record(directory: str) -> None:
    """Write free memory and the content of /dev/shm to the directory of a rank before it starts."""
    before: dict[str, Any] = dict(meminfo(), shm=os.listdir(SHARED))
    common.write_atomically(os.path.join(directory, MEMORY_FILE), json.dumps(before).encode())


def left(known: set[str]) -> list[dict[str, Any]]:
    """Large files in /dev/shm that are not ``known``, and that no process visible to this user has mapped.

    Names that need quoting in a shell are skipped.
    """
    found: list[dict[str, Any]] = []
    for name in filter(re.compile(SHARED_NAME).fullmatch, set(os.listdir(SHARED)) - known):
        path = os.path.join(SHARED, name)
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_blocks * 512 >= NAMED_BYTES:
                found.append({"name": name, "size_bytes": status.st_blocks * 512, "owner": owner(status.st_uid)})
    used = mapped() if found else ""
    found = [each for each in found if " %s/%s\n" % (SHARED, each["name"]) not in used]
    return sorted(found, key=lambda each: -each["size_bytes"])


def mapped() -> str:
    """The mappings of every process that this user may read."""
    texts = []
    for path in glob.glob("/proc/[0-9]*/maps"):
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            texts.append(file.read())
    return "".join(texts)


def evict(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Drop the files below ``paths``, and the image's, from the page cache; return MemFree before and after.

    Pages that are not yet written to the disk stay. Nothing is dropped if ``enough_bytes`` are free, which makes a
    restart fast; the image is kept if they are free after dropping the files.
    """
    before, enough, why = meminfo()["MemFree"], step.get("enough_bytes"), None
    if enough is None or before < enough:
        run([sys.executable, "-I", "-c", EVICT, *map(common.expand, step["paths"])], step["limit_s"])
    if step["image"] and (enough is None or meminfo()["MemFree"] < enough):
        try:
            run_once("evict", step["image"], EVICT, docker.as_root(), words=["/"], limit_s=step["limit_s"])
        except Failed as error:
            why = str(error)[:300]
    return {"free_before_bytes": before, "free_bytes": meminfo()["MemFree"], "image_failed": why}
