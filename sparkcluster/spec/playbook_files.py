"""Playbook files, named by ``./`` in ``mounts`` and ``build``: their content and its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkcluster.errors import Problem
    from sparkcluster.spec.document import Document
    from sparkcluster.spec.playbook import Playbook

_MOST_FILES, _MOST_BYTES = 1000, 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A file: its path below the directory on the node, its local path, size and hash."""

    path: str
    local: Path
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class FileSet:
    """The files of one mount or build context.

    Attributes:
        source: path as written in the playbook.
        mark: hash of names and content; it is part of the path on the nodes.
        name: last part of the source.
    """

    source: str
    mark: str
    name: str
    members: tuple[Member, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(member.size for member in self.members)

    def place(self, state_dir: str) -> str:
        """The path of the source on a node."""
        return f"{self.folder(state_dir)}/{self.name}"

    def folder(self, state_dir: str) -> str:
        """The directory on a node that contains only these files."""
        return f"{state_dir}/files/{self.mark}"


class NotUsable(Exception):
    """Files cannot be copied to nodes; the text gives the reason."""


def read(source: str, playbook: Path) -> FileSet:
    """Read ``source``, which starts with ``./``, relative to the file ``playbook``.

    Raises:
        NotUsable: it is missing or too large, or a link points outside.
    """
    top = playbook.parent.resolve()
    try:
        real = (top / source).resolve()
    except RuntimeError:
        raise NotUsable("is a link to itself") from None
    if not real.is_relative_to(top) or real == top:
        raise NotUsable("is outside the playbook's directory")
    if _is_hidden(Path(source)) or _is_hidden(real.relative_to(top)):
        raise NotUsable("is a hidden file")
    try:
        if not real.exists():
            raise NotUsable(f"{real} does not exist")
        name = Path(os.path.normpath(source)).name
        members = tuple(_members(real, name))
    except OSError as error:
        raise NotUsable(f"{error.filename} cannot be read: {error.strerror}") from None
    if not members:
        raise NotUsable(f"{real} has no files")
    mark = hashlib.sha256(repr([(each.path, each.sha256) for each in members]).encode()).hexdigest()[:32]
    return FileSet(source, mark, name, members)


def of(served: Playbook, path: Path, document: Document) -> tuple[dict[str, FileSet], FileSet | None, list[Problem]]:
    """Mounted files by source, the build context, and problems; paths are relative to the file with the key."""
    problems: list[Problem] = []

    def found(source: str, *key: str | int) -> FileSet | None:
        place = document.values.get(key)
        try:
            return read(source, path if place is None else Path(place.file or document.file))
        except NotUsable as error:
            problems.append(document.problem(key, str(error), "use a file or directory in the playbook's directory"))
            return None

    sources = {at: each.source for at, each in enumerate(served.mounts) if each.is_local}
    mounted = {source: found(source, "mounts", at, "source") for at, source in sources.items()}
    built = None if served.build is None else found(served.build.context, "build", "context")
    if served.build is not None and built is not None:
        name = served.build.script or served.build.dockerfile
        if all(member.path != f"{built.name}/{name}" for member in built.members):
            hint = "create it, or set dockerfile or script"
            problems.append(document.problem(("build", "context"), f"has no {name}", hint))
            built = None
    return {source: each for source, each in mounted.items() if each is not None}, built, problems


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _members(real: Path, name: str) -> Iterator[Member]:
    total = 0
    inside = (path for path in real.rglob("*") if not _is_hidden(path.relative_to(real)) and not path.is_dir())
    paths = [real] if real.is_file() else sorted(inside)
    if len(paths) > _MOST_FILES:
        raise NotUsable(f"has more than {_MOST_FILES} files")
    for path in paths:
        if not path.resolve().is_relative_to(real):
            raise NotUsable(f"{path} is a link to outside")
        if not path.is_file():
            raise NotUsable(f"{path} is not a file")
        total += path.stat().st_size
        if total > _MOST_BYTES:
            raise NotUsable(f"has more than {_MOST_BYTES >> 20} MiB; weights are copied as a model")
        content = path.read_bytes()
        below = name if path == real else f"{name}/{path.relative_to(real).as_posix()}"
        if not below.isprintable():
            raise NotUsable(f"has a name with control characters: {below!r}")
        yield Member(below, path, len(content), hashlib.sha256(content).hexdigest())
