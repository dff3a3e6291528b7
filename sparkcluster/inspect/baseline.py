"""``playbooks new``: a playbook for a model that has none, from what ``fit`` reads about the model."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.errors import UsageError
from sparkcluster.fit.headers import from_path
from sparkcluster.fit.known import known
from sparkcluster.fit.source import Source, spark
from sparkcluster.importer import Imported
from sparkcluster.importer.playbook import model_of, name_of
from sparkcluster.importer.read import finished
from sparkcluster.importer.unknown import shown
from sparkcluster.inspect.playbooks import MOST_SPARKS
from sparkcluster.report import count
from sparkcluster.spec import Playbook, library
from sparkcluster.spec.playbook import Model


def baseline(written: str, config: Path | None = None, name: str | None = None) -> Imported:
    """A playbook for a model that has none: the engine's defaults, and as many Sparks as its memory needs.

    Args:
        written: the model's repository, or its directory on the nodes.
        config: directory of the model on this machine, or its config.json; None to ask the hub.
        name: name of the playbook; None to use the model's.

    Raises:
        UsageError: there is no such model, or its architecture is unknown.
        SparkclusterError: the hub does not answer, and the model is not recorded.
    """
    model = model_of(written)
    try:
        found = known(Model.model_validate(model)) if config is None else from_path(config)
        source = dataclasses.replace(found, name=written)
        engine = engines.engine(engines.DEFAULT)
        document, notes = engine.baseline(source) or ({}, [])
        if not document:
            raise UsageError(f"{engine.title} has no playbook to start from", hint="copy one: sparkcluster playbooks")
        revision = {"revision": source.revision} if source.revision and "id" in model else {}
        asked = {**model, **revision, **document["model"]}
        served = name_of(written)
        document |= {"name": name or served, "description": f"{written}, not measured yet", "served_name": served}
        document["model"] = {key: value for key, value in asked.items() if value is not None}
        document["tensor_parallel"], fits = _sparks(document, source)
        notes += filter(None, [fits, source.note])
        with contextlib.suppress(UsageError):
            same = library.find(model.get("id", ""), library.bundled())
            notes.append(f"the bundled playbook {same.stem} serves this model")
        return finished(document, notes, f"the config.json of {written}", command="playbooks new")
    except ValidationError as error:
        problem = f"invalid model {shown(written)}: {error.errors()[0]['msg']}"
        raise UsageError(problem, hint="check its config.json, or use its path on the nodes") from None


def _sparks(document: dict[str, Any], source: Source) -> tuple[int, str]:
    """The fewest Sparks that hold the model (1 if none do), and what `fit` says about them."""
    said = "fit: unknown"
    for nodes in (1, 2, 4, MOST_SPARKS):
        playbook = Playbook.model_validate({**document, "tensor_parallel": nodes})
        with contextlib.suppress(UsageError):  # heads or layers not divisible by this number
            found = engines.engine(playbook.engine).forecast(playbook, source, spark(), nodes=nodes) or {}
            why = [*found.get("problems", ()), *found.get("doubts", ())]
            said = f"fit, on {count(nodes, 'Spark')}: {'; '.join([found.get('verdict', 'unknown'), *why])}"
            if found.get("fits") is not False:
                return nodes, said
    return 1, said
