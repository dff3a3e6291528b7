"""Import shell text: the engine that it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sparkcluster.errors import UsageError
from sparkcluster.importer.commands import Commands, Importer, Start
from sparkcluster.importer.playbook import Made, playbook
from sparkcluster.importer.shell import Shell
from sparkcluster.importer.unknown import definable, shown, unknown


@dataclasses.dataclass(slots=True)
class Text:
    """Parameters of an import.

    Attributes:
        source: name of the text in messages.
        importers: parsers of the supported engines.
        defines: values from ``--define``, by name.
        block: number of a page's block, from ``--block``.
        asked: names of variables that the text uses but does not set.
    """

    source: str
    importers: list[Importer]
    defines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    block: int | None = None
    asked: dict[str, None] = dataclasses.field(default_factory=dict)

    def value(self, name: str) -> str | None:
        """The user's value of the unset variable ``name``."""
        self.asked[name] = None
        return self.defines.get(name)


def read(text: str, about: Text) -> Made:
    """The playbook of shell text.

    Raises:
        UsageError: it starts no engine, or it is ambiguous.
    """
    run, found = Shell(about.source, about.defines, about.asked), Commands(about.importers)
    run.run(text)
    return chosen(found.starts(run), found, run, about)


def chosen(starts: list[Start], found: Commands, run: Shell, about: Text) -> Made:
    """The playbook of the engine that a text starts; the first of several, unless a condition decides.

    Raises:
        UsageError: it starts no engine, or it is ambiguous.
    """
    if not starts or (found.doubts and found.doubts[0][0] < starts[0].line):
        raise found.nothing(about.source, run)
    start = ([each for each in starts if not each.importer.is_worker(each.words)] or starts)[0]
    others = [each for each in starts if each is not start and each.what != start.what]
    if start.conditions and others:
        why, lines = start.conditions[-1], ", ".join(str(each.line) for each in (start, *others))
        raise run.fault(why.line, f"`{why.text}` decides which engine starts (lines {lines})", "import one command")
    try:
        refuse_unknown(start, run)
        document, notes = playbook(start)
    except UsageError as error:
        if error.message.startswith(f"{run.source}:"):
            raise
        raise run.fault(start.line, error.message, error.hint or "copy the complete command") from None
    notes += [f"only the first engine is imported, not the engine on line {other.line}" for other in others]
    for why in dict.fromkeys(start.conditions):
        so = "ran once" if why.text.startswith(("for ", "while ", "until ")) else f"were {str(why.holds).lower()}"
        notes.append(f"line {why.line}: imported as if `{why.text}` {so}")
    own = [box.image for box in found.containers.values()]
    for _, words in found.others:
        if not (start.container and start.container.image in words and start.container.image in own):
            notes.append(f"the command {shown(' '.join(words), 80)}")
    return document, [*notes, *run.notes]


def refuse_unknown(start: Start, run: Shell) -> None:
    """Refuse a command with unknown values.

    Raises:
        UsageError: a value is unknown, with the line that makes it unknown.
    """
    served = start.importer.read(start.words)
    words = [served.model or "", *served.unset, *start.setup, *([start.container.image] if start.container else [])]
    for name in dict.fromkeys(name for word in words for name in unknown(word)):
        line, reason = run.variables.reasons.get(name, (start.line, ""))
        define = definable(name)
        if reason or define is None or name.startswith(("<", "YOUR_", "\u2039")):
            what = f"{name} depends on {reason}" if reason else f"the command needs {name}"
            hint = f"add --define {define}=VALUE, or " if define else ""
            raise run.fault(line, what, f"{hint}import the docker run line alone")
