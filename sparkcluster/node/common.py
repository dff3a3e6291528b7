"""Output, files, locks and leases, for all programs on a node.

Each cluster has a directory below ``state_dir``::

    clusters/NAME/lease.lock       flock held by the process that holds the lease
    clusters/NAME/lease.json       {"epoch", "operator", "operation", "since", "granted"}: the last epoch granted
                                   here; "granted" is false while the next holder has the lock but no epoch yet
    clusters/NAME/lease-change.lock
                                   flock held while one change runs
    clusters/NAME/staging.lock     the same three files for the lease of staging, which has its own epochs;
    clusters/NAME/staging.json     both records are overwritten in place if the disk is full, else replaced
    clusters/NAME/staging-change.lock
    clusters/NAME/releases/N.json  every verified release, numbered
    clusters/NAME/releases/N.env   secrets of this node's rank of it, for a rollback (``keep``)
    clusters/NAME/switch.json      an unfinished switch from one release to another
    clusters/NAME/ranks/RANK/      launcher document, entry program, log and process of a rank

``start.lock``, ``start.json`` and ``start-change.lock`` beside ``clusters`` are the three files of the start lock,
which all clusters of the node share (``start_lock``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

BLOCK_BYTES = 4096
"""Block size of ext4 on DGX OS."""


class Refused(Exception):
    """The lease does not allow this change."""


class Busy(OSError):
    """Another change is in progress on this node."""


def emit(document: dict[str, Any]) -> None:
    """Write a line to the controller."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def end_with(stdin: BinaryIO, end: Callable[[int], None] = os._exit) -> None:
    """End this process when its input ends: the controller is gone, or has stopped reading."""
    # Unbuffered: a thread that waits with the lock of a buffer makes Python abort at exit.
    unbuffered = getattr(stdin, "raw", stdin)

    def watch() -> None:
        while unbuffered.read(1):
            continue
        end(1)

    threading.Thread(target=watch, daemon=True).start()


def expand(path: str) -> str:
    """Absolute form of ``path``; ``~`` is the home of the user on this node."""
    return os.path.abspath(os.path.expanduser(path))


def inside(path: str, directory: str) -> str:
    """``path`` with links in its parents resolved; PermissionError if it is not below ``directory``.

    A link in the last component is not resolved.
    """
    path = expand(path)
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    root = os.path.realpath(expand(directory))
    if not path.startswith(root + os.sep):
        raise PermissionError("%s is outside of %s" % (path, root))
    return path


def private(state_dir: str) -> str:
    """``state_dir`` on this node, after checking that only this user and root can write to it.

    Files below it need no further check. Except for ``caches``, containers see them read-only.

    Raises:
        PermissionError: it belongs to another user, or others can write to it.
    """
    path = expand(state_dir)
    with contextlib.suppress(FileNotFoundError):
        link, found = os.lstat(path), os.stat(path)
        strangers = {link.st_uid, found.st_uid} - {0, os.geteuid()}
        # If every user has a private group, new directories are writable by that group.
        if strangers or found.st_mode & (0o002 if found.st_gid == os.getegid() else 0o022):
            remedy = "remove it, or set state_dir in the inventory to a directory that this user owns"
            raise PermissionError("%s belongs to another user or is writable by others; %s" % (path, remedy))
    return path


def cluster_dir(state_dir: str, cluster: str) -> str:
    """Directory of ``cluster`` below ``state_dir``; PermissionError as in ``private``."""
    return os.path.join(private(state_dir), "clusters", cluster)


def write_atomically(path: str, content: bytes | bytearray, mode: int = 0o600, *, sync: bool = True) -> None:
    """Write ``content`` so that readers see either all of it or the old content; ``sync`` flushes it to disk."""
    import tempfile  # takes 3 ms, and most programs write no files

    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=directory, prefix=".partial-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.chmod(partial, mode)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def write_block(path: str, content: bytes) -> None:
    """Overwrite a small JSON document in place, in its existing block: a full disk has no other.

    Raises:
        OSError: the disk is full, and the file is new.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb", buffering=0) as file:
        file.write(content.ljust(BLOCK_BYTES))
        file.truncate(BLOCK_BYTES)
        os.fsync(file.fileno())


def read_env_file(path: str) -> dict[str, str]:
    """The ``NAME=value`` lines of a file, as ``docker run --env-file`` reads them."""
    with open(path, errors="surrogateescape") as file:
        lines = [line.rstrip("\n").partition("=") for line in file]
    return {name: value for name, equals, value in lines if equals}


def read_json(path: str) -> dict[str, Any]:
    """Like ``read_document``, but empty if the file is missing or damaged."""
    try:
        return read_document(path) or {}
    except OSError:
        return {}


def read_document(path: str) -> dict[str, Any] | None:
    """The JSON object in ``path``; None if the file does not exist.

    Raises:
        OSError: it cannot be read, or is not a JSON object.
    """
    try:
        with open(path, "rb") as file:
            return {**json.load(file)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, TypeError) as error:  # TypeError: not an object
        raise OSError("%s is damaged: %s" % (path, error)) from None


def try_lock(path: str, wait_s: float = 0.5, state_dir: str | None = None) -> BinaryIO | None:
    """An open file with an exclusive flock on ``path``; None if another process holds it for ``wait_s``.

    ``state_dir`` defaults to the directory two levels above the lock's own directory. One attempt is not enough:
    ``is_locked`` takes a shared lock for an instant.
    """
    directory = os.path.dirname(path)
    clusters = os.path.dirname(directory)
    state_dir = expand(state_dir or os.path.dirname(clusters))
    for each in (state_dir, clusters, directory):
        os.makedirs(each, mode=0o700, exist_ok=True)
    private(state_dir)  # another user may have created it meanwhile
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    limit = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > limit:
                file.close()
                return None
            time.sleep(0.005)


def is_locked(path: str) -> bool:
    """Whether a process holds the flock on ``path``."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


