"""Find playbooks by path, in the inventory's directory, among the bundled playbooks, or by model."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import sparkcluster
from sparkcluster import engines
from sparkcluster.errors import UsageError
from sparkcluster.spec import Spec
from sparkcluster.spec.document import KeyPath, shown
from sparkcluster.spec.playbook import REPOSITORY
from sparkcluster.suggest import did_you_mean

_SUFFIXES = (".yaml", ".yml")
# Compared by content: edited or foreign files may lie in the directory of bundled playbooks.
_SHIPPED = Path(__file__).with_name("bundled.txt")
_PLAYBOOK, _OVERLAY = rb"^(model|extends):", rb"^overlay:"


def bundled() -> list[Path]:
    """Directory of the bundled playbooks, if any: in the installed package, or in a checkout."""
    package = Path(sparkcluster.__file__).resolve().parent
    installed, checkout = package / "bundled" / "playbooks", package.parent / "playbooks"
    if installed.is_dir():
        return [installed]
    return [checkout] if checkout.is_dir() and (package.parent / "pyproject.toml").is_file() else []


_OTHER_ENGINE = rf"^engine:[ \t]*[\"']?(?!{engines.DEFAULT}\b)\w".encode()


def all_bundled(spec: Spec) -> bool:
    """Whether a playbook, its bases and its overlays are unchanged bundled files."""
    return all_shipped(spec.playbook_path, spec.places) if spec.bundled is None else spec.bundled


def foreign(spec: Spec) -> str:
    """Why the playbook does not count as bundled, for messages."""
    changed = "is a bundled playbook with changes (set, image or overlay)"
    return changed if _is_shipped(spec.playbook_path) else "is not a bundled playbook"


def all_shipped(path: Path, places: Mapping[KeyPath, tuple[str, int | None]]) -> bool:
    """Whether the playbook in ``path`` and all files in its ``places`` are unchanged bundled files."""
    files = {str(path), *(file for file, _ in places.values())}
    # Places contain shortened and escaped paths; such a text may be the path of another file.
    plain = all(file.isprintable() and "\\" not in file and len(file) < 250 for file in files)
    return plain and all(_is_shipped(Path(file)) for file in files)


def shadowing(spec: Spec) -> list[str]:
    """A note if the playbook has the name of a bundled playbook but is a different file."""
    path = spec.playbook_path
    other = _file(path.stem, bundled()) is not None and not _is_shipped(path)
    return [f"playbook: {path}, not the bundled {path.stem}"] if other else []


def _is_shipped(file: Path) -> bool:
    """Whether ``file`` has the name and content of a bundled file."""
    return listed(file) in _SHIPPED.read_text(encoding="utf-8").splitlines()


def listed(file: Path) -> str:
    """The line of ``file`` in the listing: SHA-256 and name, as ``sha256sum`` prints them."""
    name = f"overlays/{file.name}" if file.parent.name == "overlays" else file.name
    content = file.read_bytes() if file.is_file() else b""
    return f"{hashlib.sha256(content).hexdigest()}  {name}"


def overlay(name: str, beside: Sequence[Path]) -> Path:
    """The file of an overlay: in ``overlays`` within or next to the directories, then among bundled overlays.

    Raises:
        UsageError: not found.
    """
    parents = [*beside, *(directory.parent for directory in beside), *bundled()]
    directories = [parent / "overlays" for parent in parents]
    path = _file(name, directories) if "/" not in name else None
    if path is not None:
        return path
    hint = did_you_mean(name, _in(directories, _OVERLAY))
    raise UsageError(f"no overlay named {shown(name)} in {_list(directories)}", hint=hint)


def overlays() -> list[str]:
    """Names of the bundled overlays, sorted."""
    return _in([directory / "overlays" for directory in bundled()], _OVERLAY)


def names() -> list[str]:
    """Names of the bundled playbooks, sorted."""
    return _in(bundled())


def is_path(name: str) -> bool:
    """Whether ``name`` is a path rather than the name of a playbook."""
    return "/" in name or name.endswith(_SUFFIXES)


def find(name: str, beside: Sequence[Path], *, other_than: Path | None = None) -> Path:
    """The file of a playbook.

    ``name`` is a name, a path (``is_path``) or, if that file does not exist, the Hugging Face repository of its model.
    The directories ``beside`` are searched in order; for names and repositories also ``playbooks`` within and next to
    each. ``other_than`` is an inventory to skip.

    Raises:
        UsageError: not found, or several playbooks of the repository; the hint has a similar name or the searched
            paths.
    """
    directories: list[Path] = []
    for directory in beside:
        above = Path("..") if directory == Path() else directory.parent
        directories += [directory, directory / "playbooks", above / "playbooks"]
    if is_path(name):
        # Keeps ~ of an unknown user; Path.expanduser would raise.
        candidates = [directory / os.path.expanduser(name) for directory in beside]  # noqa: PTH111
        there = next(filter(os.path.exists, candidates), None)  # False on errors
        if there is not None:
            return there
        is_repository = re.fullmatch(REPOSITORY, name) is not None and not name.endswith(_SUFFIXES)
        if is_repository and not any(path.parent.is_dir() for path in candidates):
            return _of_model(name, [*directories, *bundled()])
        alike = _in([path.parent for path in candidates])
        here = candidates == [Path(name)]
        otherwise = "give a path relative to the current directory" if here else f"searched {_list(candidates)}"
        hint = did_you_mean(Path(name).stem, alike, otherwise)
        raise UsageError(f"no file {shown(name)[1:-1]}", hint=hint)
    found = _file(name, [*directories, *bundled()], other_than)
    if found is not None:
        return found
    hint = did_you_mean(name, _in([*directories, *bundled()]), "list bundled playbooks: sparkcluster playbooks")
    raise UsageError(f"no playbook named {shown(name)} in {_list(directories)} or among bundled playbooks", hint=hint)


def _of_model(repository: str, directories: Sequence[Path]) -> Path:
    """The playbook of this model in the first directory that has one; playbooks that only extend it do not count.

    If several engines have one, the default engine's is found.
    """
    written = rf"^[^#\n]*\bid:\s*[\"']?{re.escape(repository)}[\"']?\s*(?:[,}}#]|$)"
    for directory in directories:
        found = _in([directory], f"(?i){written}".encode())
        others = _in([directory], _OTHER_ENGINE)
        found = [name for name in found if name not in others] or found
        if len(found) > 1:
            raise UsageError(f"{repository} is the model of {', '.join(found)}", hint=f"name one of them: {found[0]}")
        file = _file(found[0], [directory]) if found else None
        if file is not None:
            return file
    raise UsageError(
        f"{repository} is neither the path nor the model of a playbook",
        hint=f"sparkcluster playbooks new {repository} writes a draft; sparkcluster import FILE converts a recipe",
    )


def _file(name: str, directories: Sequence[Path], other_than: Path | None = None) -> Path | None:
    paths = (directory / f"{name}{suffix}" for directory in directories for suffix in _SUFFIXES)
    return next((path for path in paths if path != other_than and os.path.exists(path)), None)  # noqa: PTH110


def _in(directories: Sequence[Path], key: bytes = _PLAYBOOK) -> list[str]:
    """Names of the playbooks in directories that may also contain inventories; or of files with ``key``."""
    found = set()
    for directory in directories:
        with contextlib.suppress(OSError):
            for file in directory.iterdir():
                if file.suffix in _SUFFIXES and not file.name.startswith(".") and file.is_file():
                    with file.open("rb") as content:
                        if re.search(key, content.read(1 << 16), re.MULTILINE):
                            found.add(file.stem)
    return sorted(found)


def _list(paths: Sequence[Path]) -> str:
    return ", ".join(dict.fromkeys(shown(str(path), 200)[1:-1] for path in paths))
