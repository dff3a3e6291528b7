"""Disk space, weights, and the records of sparkcluster on this node."""

from __future__ import annotations

import contextlib
import math
import os
import re
from typing import Any

from sparkcluster.node import common, gguf, model_choice
from sparkcluster.node.machine import Machine, Unreadable, unread
from sparkcluster.node.model_files import present, shards
from sparkcluster.node.shared import (
    BLOBS,
    CONFIG_FILE,
    ENABLED_DIR,
    GUARD_EVENTS,
    STOPPED_FILE,
    SWITCH_FILE,
    UNFINISHED,
    WAITS_FILE,
    WHOLE,
    hub_folder,
)

# safetensors refuses longer headers (MAX_HEADER_SIZE in its tensor.rs)
_HEADER_LIMIT_BYTES = 100_000_000
_JOURNAL_BYTES = 1 << 20  # only the last bytes of a guard's journal, which is never truncated, are read
# The engine reads params.json if Mistral's own format has no config.json
_CONFIGS = ("config.json", "params.json")
_TOKENIZERS = re.compile(r"^(tokenizer\.json|tekken\.json|vocab\.(json|txt)|[^/]+\.(tiktoken|model(\.v\d\w*)?))$")


def disks(machine: Machine, state_dir: str, cluster: str, hf_home: str, engine: Any) -> list[dict[str, Any]]:
    """Disk space for each path or its nearest existing ancestor; the last entry is for Docker's images.

    Leftovers of an interrupted copy of an image count as free for images, but not for weights: the next copy of an
    image resumes with them, or removes them.
    """
    purposes = [("state", state_dir), ("hf_home", hf_home)]
    purposes += [] if unread(engine) else [("docker", engine["images_dir"])]
    left, found = 0, []
    with contextlib.suppress(FileNotFoundError):  # there are none, or a copy is running
        blobs = machine.at("%s/clusters/%s/images/%s" % (state_dir, cluster, BLOBS))
        left = sum(each.stat().st_size for each in os.scandir(blobs))
    for purpose, path in purposes:
        place = nearest(machine, path)
        total, free = machine.space(place)
        on_its_disk = os.stat(machine.at(place)).st_dev == os.stat(machine.at(nearest(machine, state_dir))).st_dev
        if on_its_disk and purpose != "hf_home":
            free += left
        found.append({"purpose": purpose, "path": path, "total_bytes": total, "free_bytes": free})
    return found


def traffic(machine: Machine) -> dict[str, dict[str, float]]:
    """For each disk, the bytes read and written since boot, and the seconds it was busy.

    /proc/diskstats counts sectors of 512 bytes and milliseconds (Documentation/admin-guide/iostats.rst).
    """
    found = {}
    for words in map(str.split, machine.text("/proc/diskstats", "").splitlines()):
        if machine.exists("/sys/block/%s/device" % words[2]):  # excludes partitions, loop, RAM and mapper devices
            read, written, busy = (int(words[place]) for place in (5, 9, 12))
            found[words[2]] = {"read_bytes": 512 * read, "written_bytes": 512 * written, "busy_s": busy / 1000}
    return found


def nearest(machine: Machine, path: str) -> str:
    """``path``, or its nearest existing ancestor."""
    while not machine.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def weights(machine: Machine, model: dict[str, Any], hf_home: str) -> dict[str, Any]:
    """The files of the model that are served (its ``choice``), in its directory or in Hugging Face's cache.

    Unfinished downloads (``.incomplete``) are reported only if something is missing: they also remain after a
    successful retry.
    """
    if model.get("path"):
        folder, revision, cache = common.expand(model["path"]), model.get("revision"), ""
    else:
        cache = "%s/%s" % (hf_home, hub_folder(str(model["id"])))
        reference = str(model.get("revision") or "main")
        revision = (machine.line("%s/refs/%s" % (cache, reference)) or reference).strip()
        folder = "%s/snapshots/%s" % (cache, revision)
    loading = [name for name in machine.names(cache + "/blobs") if name.endswith(".incomplete")] if cache else []
    # names() raises for an unreadable directory; exists() does not
    if not machine.names(folder) and not machine.exists(folder):
        found: dict[str, Any] = {"path": None, "revision": None, "config": None, "files": []}
        found.update({"missing": [], "truncated": loading, **foreign(machine, cache, hf_home)})
        others = _others(machine, model, hf_home, cache) if cache else []
        return {**found, "other_revisions": others} if others else found
    every, broken = present(machine.at(folder))
    choice, part = model.get("choice"), bool(model.get("companion"))
    index = model_choice.index_of(every, choice)
    listed = shards(machine.at("%s/%s" % (folder, index))) if index else None
    served = set(model_choice.chosen([*every, *broken], listed or (), choice))
    sizes = {name: status.st_size for name, status in every.items() if name in served}
    broken = [name for name in broken if name in served]
    needed = [name for name in listed or () if model_choice.wanted(name, choice)]
    if not index:
        needed = model_choice.series_of(sizes, choice)
    if model.get("file"):
        needed, part = gguf.series(model["file"]), True  # it includes configuration and tokenizer
    missing = {*broken, *_expected(sizes, needed, part)}
    if index and listed is None:
        missing.add(index)  # it exists but is invalid
    if part and loading and not any(name.endswith(model_choice.WEIGHTS) for name in sizes):
        missing.add("weights")  # a tokenizer has none; an interrupted download leaves a partial file
    truncated = [
        name
        for name, size in sorted(sizes.items())
        if name.endswith(".safetensors") and size != safetensors_size(machine, "%s/%s" % (folder, name))
    ]
    headers = {name: gguf_header(machine, "%s/%s" % (folder, name)) for name in sizes if name.endswith(".gguf")}
    truncated += sorted(name for name, (_, least) in headers.items() if sizes[name] < least)
    return {
        "path": folder,
        "revision": revision,
        "config": headers[model["file"]][0] if model.get("file") in headers else config(machine, folder, sizes),
        "files": [{"name": name, "size_bytes": size} for name, size in sorted(sizes.items())],
        "left_out_bytes": sum(status.st_size for status in every.values()) - sum(sizes.values()),
        "missing": sorted(missing),
        "truncated": truncated + (loading if missing else []),
        **(foreign(machine, cache, hf_home) if missing or truncated else {}),
    }


