"""From files to a spec: read, check against the models and each other, and report all problems at once."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.spec import Spec, beside, check, compose, kinds, library, variants
from sparkcluster.spec.base import Section
from sparkcluster.spec.document import Document, parse, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook
from sparkcluster.suggest import closest

if TYPE_CHECKING:
    from sparkcluster.spec.assignments import Assignments

MAX_BYTES = 1 << 20

_Model = TypeVar("_Model", bound=Section)


def load(
    inventory_path: Path,
    playbook: str | None = None,
    *,
    set_: Assignments | None = None,
    starts: bool = True,
    nodes: int | None = None,
) -> Spec:
    """The spec that ``inventory_path`` describes.

    ``playbook`` is the name or path of a playbook instead of the one in the inventory; it is looked up from the current
    directory, then from the inventory's. ``set_`` are keys of the playbook from the command line. ``starts`` is false
    for commands that only look at what runs, or stop it: they need no permission of the inventory. ``nodes``: of the
    groups for which the playbook is read; default: as many as they have.

    Raises:
        UsageError: a file is missing or cannot be read.
        SpecError: with every problem of the files, by file and line.
    """
    document, inventory, problems = _inventory(inventory_path)
    if inventory and starts:
        problems += check.programs(inventory, document, inventory_path.parent)
    reference = playbook if playbook is not None else document.data.get("playbook")
    served, served_document, served_path = None, document, inventory_path
    unusable = playbook is None and any(problem.path == "playbook" for problem in problems)
    if isinstance(reference, str) and not unusable:
        try:
            served_path, overlays = _find(reference, inventory_path, document, from_flag=playbook is not None)
            groups = _group_sizes(inventory) if inventory and nodes is None else [nodes] if nodes else []
            served, served_document, more = _playbook(served_path, overlays, set_, groups)
            problems += more
            if inventory and served:
                problems += check.together(inventory, served, document, served_document, starts=starts)
        except SpecError as error:
            problems += error.problems
        except UsageError as error:
            if playbook is None:
                problems.append(document.problem(("playbook",), error.message, error.hint))
            elif not problems:
                raise
    lacking = problems if starts else []
    files = beside.mounted(served, served_path, served_document, lacking) if served else {}
    built = beside.built(served, served_path, served_document, lacking) if served else None
    if problems or inventory is None or served is None:
        raise SpecError(_sorted(problems, str(inventory_path)))
    return Spec(inventory, served, inventory_path, served_path, files, compose.places(served_document), built)


def load_inventory(path: Path) -> Inventory:
    """The inventory in a file, whatever playbook it names: for commands that only ask its nodes.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    _, inventory, problems = _inventory(path)
    if problems or inventory is None:
        raise SpecError(_sorted(problems, str(path)))
    return inventory


def _inventory(path: Path) -> tuple[Document, Inventory | None, list[Problem]]:
    document = _read_inventory(path)
    inventory, problems = validate(document, Inventory)
    if inventory:
        problems += check.inventory(inventory, document)
        problems += check.identities(inventory, document)
    return document, inventory, problems


def _read_inventory(path: Path) -> Document:
    """The file in ``path``; raises as :func:`load`, also where it is no inventory or a playbook's name."""
    try:
        document = read(path)
    except UsageError as error:
        if not error.message.endswith("no such file"):
            raise
        name = shown(str(path), 300)[1:-1]
        if name in library.names():
            raise UsageError(
                f"{name} is a playbook, not an inventory", hint=f"give an inventory, and --playbook {name}"
            ) from None
        # without the suffixes, which are alike
        others = {each.stem: each.name for each in path.parent.glob("*.y*ml")}
        near = closest(path.stem, others)
        hint = f"sparkcluster discover -o {shlex.quote(name)}   writes an inventory; examples are in inventory/"
        if not path.parent.is_dir():
            hint = f"there is no directory {shown(str(path.parent), 300)[1:-1]}"
        if path.suffix not in {".yaml", ".yml"}:
            found = [str(each) for each in sorted(path.parent.glob("*.y*ml")) if _lists_nodes(each)]
            hint = f"give the path of an inventory, a YAML file{': ' * bool(found)}{', '.join(found[:6])}"
        raise UsageError(error.message, hint=f"did you mean {others[near]}?" if near else hint) from None
    kinds.refuse_as_inventory(document)
    return document


def _lists_nodes(path: Path) -> bool:
    try:
        return re.search(rb"^nodes\s*:", _bytes(path, path.name), re.MULTILINE) is not None
    except UsageError:
        return False


def _group_sizes(inventory: Inventory) -> list[int]:
    """Numbers of nodes of its groups, each once."""
    return sorted({len(group.nodes) for group in inventory.groups} or {len(inventory.nodes)})


