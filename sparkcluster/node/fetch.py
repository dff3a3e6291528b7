"""Downloads a model from Hugging Face's hub to this node.

The request has ``do`` (run or cancel), ``id``, ``revision``, ``choice`` (``model_choice``), ``hf_home``, ``image`` (ID
of an image with the downloader, or None), ``endpoint`` (address of the hub; None for this node's setting), ``token``
(or None), and the lease. The downloader gets the token in its environment, never as an argument. The downloaded files
are hashed and recorded.

Without a lease the operator's machine downloads: nothing is recorded, and the download ends when the input ends. With a
lease it is a job (``job``), in ``state_dir/downloads/HASH``.
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
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, model_choice, programs, wire
from sparkcluster.node.file_hashes import Record
from sparkcluster.node.listing import listing
from sparkcluster.node.shared import HUB_ADDRESS, hub_folder
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

# HTTP errors as huggingface_hub prints them with requests or httpx, or its own errors.
_DENIED = re.compile(
    r"(?im)\b40[13] (?:Client Error|Unauthorized|Forbidden)|Gated ?Repo|Repository ?Not ?Found|Access denied\. "
    r"|Error: .* not found\.$"
)
_NO_CLIENT = "No module named 'huggingface_hub'"
_NO_DOWNLOADER = "the node has neither hf (uv tool install huggingface_hub) nor an image with huggingface_hub"
_SNAPSHOT = (
    "import sys; from huggingface_hub import snapshot_download; "
    "snapshot_download(sys.argv[1], revision=sys.argv[2], allow_patterns=sys.argv[3:] or None)"
)


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Download, or cancel the download; answers as ``wire.answer``."""
    if "epoch" not in request:
        job.end_by_signal()
        common.end_with(stdin, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        return wire.outcome(lambda: download(request, common.emit))
    key = json.dumps([request[name] for name in ("id", "revision", "choice", "hf_home", "endpoint")], sort_keys=True)
    return job.answer(request, stdin, "downloads", key, lambda own: download(request, own.say))


def download(request: Request, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Download the files that are served into this node's cache, with its ``hf`` or in the serving image.

    ``say`` gets the bytes that are present, and the total.
    """
    hf_home = common.expand(request["hf_home"])
    environment = dict(os.environ, HF_HOME=hf_home, HF_HUB_DISABLE_TELEMETRY="1", NO_COLOR="1")
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):  # they would redirect or disable the download
        environment.pop(name, None)
    if request["token"]:
        environment["HF_TOKEN"] = request["token"]
    if request["endpoint"]:
        environment["HF_ENDPOINT"] = request["endpoint"]
    sizes = _listed(request, environment.get("HF_ENDPOINT") or HUB_ADDRESS)
    files = model_choice.chosen(sizes, (), request["choice"])
    if sizes and not files:
        why = "model.files and model.exclude match none of the %d files of %s" % (len(sizes), request["id"])
        raise Failed("hub", why)
    served = sum(sizes[name] for name in files)
    os.makedirs(hf_home, exist_ok=True)
    root = os.path.join(hf_home, hub_folder(request["id"]))
    folder = os.path.join(root, "blobs")
    # The default one may belong to root, created by a container, but the client must write it
    # (huggingface/xet-core#417).
    environment["HF_XET_CACHE"] = os.path.join(root, ".xet")
    _forget_left(root)
    needed, free = served - _size(folder), shutil.disk_usage(hf_home).free
    if needed > free:
        raise Failed("disk", "%s has %.1f GB free, %.1f GB needed" % (hf_home, free / 1e9, needed / 1e9))
    before, some = _paths(root), files if len(files) < len(sizes) else []

    def tell(_output: bytes) -> None:
        say({"bytes": _size(folder), "total": served})

    tell(b"")
    with docker.named("fetch", lambda argv: programs.run(argv, 20)) as container:
        argv = _downloader(request, root, environment, some, container)
        code, tail = programs.watched(argv, tell, env=environment)
    if code:
        text = tail.decode(errors="replace")
        if _NO_CLIENT in text:
            raise Failed("no downloader", _NO_DOWNLOADER)
        kind = "hub auth" if _DENIED.search(text) else "disk" if docker.disk_is_full(text) else "hub"
        raise Failed(kind, _reason(text))
    if "epoch" in request:
        _verify(request, root, before)
    return {"bytes": _size(folder), "left_out_bytes": sum(sizes.values()) - served, "whole": not sizes}


def _reason(text: str) -> str:
    """Why a download failed, from its output: hf 2 prints the error in a separate line, and a hint at the end."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("Hint: ")]
    said = [line[len("Error: ") :] for line in lines if line.startswith("Error: ")]
    return (said or lines or ["no output"])[-1]


def _forget_left(root: str) -> None:
    """Remove partial files of a client that was killed: since huggingface_hub#4228 they are not resumed.

    A running client holds the lock of its file.
    """
    cache, repository = os.path.split(root)
    for path in glob.glob(os.path.join(glob.escape(root), "blobs", "*.????????.incomplete")):
        lock = os.path.join(cache, ".locks", repository, os.path.basename(path).partition(".")[0] + ".lock")
        if not common.is_locked(lock):
            with contextlib.suppress(OSError):  # the client has just finished, or the file belongs to root
                os.unlink(path)


def _listed(request: Request, endpoint: str) -> dict[str, int]:
    """Size of each file of the repository; empty if the hub does not list it without a token: then all are downloaded.

    Names that look like an option of the downloader are dropped.

    Raises:
        Failed: the hub cannot be reached; its client reports that only after minutes.
    """
    revision = urllib.parse.quote(request["revision"], safe="")
    address = "%s/api/models/%s/revision/%s?blobs=true" % (endpoint.rstrip("/"), request["id"], revision)
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            found = json.load(response)["siblings"]
    except (urllib.error.HTTPError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return {}
    except OSError as error:
        why = str(getattr(error, "reason", error))
        if "CERTIFICATE_VERIFY_FAILED" in why or "ALL_PROXY" in os.environ:  # hf may still connect
            return {}
        raise Failed("no hub", "%s cannot be reached: %s" % (endpoint, why)) from None
    return {each["rfilename"]: each.get("size") or 0 for each in found if not each["rfilename"].startswith("-")}


def _downloader(
    request: Request, root: str, environment: dict[str, str], files: list[str], container: list[str]
) -> list[str]:
    """Command that downloads ``files`` of the repository (if empty, all); ``container`` has the container's name.

    Raises:
        Failed: there is no downloader.
    """
    path = os.pathsep.join([environment.get("PATH", os.defpath), os.path.expanduser("~/.local/bin"), "/usr/local/bin"])
    found = shutil.which("hf", path=path) or shutil.which("huggingface-cli", path=path)
    if found:
        return [found, "download", request["id"], *files, "--revision", request["revision"]]
    if request["token"]:
        why = "the node has no hf (uv tool install huggingface_hub), and the playbook's image must not get the token"
        raise Failed("no downloader", why)
    if not request["image"]:
        raise Failed("no downloader", _NO_DOWNLOADER)
    options = [*container, "--init", "--network", "host", "--user", "%d:%d" % (os.getuid(), os.getgid())]
    options += ["--security-opt", "no-new-privileges"]  # it cannot change its user
    # It sees only this repository and its locks, not the rest of the cache or the token in it.
    cache, repository = os.path.split(root)
    for folder in (root, os.path.join(cache, ".locks", repository)):
        os.makedirs(folder, exist_ok=True)
        options += ["-v", "%s:%s" % (folder, folder)]
    environment.update(HF_HOME="/tmp/huggingface", HF_HUB_CACHE=cache)  # in the container
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HTTPS_PROXY", "NO_COLOR"):
        options += ["-e", name]  # names only: docker takes the values from our environment
    words = [request["id"], request["revision"], *files]
    return [*docker.run_once(request["image"], "python3", _SNAPSHOT, options), *words]


def _verify(request: Request, root: str, before: set[str]) -> None:
    """Hash what was downloaded and record it: the hub's client only compares sizes.

    Raises:
        Failed: a blob's content does not match its name; the blob is removed if this download wrote it.
    """
    revision = request["revision"]
    with contextlib.suppress(FileNotFoundError), open(os.path.join(root, "refs", revision), encoding="utf-8") as file:
        revision = file.read().strip()
    record = Record(request["state_dir"], root)
    record.before = before
    made = None if any(path.startswith("snapshots/%s/" % revision) for path in before) else revision

    def save() -> None:
        record.save(request["cluster"], made)  # this process may be killed

    files = listing(root, revision, request["choice"], record, verify=True, check=save)
    record.save(request["cluster"], made)
    for each in files:
        if each.is_misnamed:
            path = os.path.join(root, "blobs", each.blob or "")
            if "blobs/%s" % each.blob in before:
                raise Failed("source", "%s is corrupt and existed before; remove it" % path)
            os.unlink(path)
            raise Failed("hub", "the content of %s does not match its hash on the hub" % each.name)


def _paths(root: str) -> set[str]:
    return {os.path.relpath(os.path.join(here, name), root) for here, _, names in os.walk(root) for name in names}


def _size(folder: str) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            total += entry.stat(follow_symlinks=False).st_size
    return total