def foreign(machine: Machine, cache: str, hf_home: str) -> dict[str, Any]:
    """Under ``foreign``, the first path that a download or copy must write but cannot, with its owner; empty if none.

    It is in or at ``hf_home``: a ``missing`` folder, with the owner of the parent that denies it, or an existing path.
    """
    hub, name = os.path.split(cache)
    for folder in (cache, "%s/.locks/%s" % (hub, name)) if cache else ():
        existing = nearest(machine, folder)
        found = _unwritable(machine.at(existing), within=existing == folder)
        if found:
            missing = existing != folder
            wanted = folder if machine.exists(hf_home) else hf_home
            path = wanted if missing else "/" + os.path.relpath(found, machine.root)
            return {"foreign": {"path": path, "uid": os.lstat(found).st_uid, "missing": missing}}
    return {}


def _unwritable(folder: str, *, within: bool) -> str | None:
    """The first unwritable path: ``folder``, or ``within`` it, a directory or a file that is rewritten."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return folder
    for here, folders, names in os.walk(folder) if within else ():
        again = [name for name in names if name.endswith(UNFINISHED) or os.path.basename(here) == "refs"]
        for path in [os.path.join(here, each) for each in [*folders, *again]]:
            if not os.path.islink(path) and not os.access(path, os.W_OK):
                return path
    return None


def _others(machine: Machine, model: dict[str, Any], hf_home: str, cache: str) -> list[str]:
    """Commits of the model with complete snapshots, if the wanted one is missing."""
    names = [each for each in machine.names(cache + "/snapshots") if machine.exists("%s/snapshots/%s" % (cache, each))]
    found = [weights(machine, {**model, "revision": name}, hf_home) for name in names]
    return [each["revision"] for each in found if each["files"] and not each["missing"] and not each["truncated"]]


def config(machine: Machine, folder: str, sizes: dict[str, int]) -> dict[str, Any] | None:
    """The model's configuration; None if it cannot be read."""
    name = next((name for name in _CONFIGS if name in sizes), None)
    try:
        return machine.document("%s/%s" % (folder, name)) if name else None
    except Unreadable:
        return None


