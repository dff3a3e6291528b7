"""Copies weights or an image from this node to another, or from another to this one.

Python 3.8, standard library only. The request says ``do`` (list, send or receive), ``what`` (files or image), the
lease (``state_dir``, ``cluster``, ``epoch``), ``address``, ``token``, and for a receiver ``port``.

Files: ``root`` is a directory on each side; with ``revision`` it is a model in Hugging Face's cache, of which that
snapshot, its blobs and ``ref`` are copied. ``list`` says what one node has of what is served (``choice``, see
``model_choice``); the controller checks that and gives it to both sides as ``files``, so that no node decides what is
written on another: ``path``, ``size``, ``mtime`` (ns), ``links`` to it, and ``sha256`` where that is known
(``listing``), which is compared with what arrives. With ``verify`` all have that, and files that exist are hashed too.
Each file is written next to its target under a name that ends in ``.partial``, hashed meanwhile, synced, renamed and
recorded (``record``); links follow, then the ref, so that an incomplete copy never looks complete.

Image: ``image_id``, ``reference``, ``size``, the ``bytes`` of it that are to come, of each layer what the receiver has
(``have``, see ``image_layers.dropped``), and what ``image_archive`` expects of what ``docker save`` sends.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from typing import Any, BinaryIO, Callable, Dict, List, Optional

from sparkcluster.node import common, docker_copy, wire, worker
from sparkcluster.node.listing import Reads, listing, stay_inside
from sparkcluster.node.model_files import forget, hash_file
from sparkcluster.node.record import Record
from sparkcluster.node.tree import Tree
from sparkcluster.node.wire import Check, Failed, Pace, Wire

Request = Dict[str, Any]

_SYNC_EVERY = 256 << 20
_RESERVE_BYTES = 256 << 20  # left free for logs and records
_OTHER_S = 60.0  # its operator's lease lapses, or the node notices that the connection is gone
_WANTED = struct.Struct("!IQ")  # number of a file, and its first byte that is missing


def main(request: Request, stdin: BinaryIO) -> Optional[Dict[str, Any]]:
    """Copy; the answer is that of ``wire.answer``. What only lists, without a lease, answers as ``wire.report``."""
    if request["do"] == "list" and "epoch" not in request:
        wire.report(stdin, lambda: list_files(request))
        return None
    if request["do"] == "begin":
        common.emit(wire.outcome(lambda: worker.begin(request, stdin)))
        os._exit(0)  # a thread still reads the input

    def work(check: Check) -> dict[str, Any]:
        if request["do"] == "list":
            return list_files(request)
        if request["do"] == "send":
            line = Wire(wire.accept(request["address"], request["token"])[0])
        else:
            line = Wire(wire.dial(request["address"], request["port"], request["token"]))
        try:
            return _ROLES[request["what"], request["do"]](request, line, check)
        finally:
            line.close()

    return wire.answer(request, stdin, work)


# files, sending


def list_files(request: Request) -> dict[str, Any]:
    """Emit each file of the directory or snapshot: its ``name`` there, and the ``blob`` that it links to.

    What was read is recorded under a lease alone: without one nothing is changed here.
    """
    record = Record(request["state_dir"], request["root"]) if "epoch" in request else None
    reads: Reads = "all" if request.get("verify") else "small"
    try:
        found = listing(request["root"], request.get("revision"), request.get("choice"), record, reads=reads)
    finally:
        if record is not None:
            record.save(request["cluster"])
    for each in found:
        common.emit({"file": each.as_json()})
    return {}


def _opened(root: str, path: str, revision: Optional[str]) -> BinaryIO:
    """A file to send. Of the hub's cache none outside of it; in a directory of the user's, links are the user's."""
    home, real = os.path.realpath(root), os.path.realpath(os.path.join(root, path))
    if not revision:
        return open(real, "rb")
    stay_inside(os.path.join(root, path), real, os.path.join(home, ""))
    return Tree(home).reader(os.path.relpath(real, home))


def send_files(request: Request, line: Wire, check: Check) -> dict[str, Any]:
    """Send the files that the receiver requests."""
    root, files = common.expand(request["root"]), request["files"]
    pace = Pace(0, check, quiet=True)
    wanted: Optional[bytes] = b""
    while wanted == b"":
        wanted = line.read_frame(_WANTED.size * len(files))
        pace.add()
    wanted = wanted or b""
    if len(wanted) % _WANTED.size:
        raise Failed("link", wire.INVALID)
    for number, offset in _WANTED.iter_unpack(wanted):
        if number >= len(files) or offset > files[number]["size"]:
            raise Failed("link", wire.INVALID)
        entry = files[number]
        with _opened(root, entry["path"], request.get("revision")) as file:
            if os.fstat(file.fileno()).st_size != entry["size"]:
                raise Failed("source", "%s/%s changed while it was sent" % (root, entry["path"]))
            line.send_file(file, offset, entry["size"] - offset, pace)
            forget(file.fileno())
    return {"bytes": pace.done}


# files, receiving


