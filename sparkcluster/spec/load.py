"""Load a spec from files: read, validate, check across files, and report all problems together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sparkcluster.engines import engine
from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.printable import shell
from sparkcluster.spec import Spec, assignments, check, compose, kinds, library, models, playbook_files, variants
from sparkcluster.spec.base import Section
from sparkcluster.spec.document import Document, parse, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook
from sparkcluster.suggest import closest

MAX_BYTES = 1 << 20

_Model = TypeVar("_Model", bound=Section)


def load(
    inventory_path: Path,
    playbook: str | None = None,
    *,
    set_: assignments.Assignments | None = None,
    starts: bool = True,
    nodes: int | None = None,
    model: str | None = None,
) -> Spec:
    """The spec of ``inventory_path``, or of its entry ``model`` if it has several models.

    Args:
        inventory_path: the inventory.
        playbook: name or path of another playbook, relative to the current directory, then to the inventory; ``image``
            and ``set`` of the inventory do not apply to it.
        set_: playbook keys from the command line.
        starts: false for commands that only inspect or stop ranks, which need no permissions of the inventory.
        nodes: group size for variants; default: the sizes in the inventory.
        model: entry of ``models``; without it, such an inventory is read as all its nodes with the first playbook.

    Raises:
        UsageError: a file is missing or cannot be read.
        SpecError: all problems of the files, by file and line.
    """
    document, inventory, problems = _inventory(inventory_path)
    more: dict[str, Any] = {}
    aliases: list[str] = []
    if inventory and model is not None and not problems:
        if not inventory.models:
            raise UsageError(f"{inventory_path} has no models section", hint="omit --model")
        document, aliases, more = models.entry(document, inventory, model)
        inventory, problems = _checked(document)
    if inventory and starts:
        problems += check.here(inventory, document, inventory_path.parent)
    reference = document.data.get("playbook") if playbook is None else playbook
    spec: Spec | None = None
    # A malformed name is not searched for.
    if isinstance(reference, str) and (playbook or not any(each.path == "playbook" for each in problems)):
        try:
            with _located(document, "playbook") if playbook is None else contextlib.nullcontext():
                directories = [inventory_path.parent] if playbook is None else [Path(), inventory_path.parent]
                path, overlays = named(reference, directories, other_than=inventory_path)
                groups = {nodes} if nodes else inventory.group_sizes if inventory else ()
                over = assignments.of_inventory(document, inventory) if inventory and playbook is None else []
                entries = [*over, *(set_.entries if set_ else ())]
                served, merged, wrong = _playbook(path, overlays, assignments.Assignments(entries), groups)
        except SpecError as error:
            wrong, served = [*error.problems], None
        problems += wrong
        if served and inventory and not inventory.models:
            problems += check.together(inventory, served, document, merged, starts=starts)
        if served:
            files, built, lacking = playbook_files.of(served, path, merged)
            problems += lacking if starts else []
            if inventory:
                chosen = {"playbook": reference, **{each.key: each.value for each in entries}}
                places = compose.places(merged)
                spec = Spec(inventory, served, inventory_path, path, files, places, built, selected=chosen, **more)
    if problems or spec is None:
        raise SpecError(_sorted(problems, str(inventory_path)))
    return _as_one_of_several(spec, aliases)


def _as_one_of_several(spec: Spec, aliases: Sequence[str]) -> Spec:
    """``spec`` with the aliases of its entry, and with arguments that leave memory to models on the same nodes."""
    playbook = spec.playbook
    if aliases:
        playbook = playbook.model_copy(update={"aliases": [*dict.fromkeys([*playbook.aliases, *aliases])]})
    if spec.siblings:
        playbook = engine(playbook.engine).beside_others(playbook, spec.selected)
    return dataclasses.replace(spec, playbook=playbook)


def load_all(
    inventory_path: Path,
    *,
    set_: assignments.Assignments | None = None,
    starts: bool = True,
) -> list[Spec]:
    """The specs of all models of an inventory, in order; a single spec without ``models``.

    Raises:
        UsageError, SpecError: as :func:`load`, with the problems of all models.
    """
    problems: list[Problem] = []
    specs: list[Spec] = []
    names: list[str | None] = [*model_names(inventory_path)]
    for model in names or [None]:
        try:
            specs.append(load(inventory_path, set_=set_, starts=starts, model=model))
        except SpecError as error:
            problems += error.problems
    problems += models.served_twice(read(inventory_path), specs) if specs and not problems else []
    if problems:
        raise SpecError(_sorted(problems, str(inventory_path)))
    return specs


def model_names(inventory_path: Path) -> list[str]:
    """Names of the models of an inventory; empty without ``models``.

    Raises:
        UsageError, SpecError: it cannot be read, or is malformed.
    """
    _, inventory, problems = _inventory(inventory_path)
    if problems or inventory is None:
        raise SpecError(_sorted(problems, str(inventory_path)))
    return [model.name for model in models.of(inventory)]


def _inventory(path: Path) -> tuple[Document, Inventory | None, list[Problem]]:
    try:
        document = read(path)
    except UsageError as error:
        if not path.exists():
            error.hint = _instead(path)
        raise
    kinds.refuse_as_inventory(document)
    models.as_written(document)
    return document, *_checked(document)


def _checked(document: Document) -> tuple[Inventory | None, list[Problem]]:
    inventory, problems = validate(document, Inventory)
    return inventory, problems + (check.inventory(inventory, document) if inventory else [])


def _instead(path: Path) -> str:
    """A hint for a missing inventory."""
    name = shown(str(path), 300)[1:-1]
    if name in library.names():
        return f"{name} is a playbook: give an inventory, and --playbook {name}"
    # without the suffixes, which are alike
    others = {each.stem: each.name for each in path.parent.glob("*.y*ml")}
    if near := closest(path.stem, others):
        return f"did you mean {others[near]}?"
    return f"{shell('sparkcluster discover -o', name)}   writes an inventory; for examples see inventory/"


def read_playbook(
    path: Path, overlays: Sequence[str] = (), set_: assignments.Assignments | None = None, nodes: int | None = None
) -> tuple[Playbook, Document]:
    """The playbook in ``path`` with ``overlays`` and ``set_``, for groups of ``nodes``, and its document.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    playbook, document, problems = _playbook(path, overlays, set_, {nodes} if nodes else ())
    if problems or playbook is None:
        raise SpecError(_sorted(problems, str(path)))
    return playbook, document