def load_playbook(path: Path, overlays: Sequence[str] = ()) -> Playbook:
    """The playbook in one file, with ``overlays`` applied.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    return read_playbook(path, overlays)[0]


def named(reference: str) -> tuple[Path, list[str]]:
    """The file and the overlays of a playbook's name, path or model, looked up from the current directory.

    Raises:
        UsageError: there is none.
    """
    return _named(reference, [Path()], other_than=None)


def load_named(reference: str, set_: Assignments | None = None, nodes: int | None = None) -> Playbook:
    """The playbook of a name or path with overlays after ``+``, with ``set_``; looked up from the current directory.

    ``nodes``: as :func:`read_playbook`.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    return read_playbook(*named(reference), set_, nodes)[0]


def read_playbook(
    path: Path, overlays: Sequence[str] = (), set_: Assignments | None = None, nodes: int | None = None
) -> tuple[Playbook, Document]:
    """As :func:`load_playbook`, with ``set_``, and the merged document; its variant for groups of ``nodes``.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    playbook, document, problems = _playbook(path, overlays, set_, [nodes] if nodes else [])
    if problems or playbook is None:
        raise SpecError(_sorted(problems, str(path)))
    return playbook, document


def variant_sizes(path: Path, overlays: Sequence[str] = ()) -> list[variants.Sizes]:
    """Numbers of nodes for which the playbook in ``path`` has variants.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    return variants.sizes(_layers(path, overlays))


def read(path: Path) -> Document:
    """A YAML file with the place of everything in it.

    Raises:
        UsageError: it cannot be read.
        SpecError: it is not YAML.
    """
    name = shown(str(path), 300)[1:-1]
    return parse(text(path), name)


def text(path: Path) -> str:
    """The text in a file of at most ``MAX_BYTES``.

    Raises:
        UsageError, SpecError: it cannot be read, or as :func:`decode`.
    """
    name = shown(str(path), 300)[1:-1]
    return decode(_bytes(path, name), name)


def decode(content: bytes, name: str) -> str:
    """The text of a file, given with its name: UTF-8, and at most ``MAX_BYTES``.

    Raises:
        UsageError: it is too large.
        SpecError: it is not UTF-8.
    """
    if len(content) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES // 1024} KiB", hint="is this the right file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = Problem(name, line, column, "", "the file is not UTF-8", "save it as UTF-8")
        raise SpecError([problem]) from None


