"""``playbooks``: on how many Sparks each one serves, and the size of its weights."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster import engines
from sparkcluster.checks.disks import recorded_forecast
from sparkcluster.errors import UsageError
from sparkcluster.report import count
from sparkcluster.spec import Playbook, library
from sparkcluster.spec.load import named, read_playbook, variant_sizes
from sparkcluster.spec.playbook import Figure

MOST_SPARKS = 8
"""Most Sparks tried for ``tensor_parallel: auto``: cables join two or three, a switch more."""


def values(figure: Figure) -> list[int | float]:
    """The number, or both ends of the range."""
    return figure.value if isinstance(figure.value, list) else [figure.value]


def text(figure: Figure) -> str:
    """For example ``about 50 to 55 tok/s: conditions``."""
    about = f"{'about ' if figure.approximate else ''}{' to '.join(map(str, values(figure)))} {figure.unit}"
    return ": ".join(filter(None, [about, figure.when]))


def decode(playbook: Playbook) -> Figure | None:
    """Its first figure of single-request decode speed."""
    return next((each for each in playbook.figures if (each.what, each.unit) == ("decode", "tok/s")), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A playbook, and what it needs.

    Attributes:
        playbook: for the requested number of Sparks, else for the smallest of ``sparks``.
        path: its file.
        sparks: group sizes that can serve it: its ranks can be placed, and its predicted memory fits (if its model is
            recorded).
        weights_bytes: size of its model's files; None if not recorded.
        weights_counted: whether that is the published or per-tensor size; else estimated from config.json.
    """

    playbook: Playbook
    path: Path
    sparks: tuple[int, ...]
    weights_bytes: int | None = None
    weights_counted: bool = False

    @property
    def sizes(self) -> str:
        """``sparks`` as text: ``1``, or ``1,2,4,8``."""
        return ",".join(map(str, self.sparks))

    @property
    def weights(self) -> str:
        """Size of the weights in whole GB; ``~`` marks an estimate."""
        if self.weights_bytes is None:
            return "?"
        return f"{'' if self.weights_counted else '~'}{max(1, self.weights_bytes / 10**9):.0f} GB"

    @property
    def decode(self) -> float:
        """Decode speed of one request in tokens/s, from the playbook's first such figure; 0 without one."""
        return statistics.mean(values(figure)) if (figure := decode(self.playbook)) else 0

    @property
    def speed(self) -> str:
        """``decode`` as text; ``~`` marks an estimate."""
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
    """The bundled playbooks, filtered by group size (``sparks``) and ``purpose``.

    Raises:
        UsageError: no playbook has this ``purpose``.
    """
    found = [_offer(library.find(name, library.bundled()), [], sparks) for name in library.names()]
    purposes = sorted({word for each in found for word in each.playbook.purposes})
    if purpose is not None and purpose not in purposes:
        raise UsageError(f"unknown purpose: {purpose}", hint=f"--for takes {', '.join(purposes)}")
    found = [each for each in found if purpose is None or purpose in each.playbook.purposes]
    return [each for each in found if sparks is None or sparks in each.sparks]


def one_of_each(found: Sequence[Offer]) -> list[Offer]:
    """One container playbook per model: first for speed, then with the default engine, then one that others extend."""
    first: dict[str, Offer] = {}
    order = engines.names()
    chosen = sorted(
        found,
        key=lambda each: (
            each.playbook.goal == "memory",
            order.index(each.playbook.engine),
            each.playbook.extends is not None,
        ),
    )
    for each in chosen:
        first.setdefault(each.playbook.model.label, each)
    return [each for each in found if each.playbook.image and first[each.playbook.model.label] is each]


def offer(reference: str, sparks: int | None = None) -> Offer:
    """One playbook by name, path or model, with overlays after ``+``, for groups of ``sparks``.

    Raises:
        UsageError, SpecError: it does not exist, is invalid, or cannot serve on ``sparks`` Sparks.
    """
    path, overlays = named(reference)
    found = _offer(path, overlays, sparks)
    if sparks is not None and sparks not in found.sparks:
        hint = f"sparkcluster playbooks --sparks {sparks}   lists those that can"
        raise UsageError(f"{count(sparks, 'Spark')} cannot serve {found.playbook.name} as one group", hint=hint)
    return found


def _offer(path: Path, overlays: Sequence[str], sparks: int | None = None) -> Offer:
    written, _ = read_playbook(path, overlays)
    varies = variant_sizes(path, overlays)
    sizes = {*range(1, MOST_SPARKS + 1), written.ranks or written.nodes.min, sparks or 1}
    serving: dict[int, Playbook] = {}
    memory: Mapping[str, Any] = {}
    refused: dict[str, Any] = {"fits": False}
    for nodes in sorted(sizes):
        playbook = read_playbook(path, overlays, None, nodes)[0] if varies else written
        with contextlib.suppress(UsageError):  # heads or layers not divisible by this number
            forecast = recorded_forecast(playbook, nodes) if playbook.serves_on(nodes) else refused
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
