"""Finding playbooks: by path, beside the inventory, or among the bundled ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import sparkcluster
from sparkcluster.errors import UsageError
from sparkcluster.spec.document import shown
from sparkcluster.spec.messages import closest

_SUFFIXES = (".yaml", ".yml")


def bundled() -> Path | None:
    """Directory of the bundled playbooks: in the installed package, or beside it in a checkout."""
    package = Path(sparkcluster.__file__).resolve().parent
    for directory in (package / "bundled" / "playbooks", package.parent / "playbooks"):
        if directory.is_dir() and (
            directory.parent == package / "bundled" or (package.parent / "pyproject.toml").is_file()
        ):
            return directory
    return None


def overlay(name: str, beside: Sequence[Path]) -> Path:
    """The file of an overlay: in ``overlays`` within or next to the directories, then among the bundled.

    Args:
        name: what follows the ``+``.
        beside: directories of the playbooks that it may come with.

    Raises:
        UsageError: there is none.
    """
    own = bundled()
    directories = [one / "overlays" for one in [*beside, *(each.parent for each in beside), *([own] if own else [])]]
    for directory in directories:
        for suffix in _SUFFIXES:
            path = directory / f"{name}{suffix}"
            if "/" not in name and "\x00" not in name and _is_there(path):
                return path
    available = sorted({file.stem for directory in directories if directory.is_dir() for file in directory.iterdir()})
    near = closest(name, available)
    hint = f"did you mean {near}?" if near else f"overlays: {', '.join(available)}" if available else None
    raise UsageError(f"no overlay named {shown(name)} in {_list(directories)}", hint=hint)


def overlays() -> list[str]:
    """Names of the bundled overlays, sorted."""
    own = bundled()
    directory = own / "overlays" if own else None
    return (
        sorted(file.stem for file in directory.iterdir() if file.suffix in _SUFFIXES)
        if directory and _is_there(directory)
        else []
    )


def names() -> list[str]:
    """Names of the bundled playbooks, sorted."""
    return sorted(_in(bundled()))


def find(name: str, beside: Sequence[Path], *, other_than: Path | None = None) -> Path:
    """The file of a playbook.

    Args:
        name: a path if it has a ``/`` or ends in ``.yaml`` or ``.yml``, else the name of a playbook.
        beside: directories to look in, first come first served; for a name also in ``playbooks`` within and
            next to each.
        other_than: the inventory, which may well be called as its playbook is.

    Raises:
        UsageError: there is none; the hint says which name is near and where was looked.
    """
    if "\x00" in name:
        raise UsageError("a playbook's name cannot contain a null character")
    if "/" in name or name.endswith(_SUFFIXES):
        candidates = [directory / Path(name).expanduser() for directory in beside]
        for path in candidates:
            if _is_there(path):
                return path
        raise UsageError(f"no playbook at {shown(name)[1:-1]}", hint=f"searched {_list(candidates)}")
    directories: list[Path] = []
    for directory in beside:
        directories += [directory, directory / "playbooks", directory.parent / "playbooks"]
        if directory == Path():
            directories[-1] = Path("..") / "playbooks"
    own = bundled()
    for directory in [*directories, *([own] if own else [])]:
        for suffix in _SUFFIXES:
            path = directory / f"{name}{suffix}"
            if path != other_than and _is_there(path):
                return path
    known = sorted({one for directory in [*directories, own] for one in _in(directory)})
    near = closest(name, known)
    hint = f"did you mean {near}?" if near else "sparkcluster playbooks lists the bundled ones"
    raise UsageError(f"no playbook named {shown(name)} in {_list(directories)} or among the bundled ones", hint=hint)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _in(directory: Path | None) -> list[str]:
    """Names of the playbooks in a directory, which may contain inventories as well: playbooks have a model."""
    out = []
    try:
        for file in sorted(directory.iterdir()) if directory else ():
            if file.suffix in _SUFFIXES and not file.name.startswith(".") and file.is_file():
                with file.open("rb") as content:
                    if re.search(rb"^(model|extends):", content.read(1 << 16), re.MULTILINE):
                        out.append(file.stem)
    except OSError:
        return out
    return out


def _list(paths: Sequence[Path]) -> str:
    return ", ".join(dict.fromkeys(shown(str(path), 200)[1:-1] for path in paths))
