"""Copies weights or an image from this node to another, or from another to this one.

Python 3.8, standard library only. The request says ``do`` (send or receive), ``what`` (files or image), the
lease (``state_dir``, ``cluster``, ``epoch``), ``address``, ``token``, and for a receiver ``port``.

Files: ``root`` is a directory on each side; with ``revision`` it is a model in Hugging Face's cache, of which that
snapshot, its blobs and ``ref`` are copied. Each file is written next to its target under a name that ends in
``.partial``, synced and renamed; links follow, then the ref, so that an incomplete copy never looks complete.
``verify`` compares the SHA-256 of every file, including those that existed before.

Image: ``image_id``, ``reference``, ``layers``, piped from ``docker save`` to ``docker load``.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import Any, BinaryIO, Callable, Dict, List

from sparkcluster.node import common, docker_copy, wire
from sparkcluster.node.model_files import forget, hash_file, model_files
from sparkcluster.node.wire import Check, Failed, Pace, Wire

Request = Dict[str, Any]

_SYNC_EVERY = 256 << 20
_RESERVE_BYTES = 256 << 20  # left free for logs and records


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Copy; the answer is that of ``wire.answer``."""

    def work(check: Check) -> dict[str, Any]:
        if request["do"] == "send":
            line = wire.listen(request["address"], request["token"])
        else:
            line = wire.connect(request["address"], request["port"], request["token"])
        try:
            return _ROLES[request["what"], request["do"]](request, line, check)
        finally:
            line.close()

    return wire.answer(request, stdin, work)


# files, sending


def manifest(root: str, revision: str | None, ref: str | None) -> dict[str, Any]:
    """What to copy: files with size and mark, links with target, the ref; paths relative to ``root``."""
    top = os.path.join(root, "snapshots", revision) if revision else root
    if not os.path.isdir(top):
        raise Failed("source", "%s does not exist" % top)
    files: dict[str, dict[str, Any]] = {}
    links: list[list[str]] = []
    blobs = os.path.realpath(os.path.join(root, "blobs")) + os.sep
    for path, real, status in model_files(top):
        relative = os.path.relpath(path, root)
        is_blob = bool(revision) and os.path.islink(path) and real.startswith(blobs)
        if is_blob:
            link, relative = relative, "blobs/" + real[len(blobs) :]
            links.append([link, os.path.relpath(relative, os.path.dirname(link))])
        # a blob is named by its content, so that a copy can resume from another source
        mark = "%d" % status.st_size if is_blob else "%d-%d" % (status.st_size, status.st_mtime_ns)
        files[relative] = {
            "path": relative,
            "size": status.st_size,
            "mark": mark,
            "mtime": [status.st_atime_ns, status.st_mtime_ns],
        }
    if not files:
        raise Failed("source", "%s contains no files" % top)
    refs = {ref: revision} if revision and ref and ref != revision else {}
    return {"files": list(files.values()), "links": links, "refs": refs}


def send_files(request: Request, line: Wire, check: Check) -> dict[str, Any]:
    """Send the manifest, then the files that the receiver requests."""
    root = common.expand(request["root"])
    offer = manifest(root, request.get("revision"), request.get("ref"))
    line.send_line(offer)
    pace = Pace(0, check, quiet=True)
    while True:
        requested = line.read_line()
        if not requested:
            return {"bytes": pace.done}
        for number, offset in requested:
            entry = offer["files"][number]
            with open(os.path.join(root, entry["path"]), "rb") as file:
                if os.fstat(file.fileno()).st_size != entry["size"]:
                    raise Failed("source", "%s changed while it was sent" % file.name)
                line.send_file(file, offset, entry["size"] - offset, pace)
                if request.get("verify"):
                    digest = hash_file(hashlib.sha256(), file.name, lambda _size: pace.add(peer=line))
                    line.send_line({"sha256": digest})
                forget(file.fileno())


# files, receiving


