"""Releases, merged from the records of all nodes."""

from __future__ import annotations

from typing import Any

from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.hosts.program import call
from sparkcluster.plan.records import cluster_ranks, recorded_release
from sparkcluster.probing.collect import collect_facts
from sparkcluster.spec import Spec

LISTED = ("number", "plan_hash", "verified_at", "operator")


def history(fleet: Fleet, spec: Spec) -> list[dict[str, Any]]:
    """Every recorded release, newest first.

    Each has number, plan_hash, verified_at (seconds since 1970), operator, model, image, digest (the image as any node
    can pull it), the nodes that have the record, and whether it is what runs now.

    Raises:
        SparkclusterError: no node could be queried.
    """
    cluster = spec.inventory.cluster

    def read(host: Host) -> list[dict[str, Any]]:
        request = {"state_dir": spec.inventory.state_dir, "cluster": cluster}
        records: list[dict[str, Any]] = call(host, "records", request)["records"]
        return records

    outcomes = fleet.each(read)
    answered = values(outcomes)
    if not answered:
        raise next(iter(failures(outcomes).values()))
    facts = collect_facts(fleet, spec, list(answered)).facts
    latest = recorded_release(spec.inventory, facts)
    running = (latest.number, latest.plan_hash) if latest and cluster_ranks(cluster, facts).of_release(latest) else None
    # A node whose record of a number differs has another release.
    releases: dict[tuple[int, str], dict[str, Any]] = {}
    for name, records in answered.items():
        for record in filter(whole, records):
            key = (record["number"], record["plan_hash"])
            entry = releases.setdefault(
                key,
                {
                    **{name: record[name] for name in LISTED},
                    "model": record["plan"]["model"],
                    "image": record["plan"]["image"],
                    "digest": record.get("image_digest"),
                    "nodes": [],
                    "running": key == running,
                },
            )
            entry["nodes"].append(name)
    return [releases[key] for key in sorted(releases, reverse=True)]


def whole(record: dict[str, Any]) -> bool:
    """Whether a record has every key that is listed; one that was edited or that another version wrote may not."""
    return (
        {*LISTED, "plan"} <= record.keys()
        and isinstance(record["plan"], dict)
        and {"model", "image"} <= record["plan"].keys()
    )
