"""From files to a spec: read, check against the models and each other, and tell everything at once."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.spec import Spec, check, library, messages
from sparkcluster.spec.base import Section
from sparkcluster.spec.document import Document, KeyPath, parse, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook

MAX_BYTES = 1 << 20

_Model = TypeVar("_Model", bound=Section)


def load(inventory_path: Path, playbook: str | None = None) -> Spec:
    """The spec that ``inventory_path`` describes.

    Args:
        inventory_path: file of the inventory.
        playbook: name or path of a playbook in place of the one that the inventory names; looked up from the
            current directory, then from the inventory's.

    Raises:
        UsageError: a file is not there or cannot be read.
        SpecError: what they say cannot be used; holds every problem, by file and line.
    """
    document = read(inventory_path)
    inventory, problems = _model(document, Inventory)
    if inventory:
        problems += check.inventory(inventory, document)
        problems += _unreadable(inventory, document)
    wanted = playbook if playbook is not None else document.data.get("playbook")
    served, served_path = None, inventory_path
    unusable = playbook is None and any(problem.path == "playbook" for problem in problems)
    if isinstance(wanted, str) and not unusable:
        try:
            served_path = _find(wanted, inventory_path, document, given=playbook is not None)
            served, served_document, more = _playbook(served_path)
            problems += more
            if inventory and served:
                problems += check.together(inventory, served, served_document)
        except SpecError as error:
            problems += error.problems
        except UsageError:
            if not problems:
                raise
    if problems or inventory is None or served is None:
        raise SpecError(_sorted(problems, str(inventory_path)))
    return Spec(inventory, served, inventory_path, served_path)


def load_playbook(path: Path) -> Playbook:
    """The playbook in one file, by itself.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    playbook, _, problems = _playbook(path)
    if problems or playbook is None:
        raise SpecError(_sorted(problems, str(path)))
    return playbook


def is_playbook(document: Document) -> bool:
    """Whether a file is meant as a playbook: it names a model and no nodes."""
    return "nodes" not in document.data and "cluster" not in document.data and "model" in document.data


def read(path: Path) -> Document:
    """A YAML file with the place of everything in it.

    Raises:
        UsageError: it cannot be read.
        SpecError: it is no YAML.
    """
    name = shown(str(path), 300)[1:-1]
    content = _bytes(path, name)
    if len(content) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES // 1024} KiB", hint="is this the right file?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = Problem(name, line, column, "", "the file is not UTF-8 text", "save it as UTF-8")
        raise SpecError([problem]) from None
    return parse(text, name)


def _bytes(path: Path, name: str) -> bytes:
    try:
        # Without O_NONBLOCK, opening a named pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise UsageError(f"{name} is no file name") from None
    except OSError as error:
        raise _unread(error, name) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{name} is a directory", hint="name the YAML file in it")
        if not stat.S_ISREG(mode):
            raise UsageError(f"{name} is no regular file", hint="save it to a file first")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unread(error, name) from None
    finally:
        os.close(descriptor)


def _unread(error: OSError, name: str) -> UsageError:
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return UsageError(f"{name}: no such file", hint="inventories to copy: inventory/ in the project")
    if error.errno == errno.EACCES:
        return UsageError(f"{name} may not be read", hint=f"ls -l {name}")
    return UsageError(f"{name} cannot be read: {os.strerror(error.errno or 0)}")


def _playbook(path: Path) -> tuple[Playbook | None, Document, list[Problem]]:
    document = read(path)
    playbook, problems = _model(document, Playbook)
    if playbook:
        problems += check.playbook(playbook, document)
    return playbook, document, problems


def _find(wanted: str, inventory_path: Path, document: Document, *, given: bool) -> Path:
    beside = [Path(), inventory_path.parent] if given else [inventory_path.parent]
    try:
        return library.find(wanted, beside, other_than=inventory_path)
    except UsageError as error:
        if given:
            raise
        raise SpecError([document.problem(("playbook",), error.message, error.hint)]) from None


def _model(document: Document, model: type[_Model]) -> tuple[_Model | None, list[Problem]]:
    found = list(document.problems)
    try:
        checked = model.model_validate(document.data)
    except ValidationError as error:
        places = {(problem.line, problem.column) for problem in found}
        more = messages.problems(error, document, model)
        return None, found + [one for one in more if (one.line, one.column) not in places]
    return (None if found else checked), found


def _unreadable(inventory: Inventory, document: Document) -> list[Problem]:
    """Identities that no login could use; asked here, since the answer for all nodes is one."""
    out = []
    written: list[tuple[KeyPath, str | None]] = [(("ssh", "identity"), inventory.ssh.identity)]
    written += [(("nodes", i, "ssh", "identity"), one.ssh.identity) for i, one in enumerate(inventory.nodes) if one.ssh]
    for path, identity in written:
        if identity is None:
            continue
        try:
            file = Path(identity).expanduser()
            readable = file.is_file() and os.access(file, os.R_OK)
        except (OSError, RuntimeError, ValueError):
            readable = False
        if not readable:
            message = f"{shown(identity)[1:-1]} is not there or may not be read"
            out.append(document.problem(path, message, "name the private key, as ~/.ssh/id_ed25519"))
    return out


def _sorted(problems: Sequence[Problem], first: str) -> list[Problem]:
    """By line, the inventory's before the playbook's."""
    return sorted(
        set(problems),
        key=lambda one: (one.file != first, one.file, one.line, one.column, one.path, one.message),
    )
