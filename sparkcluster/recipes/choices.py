"""What the user decides where a text leaves something open: values by name, and the block of a page."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sparkcluster.errors import UsageError
from sparkcluster.recipes.serve import Importer

Made = tuple[dict[str, Any], list[str]]
"""A playbook, and what could not be carried over."""

MAX_ASKED = 20

# Names of shells and of Compose, arguments of scripts, placeholders; a specifier of systemd is %i.
_NAME = re.compile(r"\w[\w ./:|+-]*|%[A-Za-z]")


class Format(Protocol):
    """Texts of one kind."""

    def looks(self, text: str) -> bool:
        """Whether ``text`` is of this kind, broken ones included."""

    def read(self, text: str, source: str, importers: list[Importer], choices: Choices) -> Made:
        """The playbook of ``text``.

        Raises:
            NoEngine: nothing in it starts an engine.
            UsageError: it is broken, or the user has to choose.
        """


@dataclasses.dataclass(slots=True)
class Choices:
    """What the user decided, and what a text asked for.

    Attributes:
        script: reads shell text.
        formats: what a block of a page may be beside shell text.
        defines: values by name, of ``--define``.
        block: number of a block, of ``--block``.
        environment: what an earlier shell block of the page exports.
        files: what earlier blocks of the page write.
        directory: that they end in.
        asked: names that the text asks for, in its order.
    """

    script: Callable[[str, str, list[Importer], Choices], Made]
    formats: tuple[Format, ...] = ()
    defines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    block: int | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    directory: str = ""
    asked: dict[str, None] = dataclasses.field(default_factory=dict)

    def ask(self, name: str) -> str | None:
        """The value of ``name``, which the text asks for; None if it has none."""
        self.asked[name] = None
        return self.defines.get(name, self.environment.get(name))

    def apart(self, environment: Mapping[str, str] | None = None) -> Choices:
        """The same choices for a part of the text, of which it is not clear yet whether it counts."""
        return dataclasses.replace(self, block=None, environment=environment or {}, asked={})

    def check(self, source: str) -> None:
        """Refuse a value that nothing asked for.

        Raises:
            UsageError: the text does not ask for one of the names.
        """
        for name in self.defines:
            if name not in self.asked:
                names = [asked for asked in self.asked if asked]
                listed = ", ".join(names[:MAX_ASKED]) + (", …" if len(names) > MAX_ASKED else "")
                raise UsageError(
                    f"--define {name}: {source} does not ask for {name}",
                    hint=f"it asks for {listed}" if names else "it asks for no value; leave --define out",
                )


def defines(written: list[str]) -> dict[str, str]:
    """Values by name, of ``NAME=VALUE`` as written after ``--define``.

    Raises:
        UsageError: one of them is not of that form, or defined twice.
    """
    out: dict[str, str] = {}
    for text in written:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError("--define takes NAME=VALUE", hint="as in --define MODEL=openai/gpt-oss-20b")
        if name in out:
            raise UsageError(f"--define {name} is given twice", hint="give it once")
        if not value.isprintable():
            raise UsageError(f"the value of --define {name} has characters that are not seen", hint="type it anew")
        out[name] = value
    return out