class Receiver:
    """Receives files below ``root``."""

    def __init__(self, root: str, line: Wire, check: Check, verify: bool) -> None:
        self.root = root
        self.line = line
        self.check = check
        self.verify = verify
        self.digests: Dict[int, Any] = {}
        self.received = 0
        self.pace = Pace(0, check)

    def inside(self, path: str) -> str:
        """Absolute form of ``path``; Failed if it is outside of ``root``."""
        whole = os.path.normpath(os.path.join(self.root, path))
        if os.path.isabs(path) or not whole.startswith(self.root + os.sep):
            raise Failed("link", "the sender offered a path outside of the directory: %r" % path)
        return whole

    def run(self) -> dict[str, Any]:
        """Fetch what is missing; links and ref come last."""
        offer = self.line.read_line()
        files: List[Dict[str, Any]] = offer["files"]
        self.pace.total = sum(entry["size"] for entry in files)
        whole = [number for number, entry in enumerate(files) if self._is_there(entry)]
        requested = [[number, self._begun(files[number])] for number in range(len(files)) if number not in whole]
        self.pace.done = sum(files[number]["size"] for number in whole) + sum(each[1] for each in requested)
        self._room(sum(files[number]["size"] - offset for number, offset in requested))
        if self.verify:
            # before the request: hashing existing files while receiving would stall the sender
            requested = [[number, files[number]["size"]] for number in whole] + requested
            for number, offset in requested:
                self._hash_here(number, files[number], offset)
        self._fetch(files, requested)
        self.line.send_line([])
        for path, target in offer["links"]:
            self._link(path, target)
        for ref, revision in offer["refs"].items():
            common.write_atomically(self.inside("refs/" + ref), revision.encode(), 0o644)
        return {"bytes": self.received, "files": len(files), "size": self.pace.total}

    def _is_there(self, entry: Dict[str, Any]) -> bool:
        return bool(_size(self.inside(entry["path"])) == entry["size"])

    def _partial(self, entry: Dict[str, Any]) -> str:
        folder, name = os.path.split(self.inside(entry["path"]))
        mark = hashlib.sha256(entry["mark"].encode()).hexdigest()[:8]
        return os.path.join(folder, ".%s.%s.partial" % (name, mark))

    def _begun(self, entry: Dict[str, Any]) -> int:
        """Bytes that an earlier run received."""
        size = _size(self._partial(entry))
        return size if 0 < size <= entry["size"] else 0

    def _hash_here(self, number: int, entry: Dict[str, Any], offset: int) -> None:
        self.digests[number] = hashlib.sha256()
        if offset:
            path = self.inside(entry["path"])
            path = path if self._is_there(entry) else self._partial(entry)
            hash_file(self.digests[number], path, lambda _size: self.pace.add(peer=self.line))

    def _room(self, needed: int) -> None:
        existing = self.root
        while not os.path.isdir(existing):
            existing = os.path.dirname(existing)
        found = os.statvfs(existing)
        free = found.f_bavail * found.f_frsize
        if needed and free < needed + _RESERVE_BYTES:
            text = "%s has %.1f GB free, %.1f GB needed" % (existing, free / 1e9, needed / 1e9)
            raise Failed("disk", text)

    def _fetch(self, files: List[Dict[str, Any]], requested: List[List[int]]) -> None:
        """Receive ``requested`` (number of file and first byte); files with a wrong hash are fetched again, once."""
        again = self._round(files, requested)
        if again and self._round(files, again):
            raise Failed("hash", "%s arrived with a different hash than it was sent with" % files[again[0][0]]["path"])

    def _round(self, files: List[Dict[str, Any]], requested: List[List[int]]) -> List[List[int]]:
        if not requested:
            return []
        self.line.send_line(requested)
        return [[number, 0] for number, offset in requested if not self._receive(number, files[number], offset)]

    def _receive(self, number: int, entry: Dict[str, Any], offset: int) -> bool:
        """Receive one file from ``offset``; False if its hash differs from the sender's."""
        target, partial = self.inside(entry["path"]), self._partial(entry)
        there = offset == entry["size"] and self._is_there(entry)
        digest = self.digests.pop(number, None) or hashlib.sha256()
        if not there:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(partial, "ab") as file:
                file.truncate(offset)
                self._write(file, entry["size"] - offset, digest)
                os.fsync(file.fileno())
                forget(file.fileno())
        if self.verify and not self._same(entry, digest.hexdigest(), self.line.read_line()["sha256"]):
            os.unlink(target if there else partial)
            self.pace.done -= entry["size"]
            return False
        if not there:
            self.check()
            os.chmod(partial, 0o644)
            os.utime(partial, ns=(entry["mtime"][0], entry["mtime"][1]))
            os.replace(partial, target)
            _sync(os.path.dirname(target))
        return True

    @staticmethod
    def _same(entry: Dict[str, Any], received: str, sent: str) -> bool:
        """Whether the hashes are equal; the hub names large blobs by their SHA-256."""
        name = os.path.basename(entry["path"])
        named = re.match(r"^[0-9a-f]{64}$", name)
        if named and entry["path"].startswith("blobs/") and sent != name:
            raise Failed("source", "%s is corrupt on the sender" % entry["path"])
        return received == sent

    def _write(self, file: BinaryIO, size: int, digest: Any) -> None:
        buffer = memoryview(bytearray(wire.CHUNK))
        unsynced = 0
        while size:
            got = self.line.read_into(buffer[: min(size, len(buffer))])
            file.write(buffer[:got])
            if self.verify:
                digest.update(buffer[:got])
            size -= got
            unsynced += got
            self.received += got
            self.pace.add(got)
            if unsynced >= _SYNC_EVERY:
                # in pieces, so that no sync exceeds the sender's time-out
                file.flush()
                os.fdatasync(file.fileno())
                unsynced = 0
        file.flush()

    def _link(self, path: str, target: str) -> None:
        place = self.inside(path)
        self.inside(os.path.join(os.path.dirname(path), target))
        if os.path.islink(place) and os.readlink(place) == target:
            return
        self.check()
        folder = os.path.dirname(place)
        os.makedirs(folder, exist_ok=True)
        spare = os.path.join(folder, ".link-%d.partial" % os.getpid())
        if os.path.islink(spare):
            os.unlink(spare)
        os.symlink(target, spare)
        os.replace(spare, place)


def _size(path: str) -> int:
    """Size of a file, -1 if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def receive_files(request: Request, line: Wire, check: Check) -> dict[str, Any]:
    """Fetch the offered files that this node lacks."""
    root = common.expand(request["root"])
    os.makedirs(root, exist_ok=True)
    return Receiver(root, line, check, bool(request.get("verify"))).run()


_ROLES: Dict[Any, Callable[[Request, Wire, Check], Dict[str, Any]]] = {
    ("files", "send"): send_files,
    ("files", "receive"): receive_files,
    ("image", "send"): docker_copy.send,
    ("image", "receive"): docker_copy.receive,
}