class Receiver:
    """Receives the ``files`` of ``request`` into ``tree``."""

    def __init__(self, request: Request, tree: Tree, line: Wire, check: Check) -> None:
        self.request = request
        self.files: List[Dict[str, Any]] = request["files"]
        self.tree = tree
        self.line = line
        self.check = check
        self.digests: Dict[int, Any] = {}
        self.received = 0
        self.record = Record(request["state_dir"], tree.root)
        revision = request.get("revision")
        self.made = revision if revision and tree.own_status("snapshots/" + revision) is None else None
        self.pace = Pace(sum(entry["size"] for entry in self.files), check)

    def run(self) -> dict[str, Any]:
        """Fetch what is missing; links and ref come last."""
        try:
            return self._run()
        finally:
            self.record.save(self.request["cluster"], self.made)

    def _run(self) -> dict[str, Any]:
        missing = [number for number, entry in enumerate(self.files) if not self._is_there(entry)]
        wanted = [(number, self._begun(number)) for number in missing]
        needed = sum(self.files[number]["size"] - offset for number, offset in wanted)
        self.pace.done = self.pace.total - needed
        self._room(needed)
        if wanted:
            self.line.send_frame(b"".join(_WANTED.pack(*each) for each in wanted))
            for number, offset in wanted:
                self._receive(number, offset)
        else:
            self.line.end_frames()
        self.check()
        for entry in self.files:
            for link in entry["links"]:
                self.pace.add()
                self.tree.link(link, os.path.relpath(entry["path"], os.path.dirname(link)))
        ref, revision = self.request.get("ref"), self.request.get("revision")
        if ref and revision and ref != revision:
            folder, name = os.path.split("refs/" + ref)
            partial = "%s/.%s.partial" % (folder, name)
            with self.tree.writer(partial) as file:
                file.write(revision.encode())
            self.tree.move(partial, "refs/" + ref)
        return {"bytes": self.received}

    def _is_there(self, entry: Dict[str, Any]) -> bool:
        if self.tree.size(entry["path"]) != entry["size"]:
            return False
        return not self.request.get("verify") or self._hash(hashlib.sha256(), entry["path"]) == str(entry["sha256"])

    def _hash(self, digest: Any, path: str) -> str:
        # before anything is requested: hashing while receiving would stall the sender
        return hash_file(digest, os.path.join(self.tree.root, path), lambda _size: self.pace.add(peer=self.line))

    def _partial(self, entry: Dict[str, Any]) -> str:
        folder, name = os.path.split(entry["path"])
        # a blob is named by its content, so that a copy can resume from another source
        blob = self.request.get("revision") and folder == "blobs"
        mark = "%d" % entry["size"] if blob else "%d-%d" % (entry["size"], entry["mtime"])
        return os.path.join(folder, ".%s.%s.partial" % (name, hashlib.sha256(mark.encode()).hexdigest()[:8]))

    def _begun(self, number: int) -> int:
        """Bytes that an earlier run received."""
        entry = self.files[number]
        partial = self._partial(entry)
        size = self.tree.size(partial)
        if not 0 < size <= entry["size"]:
            return 0
        self.digests[number] = hashlib.sha256()
        self._hash(self.digests[number], partial)
        return size

    def _room(self, needed: int) -> None:
        found = os.fstatvfs(self.tree.handle)
        free = found.f_bavail * found.f_frsize
        if needed and free < needed + _RESERVE_BYTES:
            text = "%s has %.1f GB free, %.1f GB needed" % (self.tree.root, free / 1e9, needed / 1e9)
            raise Failed("disk", text)

    def _receive(self, number: int, offset: int) -> None:
        """Receive one file from ``offset``; Failed if it has another hash than at the source."""
        entry = self.files[number]
        partial, expected = self._partial(entry), entry["sha256"]
        digest = self.digests.pop(number, None) or hashlib.sha256()
        with self.tree.writer(partial, offset) as file:
            self._write(file, entry["size"] - offset, digest)
            if expected not in (None, digest.hexdigest()):
                file.truncate(0)
                raise Failed("hash", "%s arrived with another SHA-256 than it has at the source" % entry["path"])
            os.fchmod(file.fileno(), 0o644)
            os.utime(file.fileno(), ns=(entry["mtime"], entry["mtime"]))
            os.fsync(file.fileno())
            forget(file.fileno())
            status = os.fstat(file.fileno())
        self.check()
        before = self.tree.status(entry["path"])
        self.tree.move(partial, entry["path"])
        ours = before is None or self.record.is_ours(entry["path"], before)
        self.record.add(entry["path"], status, digest.hexdigest(), ours=ours)
        self.record.save(self.request["cluster"], self.made, soon=True)

    def _write(self, file: BinaryIO, size: int, digest: Any) -> None:
        buffer = memoryview(bytearray(wire.CHUNK))
        unsynced = 0
        while size:
            got = self.line.read_into(buffer[: min(size, len(buffer))])
            file.write(buffer[:got])
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


def receive_files(request: Request, line: Wire, check: Check) -> dict[str, Any]:
    """Fetch the listed files that this node lacks, alone: a receiver that lost its operator may not have ended yet."""
    tree = Tree(common.expand(request["root"]))
    receiver = Receiver(request, tree, line, check)
    limit = time.monotonic() + _OTHER_S
    while not tree.lock():
        if time.monotonic() > limit:
            raise Failed("other", "another copy to %s is in progress" % tree.root)
        receiver.pace.add(peer=line)
        time.sleep(0.1)
    return receiver.run()


_ROLES: Dict[Any, Callable[[Request, Wire, Check], Dict[str, Any]]] = {
    ("files", "send"): send_files,
    ("files", "receive"): receive_files,
    ("image", "send"): docker_copy.send,
    ("image", "receive"): docker_copy.receive,
}