def _bytes(path: Path, name: str) -> bytes:
    try:
        # Without O_NONBLOCK, opening a named pipe without a writer would block.
        with open(path, "rb", opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{name} is not a regular file", hint="save it to a file first")
            return file.read(MAX_BYTES + 1)
    except ValueError:
        raise UsageError(f"{name} is not a file name") from None
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            raise UsageError(f"{name}: no such file") from None
        if error.errno == errno.EISDIR:
            raise UsageError(f"{name} is a directory", hint="give the YAML file in it") from None
        if error.errno == errno.EACCES:
            raise UsageError(f"{name}: permission denied", hint=f"ls -l {name}") from None
        raise UsageError(f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None


def _playbook(
    path: Path, overlays: Sequence[str], set_: Assignments | None, groups: Sequence[int]
) -> tuple[Playbook | None, Document, list[Problem]]:
    """The playbook for ``groups`` of so many nodes, its document, and the problems of it and of every variant."""
    layers = _layers(path, overlays)
    problems = variants.problems(layers)

    def of(nodes: int | None) -> tuple[Playbook | None, Document]:
        document = variants.merged(layers, nodes)
        if set_ is not None:
            document = set_.put(document)
        playbook, found = validate(document, Playbook)
        problems.extend(found + (check.playbook(playbook, document) if playbook else []))
        return playbook, document

    # What is extended may have more variants than this playbook can use, and a command line is for one run alone.
    own = variants.sizes([layers[-1 - len(overlays)]]) if set_ is None else []
    for each in variants.sizes(layers):
        playbook, document = of(each.low)
        problems += variants.misfits(each, playbook, document) if playbook and each in own else []
    chosen = {nodes: of(nodes) for nodes in groups} or {0: of(None)}
    problems += variants.differ({nodes: document for nodes, (_, document) in chosen.items()}, layers)
    return (*next(iter(chosen.values())), problems)


def _layers(path: Path, overlays: Sequence[str] = (), above: Sequence[Path] = ()) -> list[Document]:
    """The document in ``path`` on top of those that it extends, and ``overlays`` on top of it; the lowest first."""
    document = read(path)
    kinds.refuse_as_playbook(document)
    layers = [*_extended(document, [*above, path]), document]
    for name in overlays:
        layers.append(_overlay(variants.merged(layers, None), path, name))
    return layers


def _extended(document: Document, chain: Sequence[Path]) -> list[Document]:
    """What ``document``, in the last file of ``chain``, extends; the lowest first."""
    reference = document.data.get("extends")
    if not isinstance(reference, str) or not reference:
        return []
    if len(chain) > compose.MAX_DEPTH:
        message = f"more than {compose.MAX_DEPTH} levels of extends"
        raise SpecError([document.problem(("extends",), message, "extend a playbook with fewer levels")])
    try:
        base = _base(reference, chain)
    except SpecError:
        raise
    except UsageError as error:
        raise SpecError([document.problem(("extends",), error.message, error.hint)]) from None
    if "name" not in document.data:
        message, hint = "a playbook that extends another needs its own name", "add name: …"
        raise SpecError([document.problem(("extends",), message, hint)])
    return base


def _base(reference: str, chain: Sequence[Path]) -> list[Document]:
    """The layers of the playbook that the last of ``chain`` extends."""
    path, overlays = _named(reference, [chain[-1].parent], other_than=chain[-1])
    _stays_inside(path, [chain[0].parent])
    if any(path.resolve() == other.resolve() for other in chain):
        raise UsageError("circular extends", hint=" extends ".join(each.name for each in (*chain, path)))
    return _layers(path, overlays, chain)


def _stays_inside(path: Path, directories: Sequence[Path]) -> None:
    """Raise UsageError for a file elsewhere, links resolved: it may be the user's, and errors would show its lines."""
    if not any(path.resolve().is_relative_to(directory.resolve()) for directory in [*directories, *library.bundled()]):
        raise UsageError(
            f"{shown(str(path), 200)[1:-1]} is outside of the playbook's directory",
            hint=f"copy it to {shown(str(directories[0]), 200)[1:-1]}, and use its file name",
        )


def _overlay(document: Document, path: Path, name: str) -> Document:
    """The overlay ``name`` of the playbook ``document`` in ``path``; raises UsageError if that does not allow it."""
    listed = kinds.allowed_overlays(document)
    if name not in listed:
        may = f"allowed: {', '.join(listed)}" if listed else "it allows none"
        raise UsageError(
            f"the playbook {path.stem} does not allow the overlay {shown(name)}",
            hint=f"{may}; to allow it, write a playbook with extends: {path.stem} and overlays: [{name}]",
        )
    file = library.overlay(name, [path.parent])
    _stays_inside(file, [path.parent, path.parent.parent / "overlays"])
    top = read(file)
    if not kinds.is_overlay(top):
        raise SpecError([top.problem((), "this file is not an overlay", f"begin it with overlay: {name}")])
    stem = document.data.get("name")
    data = {key: value for key, value in top.data.items() if key not in {"overlay", "name", "extends"}}
    return dataclasses.replace(top, data={"name": f"{stem}-{name}", **data})


def _named(reference: str, beside: Sequence[Path], *, other_than: Path | None) -> tuple[Path, list[str]]:
    """The file that ``reference`` names, and the overlays after its ``+``."""
    head, slash, last = reference.rpartition("/")
    stem, *overlays = last.split("+")
    if overlays:
        try:
            return library.find(reference, beside, other_than=other_than), []  # a file name may contain +
        except UsageError:
            suffix = next((end for end in (".yaml", ".yml") if overlays[-1].endswith(end)), "")
            overlays[-1] = overlays[-1].removesuffix(suffix)
            reference = f"{head}{slash}{stem}{suffix}"
    return library.find(reference, beside, other_than=other_than), overlays


def _find(reference: str, inventory_path: Path, document: Document, *, from_flag: bool) -> tuple[Path, list[str]]:
    beside = [Path(), inventory_path.parent] if from_flag else [inventory_path.parent]
    try:
        return _named(reference, beside, other_than=inventory_path)
    except UsageError as error:
        if from_flag:
            raise
        raise SpecError([document.problem(("playbook",), error.message, error.hint)]) from None


def validate(document: Document, model: type[_Model]) -> tuple[_Model | None, list[Problem]]:
    """What ``document`` says as a ``model``, or None and what is wrong with it."""
    found = list(document.problems)
    try:
        checked = model.model_validate(document.data)
    except ValidationError as error:
        from sparkcluster.spec import messages  # noqa: PLC0415 - for wrong input alone

        places = {(problem.line, problem.column) for problem in found}
        more = messages.problems(error, document, model)
        return None, found + [problem for problem in more if (problem.line, problem.column) not in places]
    return (None if found else checked), found


def _sorted(problems: Sequence[Problem], first: str) -> list[Problem]:
    """By line, the inventory's before the playbook's."""
    return sorted(
        set(problems),
        key=lambda each: (each.file != first, each.file, each.line, each.column, each.path, each.message),
    )
