"""The model of a playbook, from a directory, from the hub, or from recorded data."""

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
    """The model of a playbook, with its ``companions`` if the hub has them.

    Recorded data is used if the directory or hub cannot be read, or if it has the tensors of exactly this commit.

    Raises:
        UsageError: unknown model, or invalid files.
        NotRecorded: it cannot be read, and only its name is recorded.
        SparkclusterError: the hub does not answer or requires a token, and the model is not recorded.
    """
    recorded, more = shipped.recorded(model.label, model.revision), [each for each in model.files if ".gguf" in each]
    if model.id is None:
        path = Path(str(model.path)).expanduser()
        if recorded is None or path.exists():
            return from_path(path, model.file, more)
        return _instead(recorded, UsageError(f"no model at {path}", hint="create it or copy it there"))
    if recorded is not None and recorded.tensors is not None and recorded.revision == model.revision:
        return dataclasses.replace(recorded, note="from recorded data")
    try:
        found = from_hub(model.id, model.revision, file=model.file, more=more)
    except UsageError:
        raise
    except SparkclusterError as error:
        if recorded is None:
            raise
        return _instead(recorded, error)
    beside = dict(found.beside)
    for each in companions:
        with contextlib.suppress(SparkclusterError):  # the result lists what is not counted
            beside[each.label] = from_hub(each.label, each.revision, whole=False)
    return dataclasses.replace(found, beside=beside)


def size_of(model: Model) -> int | None:
    """Bytes of the weights of ``model``, recorded or from the hub; None if unknown."""
    with contextlib.suppress(SparkclusterError):
        return known(model).weights_bytes or None
    return None


def not_recorded(playbook: Playbook, error: NotRecorded) -> dict[str, Any]:
    """The forecast document for a model of which only the name is recorded."""
    record = f"in a checkout with access to the hub: scripts/record-model {playbook.model.label}"
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
    """Recorded data for a model that could not be read (``error``); raises NotRecorded if only its name is recorded."""
    if recorded.config is None:
        raise NotRecorded(f"{error.message}, and {recorded.note}", hint=error.hint) from None
    remedy = f"; {error.hint}" if isinstance(error, AccessDenied) else ""
    return dataclasses.replace(recorded, note=f"{error.message}: from recorded data{remedy}")
