"""An API key in a file of this machine that the inventory names: made, rotated, and named in the inventory."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
from pathlib import Path
from typing import Any, Literal

from sparkcluster import output_file
from sparkcluster.errors import UsageError
from sparkcluster.runtime.secrets import api_key
from sparkcluster.setup import existing
from sparkcluster.setup.inventory_file import GONE, with_values
from sparkcluster.spec import Spec
from sparkcluster.spec.load import load

# As many random bytes as `openssl rand -hex 24` prints.
KEY_BYTES = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """What became of the key.

    Attributes:
        spec: the inventory as it is now.
        file: that has the key, as the inventory names it.
        key: whether it was created, rotated or kept.
        difference: of the inventory, in lines of a unified diff; empty where it named the file already.
    """

    spec: Spec
    file: str
    key: Literal["created", "rotated", "kept"]
    difference: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For ``--json``, without what uses the key."""
        changed = bool(self.difference)
        return {"file": self.file, "key": self.key, "changed": changed, "difference": list(self.difference)}


def make(path: Path, file: str | None = None, *, rotate: bool = False) -> Made:
    """Let the inventory at ``path`` name a file with an API key, and the file have one.

    A key that is there already is kept unless ``rotate``: in the file, or in the variable that the inventory names. The
    file is readable by its owner alone.

    Args:
        path: the inventory.
        file: the file, where the inventory names none or another source; absolute, or beginning with ``~/``.
        rotate: whether to make a new key in any case.

    Raises:
        UsageError: the inventory takes the key from a variable and ``file`` is None; a file cannot be read or written;
            or the inventory would have to be written anew.
        SpecError: the inventory is malformed.
    """
    before, spec = existing.read(path), load(path, starts=False)
    source = spec.inventory.api.key
    if file is None and source is not None and source.env:
        raise UsageError(
            f"the inventory takes the API key from the variable {source.env}, not from a file",
            hint=f"export {source.env}=$(openssl rand -hex {KEY_BYTES}); or sparkcluster key INVENTORY "
            f"--file {default(spec)}",
        )
    wanted = file or (source and source.file) or default(spec)
    after = before
    if source is None or source.file != wanted:
        after = with_values(before, str(path), {("api", "key", "file"): wanted, ("api", "key", "env"): GONE})
        spec = existing.check(path, after)
    found = None if rotate else _kept(spec, source.env if source else None)
    there = Path(wanted).expanduser()
    had = there.is_file() and there.stat().st_size > 0
    if found is None or not had or there.stat().st_mode & 0o077:
        _write(there, found or secrets.token_hex(KEY_BYTES))
    if after != before:
        existing.replace(path, after)
    key: Literal["created", "rotated", "kept"] = "kept" if found else "rotated" if had else "created"
    return Made(spec, wanted, key, tuple(existing.difference(path, before, after)))


def default(spec: Spec) -> str:
    """Where the key goes if the inventory does not say."""
    return f"~/.config/sparkcluster/{spec.inventory.cluster}.key"


def _kept(spec: Spec, variable: str | None) -> str | None:
    """The key that is there: in the file that ``spec`` names, else in ``variable``; None without one."""
    source = spec.inventory.api.key
    file = Path(str(source and source.file)).expanduser()
    if file.is_file() and file.stat().st_size:
        return api_key(spec)
    return os.environ.get(variable or "") or None


def _write(file: Path, key: str) -> None:
    # A slip in a path must not become a directory: the default is below the home.
    if not file.parent.is_dir() and not file.is_relative_to(Path.home()):
        raise UsageError(f"{file.parent}: no such directory", hint=f"mkdir -p {shlex.quote(str(file.parent))}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {file.parent}: {error.strerror}", hint="name another file with --file") from None
    output_file.check_path(file, "--file", "api.key")
    output_file.write(file, lambda target: target.write(f"{key}\n".encode()), private=True)