Lease = Mapping[str, Any]
"""The keys of a request for its lease: ``state_dir``, ``cluster``, ``epoch``, and ``kind`` (default: cluster)."""


def lease_files(lease: Lease) -> tuple[str, str, str]:
    """Lock, record and change lock of a lease; its ``kind`` is cluster, staging, or start (shared by all clusters)."""
    directory, name = cluster_dir(lease["state_dir"], lease["cluster"]), "lease"
    if lease.get("kind") in ("staging", "start"):
        name = lease["kind"]
    path = os.path.join(private(lease["state_dir"]) if name == "start" else directory, name)
    return path + ".lock", path + ".json", path + "-change.lock"


def check_not_taken(lease: Lease) -> None:
    """Raise Refused if another operator has requested the lease since it was granted.

    An expired lease is accepted: work that was started under it continues.
    """
    last = read_json(lease_files(lease)[1])
    if last.get("epoch") != lease["epoch"] or last.get("granted") is False:
        who = last.get("operator") or "an unknown operator"
        raise Refused("epoch %s is over: the lease was last requested by %s" % (lease["epoch"], who))


def check_epoch(lease: Lease) -> None:
    """Raise Refused unless the lease is held now."""
    check_not_taken(lease)
    if not is_locked(lease_files(lease)[0]):
        raise Refused("epoch %s is over: the lease expired" % lease["epoch"])


def change_lock(lease: Lease, wait_s: float) -> BinaryIO:
    """The change lock, acquired; Busy if another change does not end within ``wait_s``."""
    lock = try_lock(lease_files(lease)[2], wait_s, lease["state_dir"])
    if lock is None:
        raise Busy("another change is still in progress after %.0f s" % wait_s)
    return lock


@contextlib.contextmanager
def changing(lease: Lease) -> Iterator[None]:
    """Hold the change lock of this node; the epoch is checked while it is held.

    ``order`` in the request numbers an operator's changes: a change that arrives after a later one is refused, such as
    an interrupted start after its stop.

    Raises:
        Refused: the epoch or order is old.
        Busy: another change does not end within ``wait_s``.
    """
    with change_lock(lease, lease.get("wait_s", 20.0)) as lock:
        check_epoch(lease)
        if "order" in lease:
            change = [lease["epoch"], lease["order"]]
            # from an earlier epoch, or the record was lost
            if change < list(map(int, lock.read().split())) < [lease["epoch"] + 1]:
                raise Refused("a later change of the same operator was applied before this one")
            lock.seek(0)
            # overwrites in place: on a full disk, released space may not be available again
            lock.write((b"%d %d" % tuple(change)).ljust(64))
            lock.flush()
        yield


def start_ticks(pid: int) -> int | None:
    """Start time of process ``pid`` in ticks since boot, which distinguishes reused PIDs; None if it ended."""
    try:
        with open("/proc/%d/stat" % pid, errors="replace") as file:
            return ticks_of(file.read())
    except OSError:
        return None


def processes() -> dict[int, tuple[int, int]]:
    """Parent and session of every process, except zombies."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/stat" % name, errors="replace") as file:
            state, parent, _, session = file.read().rpartition(")")[2].split()[:4]
            if state != "Z":
                found[int(name)] = int(parent), int(session)
    return found


def is_stopped(pid: int | None) -> bool:
    """Whether a process is stopped by SIGSTOP."""
    with contextlib.suppress(OSError), open("/proc/%s/stat" % pid, errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
    return False


def ticks_of(stat: str) -> int | None:
    """Start time from ``/proc/PID/stat``; None for a zombie."""
    # the command's name may contain spaces and parentheses, so fields are counted from the last parenthesis
    fields = stat.rpartition(")")[2].split()
    return int(fields[19]) if fields and fields[0] != "Z" else None
