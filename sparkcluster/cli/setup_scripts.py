"""Scripts of ``setup`` for an administrator, in the current directory: ``setup-NODE.sh``, and ``undo-NODE.sh``."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sparkcluster.setup.run import Outcome

Kind = Literal["setup", "undo"]

_MADE = re.compile(r"# Made by sparkcluster \S+ for node (.*), where it can be run by hand")
_STEP = re.compile(r"#   ([a-z-]+): ")


def write(kind: Kind, outcomes: Mapping[str, Outcome], texts: Mapping[str, str]) -> dict[str, Path]:
    """Write the scripts that somebody has to run by hand; their files by node.

    Why one was not written, or is a file of somebody else, is the error of its node's outcome.
    """
    from sparkcluster.errors import UsageError

    files = {}
    for node, outcome in outcomes.items():
        if outcome.by_hand:
            path = _path(kind, node)
            try:
                _write(path, texts[node].encode())
                files[node] = path
            except UsageError as error:
                error.node = node
                outcome.error = error
    return files


def remove_done(kind: Kind, done: Mapping[str, Collection[str]]) -> list[Path]:
    """Remove the scripts of nodes on which all that they do is done, by node its steps; the files that were removed.

    A file that ``write`` did not write for that node stays.
    """
    removed = []
    for node, steps in done.items():
        path = _path(kind, node)
        with contextlib.suppress(OSError, ValueError):
            if _is_own(path) and set(_steps(path, node)) <= set(steps):
                path.unlink()
                removed.append(path)
    return removed


def _write(path: Path, data: bytes) -> None:
    from sparkcluster import output_file
    from sparkcluster.errors import UsageError

    if os.path.lexists(path) and not _is_own(path):
        raise UsageError(f"{path} exists, and is not a file of yours", hint="run this in another directory")
    output_file.write(path, lambda file: file.write(data), private=True)


def _path(kind: Kind, node: str) -> Path:
    return Path(f"{kind}-{node}.sh")


def _is_own(path: Path) -> bool:
    """Whether it is a file of the user, and no link."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _steps(path: Path, node: str) -> list[str]:
    """The steps that the header of a script lists; raises ValueError if ``write`` did not write it for ``node``."""
    header = list(itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
    made = _MADE.match(header[1]) if len(header) > 1 else None
    if made is None or made[1] != node:
        raise ValueError(path)
    return [found[1] for line in header[2:] if (found := _STEP.match(line))]
