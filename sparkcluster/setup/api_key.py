"""Create or rotate the API key in a local file, and reference that file in the inventory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
from pathlib import Path
from typing import Any, Literal

from sparkcluster import output_file
from sparkcluster.errors import UsageError
from sparkcluster.printable import word
from sparkcluster.runtime.secrets import api_key
from sparkcluster.setup import existing
from sparkcluster.setup.inventory_file import GONE, with_values
from sparkcluster.spec import Spec, consent, powers
from sparkcluster.spec.load import load

# As many random bytes as `openssl rand -hex 24` prints.
KEY_BYTES = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """Result of ``make``.

    Attributes:
        file: path of the key file, as written in the inventory.
        key: whether it was created, rotated or kept.
        difference: unified diff of the inventory, by line; empty if it is unchanged.
    """

    file: str
    key: Literal["created", "rotated", "kept"]
    difference: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For ``--json``; callers add which services use the key."""
        difference = list(self.difference)
        return {"file": self.file, "key": self.key, "changed": bool(difference), "difference": difference}


def make(path: Path, file: str | None = None, *, rotate: bool = False) -> Made:
    """Ensure that the inventory at ``path`` references a key file, and that the file contains a key.

    An existing key is kept unless ``rotate``. It is read from the file, or from the variable that the inventory names
    if the operator accepted that. Only the owner can read the file. Its content is replaced only if it looks like a
    key; a file named only by the inventory must also have been created here or accepted.

    Args:
        path: the inventory.
        file: path for the key if the inventory has no file or another source; absolute or starting with ``~/``.
        rotate: replace an existing key.

    Raises:
        UsageError: the inventory takes the key from a variable and ``file`` is None; a file cannot be read or written,
            or does not contain a key; or the inventory cannot be edited in place.
        SpecError: the inventory is malformed.
    """
    before, spec = existing.read(path), load(path, starts=False)
    source = spec.inventory.api.key
    if file is None and source is not None and source.env:
        raise UsageError(
            f"the inventory takes the API key from the variable {source.env}, not from a file",
            hint=f"to use a file instead: sparkcluster key INVENTORY --file {default(spec)}; to keep the variable: "
            f"export {source.env}=$(openssl rand -hex {KEY_BYTES})",
        )
    wanted = file or (source and source.file) or default(spec)
    if not file and consent.unaccepted(spec, "api.key"):
        hint = f"sparkcluster key INVENTORY --file {word(wanted)}"
        raise UsageError(f"{wanted} is named only by the inventory and may belong to someone else", hint=hint)
    variable = source.env if source and not consent.unaccepted(spec, "api.key") else None
    after = before
    if source is None or source.file != wanted:
        after = with_values(before, str(path), {("api", "key", "file"): wanted, ("api", "key", "env"): GONE})
        spec = existing.check(path, after)
    there = Path(wanted).expanduser()
    had = there.is_file() and there.stat().st_size > 0
    closed = had and not there.stat().st_mode & 0o077
    now = api_key(spec) if had else os.environ.get(variable or "")
    found = None if rotate else now
    accepted = not consent.unaccepted(spec, "api.key")
    if had and not found and not ((accepted or (file and closed)) and re.fullmatch(r"\S{1,256}", now or "")):
        hint = f"sparkcluster key INVENTORY --file {default(spec)}"
        raise UsageError(f"{wanted} may not be an API key; left unchanged", hint=hint)
    if not found or (not closed and (accepted or file)):
        _write(there, found or secrets.token_hex(KEY_BYTES))
    if after != before:
        existing.replace(path, after)
    if after != before or not found:
        consent.remember(each.digest for each in consent.unaccepted(spec, "api.key"))
    difference = tuple(existing.difference(path, before, after))
    return Made(wanted, "kept" if found else "rotated" if had else "created", difference)


def default(spec: Spec) -> str:
    """Default path of the key file."""
    return f"{powers.KEYS}/{spec.inventory.cluster}.key"


def _write(file: Path, key: str) -> None:
    # A typo in a path must not create a directory outside the home.
    if file.is_relative_to(Path.home()):
        with contextlib.suppress(OSError):  # check_path reports a missing directory
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    output_file.check_path(file, "--file", "api.key")
    output_file.write(file, lambda target: target.write(f"{key}\n".encode()), private=True)
