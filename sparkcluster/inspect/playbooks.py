"""``playbooks``: on how many Sparks each serves, and how large its weights are."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.checks.disks import recorded_forecast
from sparkcluster.errors import UsageError
from sparkcluster.report import count
from sparkcluster.spec import Playbook, library
from sparkcluster.spec.load import named, read_playbook, variant_sizes
from sparkcluster.spec.playbook import Figure

MOST_SPARKS = 8
"""A playbook with ``tensor_parallel: auto`` is tried on up to as many: cables join two or three, a switch more."""


def values(figure: Figure) -> list[int | float]:
    """The number, or both ends of the range."""
    return figure.value if isinstance(figure.value, list) else [figure.value]


def text(figure: Figure) -> str:
    """As ``about 50 to 55 tok/s: conditions``."""
    about = f"{'about ' if figure.approximate else ''}{' to '.join(map(str, values(figure)))} {figure.unit}"
    return ": ".join(filter(None, [about, figure.when]))


def decode(playbook: Playbook) -> Figure | None:
    """Its first figure of how fast one request decodes."""
    return next((each for each in playbook.figures if (each.what, each.unit) == ("decode", "tok/s")), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A playbook, and what it takes to serve it.

    Attributes:
        playbook: as the group that was asked for serves it, else one of the fewest of ``sparks``.
        path: its file.
        sparks: numbers of Sparks of a group that can serve it: its ranks come out at them, and the memory that it is
            predicted to need is there as far as its model is recorded.
        weights_bytes: of the files of its model; None where they are not recorded.
        weights_counted: whether that is of its files, as published or by tensor; else estimated from config.json.
    """

    playbook: Playbook
    path: Path
    sparks: tuple[int, ...]
    weights_bytes: int | None = None
    weights_counted: bool = False

    @property
    def between(self) -> str:
        """``1``, or ``1-8``; between the ends each number that its heads and layers can be shared by."""
        return "-".join(map(str, dict.fromkeys([*self.sparks[:1], *self.sparks[-1:]])))

    @property
    def weights(self) -> str:
        """Their size, in whole GB; ``~`` marks an estimate."""
        if self.weights_bytes is None:
            return "?"
        return f"{'' if self.weights_counted else '~'}{max(1, self.weights_bytes / 10**9):.0f} GB"

    @property
    def decode(self) -> float:
        """Tokens/s of one request, by the first figure of the playbook that has it; 0 where none has."""
        return statistics.mean(values(figure)) if (figure := decode(self.playbook)) else 0

    @property
    def speed(self) -> str:
        """The same as text; ``~`` marks an estimate."""
        figure = decode(self.playbook)
        return f"{'~' if figure.approximate else ''}{self.decode:.0f}/s" if figure else "-"

    def as_json(self) -> dict[str, Any]:
        """The playbook as an element of ``playbooks --json``."""
        keys = {"name", "description", "use", "purposes", "image", "tensor_parallel", "overlays", "source", "figures"}
        return {
            **self.playbook.model_dump(include=keys),
            "model": self.playbook.model.label,
            "sparks": list(self.sparks),
            "weights_bytes": self.weights_bytes,
            "weights_counted": self.weights_counted,
            "path": str(self.path),
        }


def offers(sparks: int | None = None, purpose: str | None = None) -> list[Offer]:
    """The bundled playbooks; with ``sparks`` those that groups of so many can serve, with ``purpose`` those for it.

    Raises:
        UsageError: none is for ``purpose``.
    """
    found = [_offer(library.find(name, library.bundled()), [], sparks) for name in library.names()]
    purposes = sorted({word for each in found for word in each.playbook.purposes})
    if purpose is not None and purpose not in purposes:
        raise UsageError(f"no playbook is for {purpose}", hint=f"--for takes {', '.join(purposes)}")
    found = [each for each in found if purpose is None or purpose in each.playbook.purposes]
    return [each for each in found if sparks is None or sparks in each.sparks]


def one_of_each(found: Sequence[Offer]) -> list[Offer]:
    """Of each model one, which runs in a container; rather for speed than for little memory, and what others extend."""
    first: dict[str, Offer] = {}
    for each in sorted(found, key=lambda each: (each.playbook.goal == "memory", each.playbook.extends is not None)):
        first.setdefault(each.playbook.model.label, each)
    return [each for each in found if each.playbook.image and first[each.playbook.model.label] is each]


def offer(reference: str, sparks: int | None = None) -> Offer:
    """One playbook by name, path or model, with overlays after ``+``; as groups of ``sparks`` serve it.

    Raises:
        UsageError, SpecError: there is none, it is invalid, or serves on other numbers of Sparks.
    """
    path, overlays = named(reference)
    found = _offer(path, overlays, sparks)
    if sparks is not None and sparks not in found.sparks:
        hint = f"sparkcluster playbooks --sparks {sparks} lists what can"
        raise UsageError(f"{count(sparks, 'Spark')} cannot serve {found.playbook.name} as one group", hint=hint)
    return found


def _offer(path: Path, overlays: Sequence[str], sparks: int | None = None) -> Offer:
    written, _ = read_playbook(path, overlays)
    varies = variant_sizes(path, overlays)
    sizes = {*range(1, MOST_SPARKS + 1), written.ranks or written.nodes.min, sparks or 1}
    serving: dict[int, Playbook] = {}
    memory: Mapping[str, Any] = {}
    for nodes in sorted(sizes):
        playbook = read_playbook(path, overlays, None, nodes)[0] if varies else written
        with contextlib.suppress(UsageError):  # its heads or layers cannot be shared by so many
            forecast: Mapping[str, Any] | None = {"fits": False}
            if playbook.serves_on(nodes):
                forecast = recorded_forecast(playbook, nodes)
            if forecast is None or forecast["fits"] is not False:
                serving[nodes] = playbook
                memory = memory or (forecast or {}).get("memory", {})
    return Offer(
        serving.get(sparks or 0) or next(iter(serving.values()), written),
        path,
        tuple(serving),
        memory.get("checkpoint_bytes"),
        memory.get("weights_counted", False),
    )