def safetensors_size(machine: Machine, path: str) -> int | None:
    """Size of a safetensors file from its header; None if the header is invalid.

    The file is 8 bytes of header length, the header, and the tensors in sequence.
    """
    with open(machine.at(path), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= _HEADER_LIMIT_BYTES else b""
    if not header.startswith(b"{"):
        return None
    # several times faster than parsing the JSON (some MB per model); quotes in the metadata are escaped, so its text
    # cannot match
    ends = re.findall(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]', header)
    return 8 + length + max((int(end) for end in ends), default=0)


def gguf_header(machine: Machine, path: str) -> tuple[dict[str, Any] | None, float]:
    """Metadata in a GGUF's header, and the minimum size of the file in bytes; infinite if it is invalid."""
    with open(machine.at(path), "rb") as file:
        try:
            return gguf.read(file)
        except (ValueError, EOFError):
            return None, math.inf


def _expected(sizes: dict[str, int], needed: list[str], part: bool) -> list[str]:
    """Missing files that a model requires, including the weights ``needed``.

    ``part`` is true for a drafter, adapter or tokenizer.
    """
    missing = [name for name in needed if name not in sizes]
    if part:
        return missing
    if not any(name in sizes for name in _CONFIGS):
        missing.append(_CONFIGS[0])
    if not any(_TOKENIZERS.match(name) for name in sizes):
        missing.append("tokenizer.json")
    if not needed and not any(name.endswith(model_choice.WEIGHTS) for name in sizes):
        missing.append("model.safetensors")
    return missing


def trusted(machine: Machine, state_dir: str, cluster: str) -> str:
    """The directory of ``cluster``; PermissionError if others can write to ``state_dir``."""
    common.private(machine.at(state_dir))
    return "%s/clusters/%s" % (state_dir, cluster)


def release(machine: Machine, state_dir: str, cluster: str) -> dict[str, Any] | None:
    """The newest release recorded on this node, or None.

    Raises:
        Unreadable: the record is invalid.
    """
    folder = trusted(machine, state_dir, cluster) + "/releases"
    names = [name for name in machine.names(folder) if name.endswith(".json")]
    if not names:
        return None
    record = machine.document("%s/%s" % (folder, names[-1]))
    return {"number": record.get("number"), "plan_hash": record.get("plan_hash"), "record": record}


def switch(machine: Machine, state_dir: str, cluster: str) -> dict[str, Any] | None:
    """The unfinished switch to another release on this node, or None.

    Raises:
        Unreadable: its document is damaged.
    """
    path = "%s/%s" % (trusted(machine, state_dir, cluster), SWITCH_FILE)
    return machine.document(path) if machine.exists(path) else None


def enabled(machine: Machine, state_dir: str, cluster: str) -> dict[str, Any] | None:
    """State of the cluster's guard on this node; None if the cluster is not enabled."""
    folder = "%s/%s" % (trusted(machine, state_dir, cluster), ENABLED_DIR)
    if not machine.exists("%s/%s" % (folder, CONFIG_FILE)):
        return None
    journal = b""
    with contextlib.suppress(FileNotFoundError), open(machine.at(folder + "/journal.jsonl"), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _JOURNAL_BYTES))
        journal = file.read()
    return {
        "events": {event: journal.count(b'"act": "%s"' % event.replace("-", " ").encode()) for event in GUARD_EVENTS},
        "runs": common.is_locked(machine.at(folder + "/guard.lock")),
        "stopped": machine.exists("%s/%s" % (folder, STOPPED_FILE)),
        "waits": common.read_json(machine.at("%s/%s" % (folder, WAITS_FILE))).get("why"),
        "on_demand": common.read_json(machine.at("%s/%s" % (folder, CONFIG_FILE))).get("on_demand", False),
    }


def lease(machine: Machine, state_dir: str, cluster: str, kind: str = "cluster") -> dict[str, Any] | None:
    """The last lease of a ``kind`` granted on this node and whether it is held now, or None.

    Raises:
        Unreadable: the record is invalid.
    """
    lock, record, _ = common.lease_files({"state_dir": state_dir, "cluster": cluster, "kind": kind})
    held = common.is_locked(machine.at(lock))
    if not machine.exists(record):
        return {"epoch": 0, "held": True} if held else None
    return {**machine.document(record), "held": held}


def staging(machine: Machine, state_dir: str, cluster: str) -> dict[str, Any] | None:
    """Like ``lease`` for staging, with ``at_work``: whether a build, download, pull or copy of the cluster is running.

    These continue when the operator's connection is lost.

    Raises:
        Unreadable: the record is invalid.
    """
    found = lease(machine, state_dir, cluster, "staging")
    if found is None:
        return None
    folders = [state_dir + "/" + each for each in ("builds", "downloads", "pulls", "clusters/%s/staging" % cluster)]
    jobs = ["%s/%s" % (folder, name) for folder in folders for name in machine.names(folder)]
    ours = [job for job in jobs if common.read_json(machine.at(job + "/state.json")).get("cluster") == cluster]
    return {**found, "at_work": any(common.is_locked(machine.at(job + "/lock")) for job in ours)}


def rays(machine: Machine, state_dir: str) -> list[str]:
    """Names of the copies of Ray on this node."""
    folder = state_dir + "/ray"
    return [name for name in machine.names(folder) if machine.exists("%s/%s/needs.json" % (folder, name))]


def vocabularies(machine: Machine, state_dir: str) -> list[str]:
    """Staged vocabularies, by the start of their hash and their name."""
    folder = state_dir + "/vocabularies"
    return [
        "%s/%s" % (mark, name) for mark in machine.names(folder) for name in machine.names("%s/%s" % (folder, mark))
    ]


def files(machine: Machine, state_dir: str) -> list[str]:
    """Marks of staged playbook files that are complete."""
    folder = state_dir + "/files"
    return [mark for mark in machine.names(folder) if machine.exists("%s/%s/%s" % (folder, mark, WHOLE))]
