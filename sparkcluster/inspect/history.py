"""Releases, merged from the records of all nodes."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from sparkcluster.answers import problem
from sparkcluster.facts.base import Fact, Few
from sparkcluster.facts.record import Number, Time
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.hosts.program import call
from sparkcluster.plan.records import cluster_ranks, recorded_release
from sparkcluster.probing.collect import collect_facts
from sparkcluster.spec import Spec


class Records(Fact):
    """The answer of the records program."""

    records: Few[dict[str, Any]]


class Served(Fact):
    """What is listed of a recorded plan."""

    model: str
    image: str | None


class Listed(Fact):
    """What is listed of a record."""

    number: Number
    plan_hash: str
    verified_at: Time
    operator: str
    plan: Served
    image_digest: str | None = None


def history(fleet: Fleet, spec: Spec) -> dict[str, Any]:
    """``releases``: every recorded release, newest first; ``errors`` by node: why it, or a record there, is left out.

    Each release has number, plan_hash, verified_at (seconds since 1970), operator, model, image, digest (the image as
    any node can pull it), the nodes that have the record, and whether it is what runs now.

    Raises:
        SparkclusterError: no node could be queried.
    """
    cluster = spec.inventory.cluster

    def read(host: Host) -> Records:
        return call(host, "records", {"state_dir": spec.inventory.state_dir, "cluster": cluster}, answer=Records)

    outcomes = fleet.each(read)
    answered = values(outcomes)
    failed = failures(outcomes)
    if not answered:
        raise next(iter(failed.values()))
    errors = {name: error.message for name, error in failed.items()}
    facts = collect_facts(fleet, spec, list(answered)).facts
    latest = recorded_release(spec.inventory, facts)
    running = (latest.number, latest.plan_hash) if latest and cluster_ranks(cluster, facts).of_release(latest) else None
    # A node whose record of a number differs has another release.
    releases: dict[tuple[int, str], dict[str, Any]] = {}
    for name, answer in answered.items():
        for place, document in enumerate(answer.records, 1):
            try:
                record = Listed.model_validate(document)
            except ValidationError as error:  # edited, or of another version
                errors.setdefault(name, f"record {place} of {len(answer.records)} is malformed: {problem(error)}")
                continue
            key = (record.number, record.plan_hash)
            entry = releases.setdefault(
                key,
                {
                    **record.model_dump(exclude={"plan", "image_digest"}),
                    "model": record.plan.model,
                    "image": record.plan.image,
                    "digest": record.image_digest,
                    "nodes": [],
                    "running": key == running,
                },
            )
            entry["nodes"].append(name)
    return {"releases": [releases[key] for key in sorted(releases, reverse=True)], "errors": errors}
