"""The models on this node, and the removal of what staging wrote of one.

A model is a repository in Hugging Face's cache, or a directory that has a record of verified files (``record``). Only
files that the record says staging wrote, and that are still as it wrote them, are ever removed; with them the links to
them, and folders that are empty then. A blob that a snapshot of the user's links to as well stays. What came from
beside a playbook (``state_dir/files/MARK``) is listed likewise: all of it is staging's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common
from sparkcluster.node.file_hashes import Record, roots
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import LAUNCHER_FILE, SWITCH_FILE
from sparkcluster.node.tree import Tree

_MOST = 1000
_MARK = re.compile("^[0-9a-f]{16,64}$")
# What may end a path in an argument, in a mount, and in a line of shell.
_ENDS = ("$^", ":", "[:,=]", r"[\s\"':,;=]")

Model = dict[str, Any]


def main(request: dict[str, Any], lines: BinaryIO) -> dict[str, Any]:
    """``{"models": [...]}`` by ``hf_home``, ``state_dir`` and directories (``paths``) that ``request`` names."""
    state_dir = request["state_dir"]
    hub = os.path.join(common.expand(request.get("hf_home") or "~/.cache/huggingface"), "hub")
    found = [os.path.join(hub, name) for name in _names(hub) if name.startswith("models--")]
    asked = {path: os.path.realpath(common.expand(path)) for path in request.get("paths") or ()}
    real = {os.path.realpath(path): path for path in reversed([*found, *asked.values(), *roots(state_dir)])}
    named = {cluster: _named(documents) for cluster, documents in _records(state_dir).items()}
    found_models = [
        {**_model(state_dir, root, real[root], named), "asked": [path for path in asked if asked[path] == root]}
        for root in sorted(filter(os.path.isdir, real))[:_MOST]
    ]
    return {"models": (found_models + _beside(state_dir, named))[:_MOST]}


def _records(state_dir: str) -> dict[str, list[Any]]:
    """What releases and ranks of each cluster on this node say; their models are somewhere in it."""
    found = {}
    for cluster in _names(os.path.join(common.expand(state_dir), "clusters")):
        found[cluster] = [
            common.read_json(os.path.join(here, name))
            for here, _, names in os.walk(common.cluster_dir(state_dir, cluster))
            for name in names
            if name in (LAUNCHER_FILE, SWITCH_FILE) or (name.endswith(".json") and os.path.basename(here) == "releases")
        ]
    return found


def _named(documents: list[Any]) -> set[str] | None:
    """The texts in ``documents``, and where the paths in them lead; None where one was not read, and may name any."""
    if not all(documents):
        return None
    texts = set(_strings(documents))
    parts = {part for text in texts for ends in _ENDS for part in re.split(ends, text) if "\0" not in part}
    return texts | {os.path.realpath(common.expand(part)) for part in parts if part[:1] in ("/", "~")}


def _users(named: dict[str, set[str] | None], *names: str) -> list[str]:
    """The clusters of ``named`` that name one of ``names``, or something in it."""
    pattern = re.compile(r"(?<![\w.-])(?:%s)(?![\w.-])" % "|".join(map(re.escape, names)))
    return [cluster for cluster, texts in named.items() if texts is None or any(map(pattern.search, texts))]


def _strings(value: Any) -> Iterator[str]:
    """The strings in a document, and those in a string that is JSON itself, as some arguments are."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, str):
        yield value
        if value[:1] in ("{", "["):
            with contextlib.suppress(ValueError):
                yield from _strings(json.loads(value))


def _beside(state_dir: str, named: dict[str, set[str] | None]) -> list[Model]:
    """What was staged from beside playbooks, each with its place below ``state_dir``."""
    folder = os.path.join(common.expand(state_dir), "files")
    found = []
    for mark in filter(_MARK.match, _names(folder)):
        path = os.path.join(folder, mark)
        size = sum(status.st_size for _, status in _files(path))
        inside = [name for name in _names(path) if not name.startswith(".")]
        beside = "/".join(["files", mark, *inside[:1]])
        used_by = _users(named, mark)
        found.append({"beside": beside, "path": path, "bytes": size, "staged_bytes": size, "used_by": used_by})
    return found


