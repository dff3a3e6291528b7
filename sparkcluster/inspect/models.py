"""``models``: which models are on which node, and how much of them was staged. Changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from sparkcluster.facts.base import Fact, Few, Number, Path
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, all_values, failures, values
from sparkcluster.hosts.program import call
from sparkcluster.spec import Spec

_READ_S = 120  # tens of thousands of files, from a cold disk


class Model(Fact):
    """A model on one node.

    Attributes:
        repository: on Hugging Face's hub; None for a directory.
        beside: place of playbook files below the state directory; None for a model.
        path: its directory.
        bytes: size of all its files.
        commits: its snapshots in the hub's cache.
        staged_bytes: size of the files that were staged and have not changed since.
        clusters: clusters that staged it.
        used_by: clusters whose releases or ranks use it.
        asked: paths in playbooks that lead to it.
    """

    repository: str | None = None
    beside: str | None = None
    path: Path
    bytes: Number
    commits: Few[str] = ()
    staged_bytes: Number = 0
    clusters: Few[str] = ()
    used_by: Few[str] = ()
    asked: Few[str] = ()

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.repository or self.beside or self.path

    def playbook(self, named: Mapping[str, str]) -> str | None:
        """The playbook that uses it; ``named`` is ``Found.named``."""
        return next((named[name] for name in (self.name, *self.asked) if name in named), None)


class Answer(Fact):
    """The answer of the models program."""

    models: Few[Model]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The models on each node that answered, and the errors of the other nodes.

    Attributes:
        named: models used by a playbook, with the playbook's name.
    """

    nodes: Mapping[str, tuple[Model, ...]]
    errors: Mapping[str, str]
    named: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """The models as JSON, by name."""
        models: dict[str, dict[str, Any]] = {}
        for node, found in self.nodes.items():
            for model in found:
                entry = models.setdefault(
                    model.name, {"name": model.name, "playbook": model.playbook(self.named), "nodes": {}}
                )
                entry["nodes"][node] = model.model_dump(mode="json", exclude={"repository", "beside", "asked"})
        return {"models": [models[name] for name in sorted(models)], "errors": dict(self.errors)}


def models(fleet: Fleet, spec: Spec, others: Iterable[Spec] = ()) -> Found:
    """Query every node; ``others`` are specs whose playbooks also use models.

    Raises:
        SparkclusterError: no node could be queried.
    """
    inventory = spec.inventory
    named: dict[str, str] = {}
    for each_spec in (spec, *others):
        playbook = each_spec.playbook
        for file in each_spec.files.values():
            named.setdefault(f"files/{file.mark}/{file.name}", playbook.name)
        for model in (playbook.model.id or playbook.model.path, *(each.id for each in playbook.companions)):
            named.setdefault(str(model), playbook.name)
    paths = [name for name in named if name.startswith(("/", "~"))]
    request = {"state_dir": inventory.state_dir, "hf_home": inventory.hf_home, "paths": paths}

    def ask(host: Host) -> tuple[Model, ...]:
        return call(host, "models", request, answer=Answer, timeout_s=_READ_S).models

    outcomes = fleet.each(ask)
    answered = values(outcomes) or all_values(outcomes)
    return Found(answered, {node: error.message for node, error in failures(outcomes).items()}, named)