def is_shipped(playbook: Playbook, reference: str, groups: Collection[int]) -> bool:
    """Whether ``playbook`` is the bundled playbook ``reference``, composed for ``groups``."""
    with contextlib.suppress(UsageError):
        path, overlays = named(reference.rpartition("/")[2], library.bundled())
        same, document, _ = _playbook(path, overlays, None, groups)
        return same == playbook and library.all_shipped(path, compose.places(document))
    return False


def variant_sizes(path: Path, overlays: Sequence[str] = ()) -> list[range]:
    """Numbers of nodes for which the playbook in ``path`` has variants.

    Raises:
        UsageError, SpecError: as :func:`load`.
    """
    return list(variants.sizes(_layers(path, overlays)).values())


def read(path: Path) -> Document:
    """Read a YAML file with all places.

    Raises:
        UsageError: it cannot be read.
        SpecError: it is not YAML.
    """
    return parse(text(path), shown(str(path), 300)[1:-1])


def text(path: Path) -> str:
    """Read a text file of at most ``MAX_BYTES``.

    Raises:
        UsageError, SpecError: it cannot be read, or as :func:`decode`.
    """
    name = shown(str(path), 300)[1:-1]
    try:
        # Without O_NONBLOCK, opening a named pipe without a writer would block.
        with open(path, "rb", opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{name} is not a regular file", hint="save it to a file first")
            return decode(file.read(MAX_BYTES + 1), name)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno or 0).lower() if isinstance(error, OSError) else "not a valid file name"
        raise UsageError(f"{name}: {reason}", hint="check the path") from None


