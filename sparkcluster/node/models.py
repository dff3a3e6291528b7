"""Lists the models on this node, and removes files that staging wrote.

A model is a repository in Hugging Face's cache, or a directory with a record of verified files (``record``). Only files
that staging wrote according to the record, and that are unchanged, are removed, with links to them and folders that
become empty. A blob is kept if a user's snapshot also links to it. Playbook files (``state_dir/files/MARK``) are
listed, too; all of them belong to staging.
"""

from __future__ import annotations

import contextlib
import glob
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

# A complete value, or a path in an argument, a mount or a line of shell.
_PATHS = (re.compile(r"(?<=\")[/~][^\"]*(?=\")"), re.compile(r"[/~][^\s\"':,;=\\]*"))

Model = dict[str, Any]
Named = dict[str, "str | None"]
"""By cluster, the text of its releases and ranks as JSON; None if they could not be read and may name anything."""


def main(request: dict[str, Any], lines: BinaryIO) -> dict[str, Any]:
    """``{"models": [...]}`` for ``hf_home``, ``state_dir`` and the directories ``paths`` in ``request``."""
    state_dir = request["state_dir"]
    hub = os.path.join(common.expand(request.get("hf_home") or "~/.cache/huggingface"), "hub")
    found = [os.path.join(hub, name) for name in _names(hub) if name.startswith("models--")]
    asked = {path: os.path.realpath(common.expand(path)) for path in request.get("paths") or ()}
    real = {os.path.realpath(path): path for path in reversed([*found, *asked.values(), *roots(state_dir)])}
    named = {cluster: _named(state_dir, cluster) for cluster in _clusters(state_dir)}
    models = [
        {**_model(state_dir, root, real[root], named), "asked": [path for path in asked if asked[path] == root]}
        for root in sorted(filter(os.path.isdir, real))
    ]
    return {"models": models + _beside(state_dir, named)}


def _named(state_dir: str, cluster: str) -> str | None:
    """The text of the releases and ranks of ``cluster`` on this node, with the targets of the paths in it."""
    folder = glob.escape(common.cluster_dir(state_dir, cluster))
    places = ("releases/*.json", "ranks/*/" + LAUNCHER_FILE, SWITCH_FILE)
    documents = [common.read_json(path) for place in places for path in glob.glob("%s/%s" % (folder, place))]
    if not all(documents):
        return None
    text = _text(documents)
    paths = {path for pattern in _PATHS for path in pattern.findall(text)}
    return text + _text([os.path.realpath(common.expand(path)) for path in paths])


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _users(named: Named, *names: str) -> list[str]:
    """The clusters in ``named`` whose text contains one of ``names``, or a path in it."""
    pattern = re.compile(r"(?<![\w.-])(?:%s)(?![\w.-])" % "|".join(re.escape(_text(name)[1:-1]) for name in names))
    return [cluster for cluster, text in named.items() if text is None or pattern.search(text)]


def _beside(state_dir: str, named: Named) -> list[Model]:
    """Staged playbook files, each with its path below ``state_dir``."""
    folder = os.path.join(common.expand(state_dir), "files")
    found = []
    for mark in _names(folder):
        path = os.path.join(folder, mark)
        size, inside = _size(path), [name for name in _names(path) if not name.startswith(".")]
        beside = {"beside": "/".join(["files", mark, *inside[:1]]), "path": path}
        found.append({**beside, "bytes": size, "staged_bytes": size, "used_by": _users(named, mark)})
    return found


def _model(state_dir: str, root: str, path: str, named: Named) -> Model:
    """The model in ``root``; ``path`` is its path before links were resolved."""
    record = Record(state_dir, root)
    name = os.path.basename(path)
    repository = name[len("models--") :].replace("--", "/") if name.startswith("models--") else None
    return {
        "repository": repository,
        "path": root,
        "bytes": _size(root),
        "commits": _names(os.path.join(root, "snapshots")) if repository else [],
        "staged_bytes": sum(status.st_size for path, status in _files(root) if record.is_ours(path, status)),
        "clusters": sorted(record.clusters),
        "used_by": _users(named, repository or root, root),
    }


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Path below ``root`` and status of each regular file; links are not followed."""
    for here, _, names in os.walk(root):
        for name in names:
            path = os.path.join(here, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if not os.path.islink(path):
                    yield os.path.relpath(path, root), status


def _size(root: str) -> int:
    return sum(status.st_size for _, status in _files(root))


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _clusters(state_dir: str) -> list[str]:
    return _names(os.path.join(common.expand(state_dir), "clusters"))


def remove(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Remove what staging wrote in ``roots`` of ``step``; return freed bytes by root.

    Raises:
        Failed: another cluster has a lease, as files that it stages are not recorded until its ranks start; or a
            root is being copied to.
    """
    state_dir = request["state_dir"]
    for cluster in _clusters(state_dir):
        for kind in ("cluster", "staging") if cluster != request["cluster"] else ():
            if common.is_locked(common.lease_files({"state_dir": state_dir, "cluster": cluster, "kind": kind})[0]):
                raise Failed("cluster %s is being changed and may use these files; retry later" % cluster)
    beside = os.path.join(os.path.realpath(common.expand(state_dir)), "files")
    freed = {}
    for root in step["roots"]:
        if os.path.dirname(os.path.realpath(root)) == beside:
            freed[root] = _size(root)
            shutil.rmtree(root)
            continue
        record = Record(state_dir, root)
        tree = Tree(record.root)
        try:
            tree.lock()
            freed[root] = _remove(tree, record)
        finally:
            os.close(tree.handle)
    return {"freed": freed}


def _remove(tree: Tree, record: Record) -> int:
    ours = tuple(os.path.join(tree.root, "snapshots", revision, "") for revision in record.revisions)
    links = _links(tree.root)
    users = {target for path, target in links.items() if not path.startswith(ours)}
    gone = {}
    for path, status in list(_files(tree.root)):
        if record.is_ours(path, status) and os.path.join(tree.root, path) not in users:
            tree.remove(path)
            gone[path] = status.st_size
    for path, target in links.items():
        if os.path.relpath(target, tree.root) in gone:
            tree.remove(os.path.relpath(path, tree.root))
    _remove_empty(tree.root)
    for path, _ in list(_files(os.path.join(tree.root, "refs"))):
        with tree.reader("refs/" + path) as file:
            revision = file.read(256).decode("utf-8", "replace").strip()
        if revision in record.revisions and not os.path.isdir(os.path.join(tree.root, "snapshots", revision)):
            tree.remove("refs/" + path)
    _remove_empty(tree.root)
    record.drop(set(gone))
    return sum(gone.values())


def _remove_empty(root: str) -> None:
    for here, _, _ in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(here)


def _links(root: str) -> dict[str, str]:
    """The links below ``root``, with their targets."""
    paths = (os.path.join(here, name) for here, folders, names in os.walk(root) for name in folders + names)
    return {path: os.path.realpath(path) for path in paths if os.path.islink(path)}
