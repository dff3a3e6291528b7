"""Downloads a model from Hugging Face's hub to this node.

The request says ``do`` (download or cancel), ``id``, ``revision``, ``choice``
(``model_choice``), ``hf_home``, ``image`` (ID of one that can do it, or None), ``endpoint`` (address of the hub; None
for that of this node), ``offline`` (whether the operator wants no hub asked), ``token`` (or None), which the downloader
gets by its environment and never by an argument, and the lease. What arrived is hashed and recorded.

Without a lease it is the operator's own machine that downloads: nothing is recorded, and it ends with its input. Else a
download is a job (``job``), in ``state_dir/downloads/HASH``.
"""

from __future__ import annotations

import contextlib
import glob
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, model_choice, programs, wire
from sparkcluster.node.file_hashes import Record
from sparkcluster.node.listing import listing
from sparkcluster.node.model_files import absent_shards
from sparkcluster.node.shared import HUB, HUB_ADDRESS, hub_folder
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its variables
_SILENT_S = 300.0  # a slow hub makes progress within this time
_LIST_BYTES = 64 << 20
_ARGUMENTS_BYTES = 100_000  # Linux takes 128 KiB in one
# A status as huggingface_hub writes it, by requests or httpx; or its own errors, which it raises by the hub's headers.
_DENIED = re.compile(
    r"\b40[13] (?:Client Error|Unauthorized|Forbidden)|GatedRepo|gated repo|RepositoryNotFound|Repository Not Found"
    r"|Access denied\. |Error: (?:Model|Dataset|Space|Kernel|Repository)\b.* not found\.$",
    re.MULTILINE,
)
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_SNAPSHOT = (
    "import json, os; from huggingface_hub import snapshot_download; "
    "snapshot_download(os.environ['SPARKCLUSTER_ID'], revision=os.environ['SPARKCLUSTER_REVISION'], "
    "allow_patterns=json.loads(os.environ['SPARKCLUSTER_FILES']))"
)


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Download, or end the download; the answer is that of ``wire.answer``."""
    if "epoch" not in request:
        job.end_by_signal()
        common.end_with(stdin, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        return wire.outcome(lambda: download(request, common.emit))
    key = json.dumps([request[name] for name in ("id", "revision", "choice", "hf_home", "endpoint")], sort_keys=True)
    return job.answer(request, stdin, "downloads", key, lambda own: download(request, own.say))


def download(request: Request, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Download what is served of the model into this node's cache, with its ``hf`` or in the serving image.

    ``say`` gets the bytes that are there and those of all files.
    """
    hf_home = common.expand(request["hf_home"])
    environment = dict(os.environ, HF_HOME=hf_home, HF_HUB_DISABLE_TELEMETRY="1")
    environment.pop("HF_HUB_CACHE", None)  # it would go elsewhere
    if request.get("token"):
        environment["HF_TOKEN"] = request["token"]
    if request.get("endpoint"):
        environment["HF_ENDPOINT"] = request["endpoint"]
    if request.get("offline") or environment.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        where = "the operator's machine" if request.get("offline") else "this node"
        raise Failed("no hub", "HF_HUB_OFFLINE is set on %s" % where)
    reach_hub(environment)
    sizes = _listed(request, environment)
    files = model_choice.chosen(sizes, (), request.get("choice"))
    if sizes and not files:
        raise Failed(
            "hub", "model.files and model.exclude leave none of the %d files of %s" % (len(sizes), request["id"])
        )
    served = sum(sizes[name] for name in files)
    os.makedirs(hf_home, exist_ok=True)
    root = os.path.join(hf_home, hub_folder(request["id"]))
    folder = os.path.join(root, "blobs")
    # That of the cache may be root's, made by a container, and the client has to write it (huggingface/xet-core#417).
    environment["HF_XET_CACHE"] = os.path.join(root, ".xet")
    forget_left(hf_home, os.path.basename(root))
    needed, free = served - _size(folder), shutil.disk_usage(hf_home).free
    if needed > free:
        raise Failed("disk", "%s has %.1f GB free, %.1f GB needed" % (hf_home, free / 1e9, needed / 1e9))
    before, some = _paths(root), files if len(files) < len(sizes) else []

    def tell(done: int) -> None:
        say({"bytes": done, "total": served})

    with docker.named("fetch", lambda argv: programs.run(argv, 20)) as container:
        argv = _downloader(request, hf_home, environment, some, container)
        done, code, text = follow(argv, environment, tell, folder)
    if code:
        kind = "hub auth" if _DENIED.search(text) else "disk" if "No space left" in text else "hub"
        raise Failed(kind, reason(text))
    if "epoch" in request:
        _verify(request, root, before)
    return {"bytes": done, "left_out_bytes": sum(sizes.values()) - served, "whole": not sizes}