def _model(state_dir: str, root: str, path: str, named: dict[str, set[str] | None]) -> Model:
    """The model in ``root``, to which ``path`` leads."""
    record = Record(state_dir, root)
    size = sum(status.st_size for _, status in _files(root))
    ours = [status.st_size for path, status in _files(root) if record.is_ours(path, status)]
    name = os.path.basename(path)
    repository = name[len("models--") :].replace("--", "/") if name.startswith("models--") else None
    return {
        "repository": repository,
        "path": root,
        "bytes": size,
        "commits": _names(os.path.join(root, "snapshots")) if repository else [],
        "staged_bytes": sum(ours),
        "clusters": sorted(record.clusters),
        "used_by": _users(named, repository or root, root),
    }


def _files(root: str) -> Iterator[Any]:
    """Path below ``root`` and status of each regular file; links are not followed."""
    for here, _, names in os.walk(root):
        for name in names:
            path = os.path.join(here, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if not os.path.islink(path):
                    yield os.path.relpath(path, root), status


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def remove(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Remove what staging wrote in ``roots`` of ``step``; the bytes by root.

    Raises:
        Failed: another cluster staged one of them as well, or it is being copied to, or another cluster is changed and
            may be about to use what came from beside its playbook.
    """
    freed = {}
    folder = os.path.join(os.path.realpath(common.expand(request["state_dir"])), "files")
    beside = [root for root in step["roots"] if os.path.dirname(os.path.realpath(root)) == folder]
    if beside:
        _refuse_others(request)
    for root in beside:
        freed[root] = sum(status.st_size for _, status in _files(root))
        shutil.rmtree(root)
    for root in (root for root in step["roots"] if root not in freed):
        record = Record(request["state_dir"], root)
        others = record.clusters - {request["cluster"]}
        if others:
            raise Failed("%s was staged by cluster %s as well" % (record.root, " and ".join(sorted(others))))
        if os.path.isdir(record.root):
            tree = Tree(record.root)
            try:
                if not tree.lock():
                    raise Failed("another copy to %s is in progress" % record.root)
                freed[root] = _remove(tree, record)
            finally:
                os.close(tree.handle)
        with contextlib.suppress(OSError):
            os.rmdir(record.root)
    return {"freed": freed}


def _refuse_others(request: dict[str, Any]) -> None:
    """Failed while another cluster has a lease: nothing names what it stages until its ranks start."""
    for cluster in _names(os.path.join(common.expand(request["state_dir"]), "clusters")):
        for kind in ("cluster", "staging") if cluster != request["cluster"] else ():
            if common.is_locked(common.lease_files(request["state_dir"], cluster, kind)[0]):
                raise Failed("cluster %s is being changed, and may use these files; run this again later" % cluster)


def _remove(tree: Tree, record: Record) -> int:
    links = _links(tree.root)
    users = {target for path, target in links.items() if _revision(path) not in record.revisions}
    gone: set[str] = set()
    freed = 0
    for path, entry in record.files.items():
        status = tree.own_status(path)
        if entry.ours and path not in users and status is not None and entry.describes(status):
            tree.remove(path)
            gone.add(path)
            freed += entry.size
    for path, target in links.items():
        if target in gone:
            tree.remove(path)
    _remove_empty(tree)
    kept = set(_names(os.path.join(tree.root, "snapshots")))
    for here, _, names in os.walk(os.path.join(tree.root, "refs")):
        for name in names:
            path = os.path.relpath(os.path.join(here, name), tree.root)
            with contextlib.suppress(OSError), tree.reader(path) as file:
                revision = file.read(256).decode("utf-8", "replace").strip()
                if revision in record.revisions and revision not in kept:
                    tree.remove(path)
    _remove_empty(tree)
    record.drop(gone)
    return freed


def _remove_empty(tree: Tree) -> None:
    for here, _, _ in os.walk(tree.root, topdown=False):
        if here != tree.root:
            with contextlib.suppress(OSError):
                tree.remove(os.path.relpath(here, tree.root), directory=True)


def _links(root: str) -> dict[str, str]:
    """The links below ``root`` to what is in it, both as paths relative to it."""
    found = {}
    for here, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(here, name)
            with contextlib.suppress(OSError):
                target = os.path.normpath(os.path.join(here, os.readlink(path)))
                if target.startswith(os.path.join(root, "")):
                    found[os.path.relpath(path, root)] = os.path.relpath(target, root)
    return found


def _revision(path: str) -> str | None:
    """The snapshot that a link is in."""
    parts = path.split("/")
    return parts[1] if parts[0] == "snapshots" and len(parts) > 2 else None
