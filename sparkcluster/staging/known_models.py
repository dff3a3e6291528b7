"""What ``fit`` starts from: a model as the hub has it, or as it was recorded where the hub cannot be reached."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.fit import shipped
from sparkcluster.fit.shipped import Recorded
from sparkcluster.fit.source import Source
from sparkcluster.spec.playbook import Companion, Model, Playbook
from sparkcluster.staging.artifacts import is_offline
from sparkcluster.staging.model_headers import from_hub, from_path


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is known of a playbook's model.

    Attributes:
        model: None where it is not recorded, and was not read.
        beside: repositories that are loaded beside it, by name, as far as they were read.
        recorded: where it was found, if it is the recorded model; empty if the hub or a directory gave it.
        note: why it was not read where it is; empty if it was.
        hints: what to type where there is no ``model``.
    """

    model: Source | None
    beside: dict[str, Source] = dataclasses.field(default_factory=dict)
    recorded: tuple[str, ...] = ()
    note: str = ""
    hints: tuple[str, ...] = ()


def known(model: Model, companions: Iterable[Companion] = ()) -> Known:
    """The model of a playbook.

    Its directory or the hub come first. Where they cannot be read, what is recorded of it is the answer. What is
    recorded of the very commit with its tensors needs no hub.

    Raises:
        UsageError: there is no such model, or its files are invalid.
        SparkclusterError: the hub does not answer or requires a token, and the model was never recorded.
    """
    found = shipped.recorded(model.label)
    if model.id is None:
        path = Path(str(model.path)).expanduser()
        if found is not None and not path.exists():
            return _answer(found, UsageError(f"no model at {path}", hint="make or copy it there"))
        return Known(from_path(path))
    if found is not None and not found.is_of(model.revision):
        found = None
    exact = found is not None and found.model is not None and found.model.tensors is not None
    if found is not None and exact and found.revision == model.revision:
        return _answer(found, None)
    try:
        _ask_no_hub_if_told(model.id)
        read = from_hub(model.id, model.revision)
    except UsageError:
        raise
    except SparkclusterError as error:
        if found is None:
            raise
        return _answer(found, error)
    beside: dict[str, Source] = {}
    for each in companions:
        with contextlib.suppress(SparkclusterError):  # the answer says what is not counted
            beside[each.label] = from_hub(each.label, each.revision, whole=False)
    return Known(read, beside)


def size_of(model: Model) -> int | None:
    """Bytes of the weights of ``model``, as they are recorded, or by the hub; None where it does not answer."""
    try:
        found = known(model).model
    except SparkclusterError:
        return None
    return None if found is None else found.size_bytes or sum(each.size_bytes for each in found.tensors or ()) or None


def _ask_no_hub_if_told(repository: str) -> None:
    if is_offline():
        raise SparkclusterError(
            f"{repository} was not looked up: HF_HUB_OFFLINE is set",
            hint="unset HF_HUB_OFFLINE, or pass a local directory or config.json to --config",
        )


def not_recorded(playbook: Playbook, found: Known) -> dict[str, Any]:
    """The answer of ``fit`` where nothing is known of a model but its name, as far as it is that of a forecast."""
    return {
        "playbook": playbook.name,
        "model": playbook.model.label,
        "fits": None,
        "verdict": "not recorded",
        "problems": [],
        "doubts": [found.note],
        "advice": list(found.hints),
        "not_counted": [],
    }


def _answer(found: Recorded, error: SparkclusterError | None) -> Known:
    if found.model is None:
        said = error.message if error is not None else "the hub was not asked"
        hints = [error.hint] if error is not None and error.hint else []
        hints.append(f"in a checkout, where the hub can be reached: scripts/record-model {found.repository}")
        return Known(None, note=f"{said}, and {found.missing}", hints=tuple(hints))
    note = "from recorded data" if error is None else "the hub was not reached: from recorded data"
    return Known(found.model, recorded=found.found, note=note)
