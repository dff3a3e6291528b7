"""The known_hosts files: check a host key, and store it on first use."""

from __future__ import annotations

import base64
import fcntl
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

Verdict = Literal["known", "changed", "revoked", "unknown"]


def check(files: Sequence[Path], name: str, kind: str, blob: str) -> tuple[Verdict, Path | None]:
    """Whether key ``blob`` (base64) of type ``kind`` belongs to ``name``, and the file with that entry.

    Like OpenSSH, accepts any of several known keys, and never a revoked one.
    """
    verdict: Verdict = "unknown"
    where: Path | None = None
    for file in files:
        for marker, known_kind, known_blob in _entries(file, name):
            same = (known_kind, known_blob) == (kind, blob)
            if marker == "@revoked" and same:
                return "revoked", file
            if marker:
                continue
            if same:
                verdict, where = "known", file
            elif verdict == "unknown":
                verdict, where = "changed", file
    return verdict, where


def kinds(files: Sequence[Path], name: str) -> list[str]:
    """Known key types of ``name``, to request from its sshd, in the order of the files."""
    found = [kind for file in files for marker, kind, _ in _entries(file, name) if not marker]
    return list(dict.fromkeys(found))


def store(file: Path, name: str, kind: str, blob: str) -> Verdict:
    """Add a key to ``file`` unless it already has one for ``name``; return the verdict afterwards.

    The file is created with mode 0600. Safe for several threads and programs at the same time.

    Raises:
        OSError: the file cannot be written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        verdict, _ = check([file], name, kind, blob)
        if verdict != "unknown":
            return verdict
        stream.seek(0)
        text = stream.read()
        newline = b"" if not text or text.endswith(b"\n") else b"\n"
        stream.write(newline + f"{name} {kind} {blob}\n".encode())
    return "known"


def _entries(file: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Marker, type and key of each line of ``file`` that matches ``name``."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) >= 3 and not words[0].startswith("#") and _matches(words[0], name):
            yield marker, words[1], words[2]


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part) for part in patterns.split("|")[2:4])
        except ValueError:
            return False
        # known_hosts hashes names with HMAC-SHA1; it protects their privacy, not the keys
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    listed = patterns.lower().split(",")
    if any(pattern.startswith("!") and _glob(pattern[1:], name) for pattern in listed):
        return False
    return any(_glob(pattern, name) for pattern in listed)


def _glob(pattern: str, name: str) -> bool:
    """Match ``*`` and ``?`` only: brackets are literal in known_hosts."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
