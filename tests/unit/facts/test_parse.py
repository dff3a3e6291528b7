"""Facts from the probe's document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkcluster.errors import CommandFailed
from sparkcluster.facts.model import Unread, read
from sparkcluster.facts.parse import parse

HEALTHY = json.loads((Path(__file__).parents[2] / "golden/facts/founders-p1/facts.json").read_text())


def test_a_healthy_spark() -> None:
    facts = parse("a", HEALTHY)
    assert facts.weights is not None
    weights = read(facts.weights)
    assert weights is not None
    assert weights.complete
    interface = facts.interface_of("192.168.177.11")
    assert interface is not None
    hca = facts.hca_of(interface.name)
    assert hca is not None
    assert hca.active
    assert hca.roce_v2_index("192.168.177.11") == 3
    assert hca.roce_v2_index("192.168.178.11") is None


def test_what_could_not_be_read_is_a_value() -> None:
    facts = parse("a", {**HEALTHY, "docker": {"unread": "permission denied: /var/run/docker.sock"}})
    assert facts.docker == Unread(unread="permission denied: /var/run/docker.sock")
    assert read(facts.docker) is None


def test_keys_of_a_newer_probe_are_passed_over() -> None:
    assert parse("a", {**HEALTHY, "colour": "gold"}) == parse("a", HEALTHY)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"uid": "many"}, "uid"), ({"hcas": [{"name": 1}]}, "hcas"), ({"probe_s": None}, "probe_s")],
)
def test_a_document_of_the_wrong_shape_names_node_and_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(CommandFailed, match=rf"^probe of spark-b answered {field}") as raised:
        parse("spark-b", {**HEALTHY, **change})
    assert raised.value.node == "spark-b"
    assert raised.value.step == "probe"
    assert "\n" not in raised.value.message


def test_an_empty_document_is_refused() -> None:
    with pytest.raises(CommandFailed, match=r"^probe of a answered hostname wrongly: Field required and \d+ more$"):
        parse("a", {})