def decode(content: bytes, name: str) -> str:
    """Decode the content of file ``name``: UTF-8, at most ``MAX_BYTES``.

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


def _playbook(
    path: Path, overlays: Sequence[str], set_: assignments.Assignments | None, groups: Collection[int]
) -> tuple[Playbook | None, Document, list[Problem]]:
    """The playbook for groups of these sizes, its document, and the problems of it and its variants."""
    layers = _layers(path, overlays)
    problems = variants.problems(layers)

    def of(nodes: int | None) -> tuple[Playbook | None, Document]:
        document = variants.merged(layers, nodes)
        if set_ is not None:
            document = set_.put(document)
        playbook, found = validate(document, Playbook)
        problems.extend(found + (check.playbook(playbook, document) if playbook else []))
        return playbook, document

    # A base may have variants that this playbook cannot use, and flags are for one run; both are not errors.
    layer = layers[-1 - len(overlays)]
    own = {} if set_ and set_.entries else variants.sizes([layer])
    for key, numbers in variants.sizes(layers).items():
        playbook, _ = of(numbers.start)
        if playbook and key in own and not any(map(playbook.serves_on, numbers)):
            message, hint = f"no group of {key} nodes can serve it", "change it, nodes, or tensor_parallel"
            problems.append(layer.problem((variants.KEY, key), message, hint, key=True))
    chosen = {nodes: of(nodes) for nodes in sorted(groups)} or {0: of(None)}
    problems += variants.differ({nodes: document for nodes, (_, document) in chosen.items()}, layers)
    return (*next(iter(chosen.values())), problems)


def _layers(path: Path, overlays: Sequence[str] = (), above: Sequence[Path] = ()) -> list[Document]:
    """The documents to merge, lowest first: bases, the document in ``path``, overlays.

    ``above``: the files that extend it, outermost first.
    """
    document = read(path)
    kinds.refuse_as_playbook(document)
    layers = [document]
    chain = [*above, path]
    reference = document.data.get("extends")
    if isinstance(reference, str) and reference:
        with _located(document, "extends"):
            if len(chain) > compose.MAX_DEPTH:
                names = " extends ".join(each.name for each in chain)
                raise UsageError(f"more than {compose.MAX_DEPTH} levels of extends, or circular ones", hint=names)
            base, more = named(reference, [path.parent], other_than=path)
            _stays_inside(base, [chain[0].parent])
            layers = [*_layers(base, more, chain), document]
    for name in overlays:
        layers.append(_overlay(variants.merged(layers, None), path, name))
    return layers


@contextlib.contextmanager
def _located(document: Document, key: str) -> Iterator[None]:
    """Report a UsageError about the file that ``key`` of ``document`` names as a problem of this key."""
    try:
        yield
    except SpecError:
        raise
    except UsageError as error:
        raise SpecError([document.problem((key,), error.message, error.hint)]) from None


def _stays_inside(path: Path, directories: Sequence[Path]) -> None:
    """Raise UsageError if ``path`` resolves to a file outside ``directories``; errors could reveal its content."""
    if not any(path.resolve().is_relative_to(directory.resolve()) for directory in [*directories, *library.bundled()]):
        raise UsageError(
            f"{shown(str(path), 200)[1:-1]} is outside the playbook's directory",
            hint=f"copy it to {shown(str(directories[0]), 200)[1:-1]} and use its file name",
        )


def _overlay(document: Document, path: Path, name: str) -> Document:
    """The overlay ``name`` of the playbook ``document`` in ``path``; raises UsageError if it is not allowed."""
    listed = kinds.allowed_overlays(document)
    if name not in listed:
        may = f"allowed: {', '.join(listed)}" if listed else "it allows no overlays"
        raise UsageError(
            f"playbook {path.stem} does not allow overlay {shown(name)}",
            hint=f"{may}; to use it, write a playbook with extends: {path.stem} and overlays: [{name}]",
        )
    file = library.overlay(name, [path.parent])
    _stays_inside(file, [path.parent, path.parent.parent / "overlays"])
    top = read(file)
    if not kinds.is_overlay(top):
        raise SpecError([top.problem((), "this file is not an overlay", f"start it with overlay: {name}")])
    data = {key: value for key, value in top.data.items() if key not in {"overlay", "name", "extends"}}
    return dataclasses.replace(top, data={"name": f"{document.data.get('name')}-{name}", **data})


def named(
    reference: str, beside: Sequence[Path] = (Path(),), *, other_than: Path | None = None
) -> tuple[Path, list[str]]:
    """The file and overlays of a playbook's name, path or model, relative to the directories ``beside``.

    Raises:
        UsageError: not found.
    """
    head, slash, last = reference.rpartition("/")
    stem, *overlays = last.split("+")
    if overlays:
        with contextlib.suppress(UsageError):
            return library.find(reference, beside, other_than=other_than), []  # a file name may contain +
        suffix = next((end for end in (".yaml", ".yml") if overlays[-1].endswith(end)), "")
        overlays[-1] = overlays[-1].removesuffix(suffix)
        reference = f"{head}{slash}{stem}{suffix}"
    return library.find(reference, beside, other_than=other_than), overlays


def validate(document: Document, model: type[_Model]) -> tuple[_Model | None, list[Problem]]:
    """``document`` as a ``model``, or None and its problems."""
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
    """Problems by file and line, the inventory's first."""
    return sorted(
        set(problems),
        key=lambda each: (each.file != first, each.file, each.line, each.column, each.path, each.message),
    )
