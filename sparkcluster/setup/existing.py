"""An inventory that is there already: read, checked with more nodes in it, and replaced."""

from __future__ import annotations

import codecs
import difflib
import secrets
from pathlib import Path

from sparkcluster import output_file
from sparkcluster.errors import SpecError
from sparkcluster.spec import Spec, load


def read(path: Path) -> str:
    """Its text, with the ends of lines as they are and without a byte order mark.

    Raises:
        UsageError, SpecError: it cannot be read.
    """
    return load.text(path)


def check(path: Path, text: str, model: str | None = None) -> Spec:
    """The spec that ``path`` would describe with ``text`` in it, or that of ``model`` there.

    A file beside it has the text meanwhile.

    Raises:
        SpecError: what is wrong with it, by line of ``path``.
        UsageError: that file cannot be written, or the playbook not be read.
    """
    target = path.expanduser().resolve()
    trial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")  # a playbook is searched beside the inventory
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
    """Lines of a unified diff of ``path``."""
    name = str(path)
    return [
        line.rstrip("\r\n")
        for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, name)
    ]


def replace(path: Path, text: str) -> None:
    """Let ``path`` have ``text``, at once; a byte order mark stays, and so does whether others may read it.

    Raises:
        UsageError: it cannot be written.
    """
    mark = codecs.BOM_UTF8 if path.expanduser().read_bytes().startswith(codecs.BOM_UTF8) else b""
    private = not path.expanduser().stat().st_mode & 0o077
    output_file.write(path, lambda file: file.write(mark + text.encode()), private=private)