def reason(text: str) -> str:
    """Why a download failed, by its output: hf 2 says it in a line of its own, and ends with a hint, both coloured."""
    lines = [line for line in _COLOURS.sub("", text).strip().splitlines() if not line.startswith("Hint: ")]
    said = [line[len("Error: ") :] for line in lines if line.startswith("Error: ")]
    return (said or lines or ["no output"])[-1]


def forget_left(hf_home: str, repository: str) -> None:
    """Remove what a client that was killed had of its files: none reads it again since huggingface_hub#4228.

    A client at work holds the lock of its file.
    """
    blobs = os.path.join(hf_home, "hub", repository, "blobs")
    for path in glob.glob(os.path.join(glob.escape(blobs), "*.incomplete")):
        name = re.match(r"^(.+)\.[0-9a-f]{8}\.incomplete$", os.path.basename(path))
        lock = name and os.path.join(hf_home, "hub", ".locks", repository, name.group(1) + ".lock")
        if lock and not common.is_locked(lock):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _listed(request: Request, environment: dict[str, str]) -> dict[str, int]:
    """Size of each file of the repository; none where the hub does not say it without a token: then all are taken."""
    endpoint = (environment.get("HF_ENDPOINT") or HUB_ADDRESS).rstrip("/")
    revision = urllib.parse.quote(request["revision"], safe="")
    address = "%s/api/models/%s/revision/%s?blobs=true" % (endpoint, request["id"], revision)
    try:
        context = ssl.create_default_context(cafile=environment.get("REQUESTS_CA_BUNDLE") or None)
        with urllib.request.urlopen(address, timeout=15, context=context) as response:
            found = json.loads(response.read(_LIST_BYTES))["siblings"]
        sizes = {str(each["rfilename"]): int(each.get("size") or 0) for each in found}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, http.client.HTTPException):
        return {}
    # A name that the downloader would take for an option or a pattern comes only with all others.
    odd = any(name.startswith("-") or "[" in name for name in sizes) or sum(map(len, sizes)) > _ARGUMENTS_BYTES
    return {} if odd else sizes


def _downloader(
    request: Request, hf_home: str, environment: dict[str, str], files: list[str], container: list[str]
) -> list[str]:
    """Command that downloads ``files`` of the repository, without any the whole of it; ``container`` names one.

    Raises:
        Failed: there is none.
    """
    path = os.pathsep.join([environment.get("PATH", os.defpath), os.path.expanduser("~/.local/bin"), "/usr/local/bin"])
    found = shutil.which("hf", path=path) or shutil.which("huggingface-cli", path=path)
    if found:
        return [found, "download", request["id"], *files, "--revision", request["revision"]]
    if request.get("token"):
        why = "the node has no hf (uv tool install huggingface_hub), and the playbook's image gets no token"
        raise Failed("no downloader", why)
    if not request.get("image"):
        raise Failed("no downloader", "the node has neither hf nor an image with huggingface_hub")
    environment["SPARKCLUSTER_ID"] = request["id"]
    environment["SPARKCLUSTER_REVISION"] = request["revision"]
    environment["SPARKCLUSTER_FILES"] = json.dumps(files or None)
    options = [*container, "--init", "--network", "host", "--user", "%d:%d" % (os.getuid(), os.getgid())]
    options += ["--security-opt", "no-new-privileges"]  # it stays that user
    # It sees this repository and its locks, not the rest of the cache, nor the token beside it.
    cache = os.path.join(hf_home, "hub")
    repository = os.path.basename(hub_folder(request["id"]))
    for folder in (os.path.join(cache, repository), os.path.join(cache, ".locks", repository)):
        os.makedirs(folder, exist_ok=True)
        options += ["-v", "%s:%s" % (folder, folder)]
    environment.update(HF_HOME="/tmp/huggingface", HF_HUB_CACHE=cache)  # in the container
    # names only: docker takes the values from our environment
    variables = ["SPARKCLUSTER_ID", "SPARKCLUSTER_REVISION", "SPARKCLUSTER_FILES"]
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HTTPS_PROXY", *variables):
        if name in environment:
            options += ["-e", name]
    return docker.run_once(request["image"], "python3", _SNAPSHOT, options)


