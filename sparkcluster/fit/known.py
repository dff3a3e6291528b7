"""What ``fit`` starts from: a model as the hub or a directory has it, or else as it was recorded."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.errors import AccessDenied, NotRecorded, SparkclusterError, UsageError
from sparkcluster.fit import shipped
from sparkcluster.fit.headers import from_hub, from_path
from sparkcluster.fit.source import Source

if TYPE_CHECKING:
    from sparkcluster.spec.playbook import Companion, Model, Playbook


def known(model: Model, companions: Iterable[Companion] = ()) -> Source:
    """The model of a playbook, and of its ``companions`` what the hub has.

    Its directory or the hub come first. Where they cannot be read, what is recorded of it is the answer. What is
    recorded of the very commit with its tensors needs no hub.

    Raises:
        UsageError: there is no such model, or its files are invalid.
        NotRecorded: neither its directory nor the hub has it now, and nothing but the name is recorded.
        SparkclusterError: the hub does not answer or requires a token, and the model was never recorded.
    """
    recorded = shipped.recorded(model.label, model.revision)
    if model.id is None:
        path = Path(str(model.path)).expanduser()
        if recorded is None or path.exists():
            return from_path(path, model.file)
        return _instead(recorded, UsageError(f"no model at {path}", hint="make or copy it there"))
    if recorded is not None and recorded.tensors is not None and recorded.revision == model.revision:
        return dataclasses.replace(recorded, note="from recorded data")
    try:
        found = from_hub(model.id, model.revision, file=model.file)
    except UsageError:
        raise
    except SparkclusterError as error:
        if recorded is None:
            raise
        return _instead(recorded, error)
    beside: dict[str, Source] = {}
    for each in companions:
        with contextlib.suppress(SparkclusterError):  # the answer says what is not counted
            beside[each.label] = from_hub(each.label, each.revision, whole=False)
    return dataclasses.replace(found, beside=beside)


def size_of(model: Model) -> int | None:
    """Bytes of the weights of ``model``, as they are recorded, or by the hub; None where it does not answer."""
    with contextlib.suppress(SparkclusterError):
        return known(model).weights_bytes or None
    return None


def not_recorded(playbook: Playbook, error: NotRecorded) -> dict[str, Any]:
    """The answer of ``fit`` where nothing is known of a model but its name, as far as it is that of a forecast."""
    record = f"in a checkout, where the hub can be reached: scripts/record-model {playbook.model.label}"
    return {
        "playbook": playbook.name,
        "model": playbook.model.label,
        "fits": None,
        "verdict": "not recorded",
        "problems": [],
        "doubts": [error.message],
        "advice": [*filter(None, [error.hint]), record],
        "not_counted": [],
    }


def _instead(recorded: Source, error: SparkclusterError) -> Source:
    """What is recorded of a model that could not be read, because of ``error``; NotRecorded if it is only a name."""
    if recorded.config is None:
        raise NotRecorded(f"{error.message}, and {recorded.note}", hint=error.hint) from None
    remedy = f"; {error.hint}" if isinstance(error, AccessDenied) else ""
    return dataclasses.replace(recorded, note=f"{error.message}: from recorded data{remedy}")
