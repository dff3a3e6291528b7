"""Read an existing inventory, check a changed text of it, and replace it."""

from __future__ import annotations

import codecs
import difflib
import secrets
from pathlib import Path

from sparkcluster import output_file
from sparkcluster.errors import SpecError
from sparkcluster.spec import Spec, load


def read(path: Path) -> str:
    """Text of the inventory, with its line endings and without a byte order mark.

    Raises:
        UsageError, SpecError: it cannot be read.
    """
    return load.text(path)


def check(path: Path, text: str, model: str | None = None) -> Spec:
    """The spec (of ``model``, if given) that ``path`` would describe if it contained ``text``.

    The text is written to a temporary file in the same directory.

    Raises:
        SpecError: errors in the text, by line of ``path``.
        UsageError: the temporary file cannot be written, or the playbook cannot be read.
    """
    target = path.expanduser().resolve()
    trial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")  # playbook paths are relative to the inventory
    try:
        output_file.write(trial, lambda file: file.write(text.encode()), private=True)
        spec = load.load(trial, starts=False, model=model)
        if spec.inventory.models:
            load.load_all(trial, starts=False)
    except SpecError as error:
        problems = [each if each.file != str(trial) else each._replace(file=str(path)) for each in error.problems]
        raise SpecError(problems) from None
    else:
        return spec
    finally:
        trial.unlink(missing_ok=True)


def difference(path: Path, before: str, after: str) -> list[str]:
    """Unified diff of ``path``, by line."""
    name = str(path)
    return [
        line.rstrip("\r\n")
        for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, name)
    ]


def replace(path: Path, text: str) -> None:
    """Atomically replace the content of ``path``; keeps a byte order mark and the file's privacy.

    Raises:
        UsageError: it cannot be written.
    """
    mark = codecs.BOM_UTF8 if path.expanduser().read_bytes().startswith(codecs.BOM_UTF8) else b""
    private = not path.expanduser().stat().st_mode & 0o077
    output_file.write(path, lambda file: file.write(mark + text.encode()), private=private)