def reach_hub(environment: dict[str, str]) -> None:
    """Check within 5 s that the hub can be reached, for which its client takes minutes."""
    if any(environment.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY")):
        return
    host, port = HUB
    with contextlib.suppress(ValueError):  # the client says what is wrong with such an address
        place = urllib.parse.urlsplit(environment.get("HF_ENDPOINT") or "")
        host, port = place.hostname or host, place.port or (80 if place.scheme == "http" else port)
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        raise Failed("no hub", "%s cannot be reached: %s" % (host, error.strerror or error)) from None


def follow(
    argv: list[str], environment: dict[str, str], tell: Callable[[int], None], folder: str
) -> tuple[int, int, str]:
    """Run ``argv`` and ``tell`` the size of ``folder`` each second; that at the end, its exit code, its last output.

    Raises:
        Failed: neither output nor size changed for ``_SILENT_S``.
    """
    seen, changed = (b"", 0), time.monotonic()

    def look(tail: bytes) -> None:
        nonlocal seen, changed
        now, size = time.monotonic(), _size(folder)
        if (tail, size) != seen:
            seen, changed = (tail, size), now
        tell(size)
        if now - changed > _SILENT_S:
            raise Failed("stalled", "%s made no progress for %.0f s" % (os.path.basename(argv[0]), _SILENT_S))

    tell(_size(folder))
    code, tail = programs.watched(argv, look, env=environment)
    return _size(folder), code, tail.decode(errors="replace")


def _verify(request: Request, root: str, before: set[str]) -> None:
    """Hash what was downloaded and record it: the hub's client compares sizes only.

    Raises:
        Failed: a blob has another content than its name says; it is removed if this download wrote it. Or a file of
            the weights is absent.
    """
    revision = request["revision"]
    with contextlib.suppress(OSError), open(os.path.join(root, "refs", revision), encoding="utf-8") as file:
        revision = file.read(256).strip()
    if not os.path.isdir(os.path.join(root, "snapshots", revision)):
        return  # it went elsewhere; the controller sees that nothing came
    record = Record(request["state_dir"], root)
    record.own(before)
    made = None if any(path.startswith("snapshots/%s/" % revision) for path in before) else revision

    def save() -> None:
        record.save(request["cluster"], made, soon=True)  # this process may be killed

    files = listing(root, revision, request.get("choice"), record, reads="unknown", check=save)
    record.save(request["cluster"], made)
    for each in files:
        if each.is_misnamed:
            path = os.path.join(root, "blobs", each.blob or "")
            if "blobs/%s" % each.blob in before:
                raise Failed("source", "%s is corrupt and was there before; remove it" % path)
            os.unlink(path)
            raise Failed("hub", "%s arrived with another content than the hub names it by" % each.name)
    absent = absent_shards(os.path.join(root, "snapshots", revision), request.get("choice"))
    if absent:
        more = " and %d more" % (len(absent) - 1) if len(absent) > 1 else ""
        raise Failed("hub", "the weights lack %s%s, which the hub did not send" % (absent[0], more))


def _paths(root: str) -> set[str]:
    return {os.path.relpath(os.path.join(here, name), root) for here, _, names in os.walk(root) for name in names}


def _size(folder: str) -> int:
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return total
    return total
