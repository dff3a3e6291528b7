"""An API key in a file of this machine that the inventory names: made, rotated, and named in the inventory."""

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
        difference = list(self.difference)
        return {"file": self.file, "key": self.key, "changed": bool(difference), "difference": difference}


def make(path: Path, file: str | None = None, *, rotate: bool = False) -> Made:
    """Let the inventory at ``path`` name a file with an API key, and the file have one.

    A key that is there already is kept unless ``rotate``: in the file, or in the variable that the inventory names and
    the operator accepted. The file is readable by its owner alone. What it holds is only replaced if it looks like a
    key; if the inventory alone names it, it also has to be made here, or accepted.

    Args:
        path: the inventory.
        file: the file, where the inventory names none or another source; absolute, or beginning with ``~/``.
        rotate: whether to make a new key in any case.

    Raises:
        UsageError: the inventory takes the key from a variable and ``file`` is None; a file cannot be read or written,
            or is something else than a key; or the inventory would have to be written anew.
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
    if not file and consent.unaccepted(spec, "api.key"):
        hint = f"sparkcluster key INVENTORY --file {word(wanted)}"
        raise UsageError(f"{wanted} is named by the inventory alone, and may be another's", hint=hint)
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
        raise UsageError(f"{wanted} may be something else than an API key, and is left as it is", hint=hint)
    if not found or (not closed and (accepted or file)):
        _write(there, found or secrets.token_hex(KEY_BYTES))
    if after != before:
        existing.replace(path, after)
    if after != before or not found:
        consent.remember(each.digest for each in consent.unaccepted(spec, "api.key"))
    difference = tuple(existing.difference(path, before, after))
    return Made(spec, wanted, "kept" if found else "rotated" if had else "created", difference)


def default(spec: Spec) -> str:
    """Where the key goes if the inventory does not say."""
    return f"{powers.KEYS}/{spec.inventory.cluster}.key"


def _write(file: Path, key: str) -> None:
    # A slip in a path must not become a directory: the default is below the home.
    if file.is_relative_to(Path.home()):
        with contextlib.suppress(OSError):  # then it is missing
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    output_file.check_path(file, "--file", "api.key")
    output_file.write(file, lambda target: target.write(f"{key}\n".encode()), private=True)
