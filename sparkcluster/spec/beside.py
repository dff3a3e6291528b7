"""Files and directories beside a playbook that its ``mounts`` name by ``./``: what is in them, by its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkcluster.errors import Problem
    from sparkcluster.spec.document import Document, KeyPath
    from sparkcluster.spec.playbook import Playbook

PREFIX = "./"
"""With this begins the source of a mount that is beside the playbook."""

_MOST_FILES, _MOST_BYTES = 1000, 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One file: its path below the node's directory, where it is on this machine, and its content."""

    path: str
    local: Path
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """What one mount names.

    Attributes:
        source: as the playbook has it.
        mark: of the content and of all names; other content is at another place on the nodes.
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
        """The path on a node."""
        return f"{self.folder(state_dir)}/{self.name}"

    def folder(self, state_dir: str) -> str:
        """The directory on a node that has it, and nothing else."""
        return f"{state_dir}/files/{self.mark}"


class NotUsable(Exception):
    """It cannot be given to nodes; the text says why."""


def read(source: str, playbook: Path) -> Beside:
    """What ``source``, which begins with ``./``, has beside the file ``playbook``.

    Raises:
        NotUsable: it is missing, is too much, or a link in it leads elsewhere.
    """
    top = playbook.parent.resolve()
    real = (top / source).resolve()
    if not real.is_relative_to(top) or real == top:
        raise NotUsable("leads out of the playbook's directory")
    if any(map(_is_hidden, (*Path(source).parts, *real.relative_to(top).parts))):
        raise NotUsable("is hidden, as keys are")
    try:
        if not real.exists():
            raise NotUsable(f"there is no {real}")
        name = Path(os.path.normpath(source)).name
        members = tuple(_members(real, name))
    except OSError as error:
        raise NotUsable(f"{error.filename} cannot be read: {error.strerror}") from None
    if not members:
        raise NotUsable(f"{real} has no files")
    mark = hashlib.sha256(repr([(each.path, each.sha256) for each in members]).encode()).hexdigest()[:16]
    return Beside(source, mark, name, members)


def mounted(served: Playbook, path: Path, document: Document, problems: list[Problem]) -> dict[str, Beside]:
    """What the playbook in ``path`` mounts from the directory of the file that says so; what it lacks is a problem."""
    found: dict[str, Beside] = {}
    for index, mount in enumerate(served.mounts):
        if mount.source.startswith(PREFIX):
            key = ("mounts", index, "source")
            try:
                found[mount.source] = read(mount.source, _named_in(key, path, document))
            except NotUsable as error:
                problems.append(document.problem(key, str(error), "name a file or directory beside the playbook"))
    return found


def built(served: Playbook, path: Path, document: Document, problems: list[Problem]) -> Beside | None:
    """The directory of which the image is built, likewise."""
    if served.build is None:
        return None
    key, name = ("build", "context"), served.build.script or served.build.dockerfile
    try:
        found = read(served.build.context, _named_in(key, path, document))
    except NotUsable as error:
        problems.append(document.problem(key, str(error), f"name a directory beside the playbook, with {name}"))
        return None
    if any(member.path == f"{found.name}/{name}" for member in found.members):
        return found
    problems.append(document.problem(key, f"has no {name}", "put it there, or name another under dockerfile or script"))
    return None


def _named_in(key: KeyPath, path: Path, document: Document) -> Path:
    place = document.values.get(key)
    return Path(place.file or document.file) if place is not None else path


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _members(real: Path, name: str) -> Iterator[Member]:
    total = 0
    inside = [path for path in real.rglob("*") if not any(map(_is_hidden, path.relative_to(real).parts))]
    paths = [real] if real.is_file() else sorted(path for path in inside if not path.is_dir())
    if len(paths) > _MOST_FILES:
        raise NotUsable(f"has more than {_MOST_FILES} files")
    for path in paths:
        if not path.resolve().is_relative_to(real):
            raise NotUsable(f"{path} leads out of it")
        if not path.is_file():
            raise NotUsable(f"{path} is no file")
        total += path.stat().st_size
        if total > _MOST_BYTES:
            raise NotUsable(f"has more than {_MOST_BYTES >> 20} MiB; weights are copied as a model")
        content = path.read_bytes()
        below = name if path == real else f"{name}/{path.relative_to(real).as_posix()}"
        if not below.isprintable():
            raise NotUsable(f"has a name with control characters: {below!r}")
        yield Member(below, path, len(content), hashlib.sha256(content).hexdigest())
