"""Facts from the probe's document."""

from __future__ import annotations

import pytest

from sparkcluster.errors import CommandFailed
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.parse import parse, parse_engine
from tests.unit import golden

HEALTHY = golden.read(golden.ROOT / "facts" / "founders-p1" / "facts.yaml")


def test_facts_of_a_healthy_spark() -> None:
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


def test_an_unreadable_fact_is_a_value() -> None:
    facts = parse("a", {**HEALTHY, "docker": {"unread": "permission denied: /var/run/docker.sock"}})
    assert facts.docker == Unread(unread="permission denied: /var/run/docker.sock")
    assert read(facts.docker) is None


def test_unknown_keys_of_a_newer_probe_are_ignored() -> None:
    assert parse("a", {**HEALTHY, "colour": "gold"}) == parse("a", HEALTHY)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"uid": "many"}, "uid"), ({"hcas": [{"name": 1}], "groups": 3}, "groups"), ({"probe_s": None}, "probe_s")],
)
def test_a_document_of_the_wrong_shape_names_node_and_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(CommandFailed, match=rf"^spark-b sent a malformed answer to probe: {field}") as raised:
        parse("spark-b", {**HEALTHY, **change})
    assert raised.value.node == "spark-b"
    assert raised.value.step == "probe"
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("field", ["driver"])
def test_a_version_with_thousands_of_digits_is_unread(field: str) -> None:
    """``int`` raises an error above 4,300 digits."""
    found = getattr(parse("a", {**HEALTHY, field: "9" * 5000}), field)
    assert isinstance(found, Unread)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"plan": None}, "plan"), ({"plan": []}, "plan"), ({"plan": {}}, "plan.model"), ({"playbook": []}, "playbook"),
        ({"playbook": {"engine": "../cli"}}, "playbook.engine"), ({"plan": {"model": "m", "nodes": []}}, "plan.nodes"),
        ({"plan": {"model": "m", "nodes": {"a": {"group": "g", "containers": []}}}}, "plan.nodes.a.containers"),
        ({"plan": {"model": "m", "nodes": {"a": {"group": "g", "containers": [{"name": "-v", "launcher": {}}]}}}},
         "plan.nodes.a.containers.0.name"),
        ({"groups": {"-v": {}}}, "groups.-v.[key]"),
        ({"groups": {"g": {"verify": {"expect": "("}}}}, "groups.g.verify.expect"), ({"verified_at": 1e18}, "verified_at"),
        *(({"nodes": nodes}, "nodes") for nodes in (None, [], "x", 5)), ({"nodes": {"a": None}}, "nodes.a"),
        ({"nodes": {"a": {}}}, "nodes.a.host"), ({"nodes": {"a": {"host": ["192.0.2.9"]}}}, "nodes.a.host"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_unread_and_affects_nothing_else(record: dict[str, object], field: str) -> None:
    facts = parse("a", {**HEALTHY, "release": {"number": 3, "plan_hash": "x", "record": record}})
    assert isinstance(facts.release, Unread)
    assert facts.release.unread.startswith(f"release.ReleaseFact.record.{field}: ")
    assert facts.ranks == parse("a", HEALTHY).ranks


def test_a_reading_of_an_unexpected_shape_loses_only_itself() -> None:
    facts = parse("a", {**HEALTHY, "hcas": [{"name": "rocep1s0f1"}], "memory": {**HEALTHY["memory"], "total_bytes": 0}})
    hcas, memory = facts.hcas, facts.memory
    assert isinstance(hcas, Unread)
    assert hcas.unread.startswith("hcas.")
    assert hcas.unread.endswith("netdev: Field required")
    assert isinstance(memory, Unread)
    assert facts.docker == parse("a", HEALTHY).docker


def test_an_image_with_an_invalid_answer_is_unread() -> None:
    told = {"python": "python3", "python_version": "3.12", "platform": "linux_aarch64"}
    assert parse_engine(told).python == "python3"  # type: ignore[union-attr]
    assert parse_engine({"unread": "no python"}) == Unread(unread="no python")
    assert parse_engine({**told, "flags": 3}) == Unread(
        unread="invalid answer of the image: flags: Input should be a valid tuple"
    )


@pytest.mark.parametrize(
    ("facts", "change"),
    [
        ("interfaces", {"pci": "$(reboot)"}),
        ("hcas", {"pcie": "Gen5 x4; reboot"}),
    ],
)
def test_pci_devices_have_one_format(facts: str, change: dict[str, str]) -> None:
    found = getattr(parse("a", {**HEALTHY, facts: [{**HEALTHY[facts][0], **change}]}), facts)
    assert isinstance(found, Unread)


@pytest.mark.parametrize("user", ["vllm\u2028RUN", "x;y"])
def test_a_user_of_an_image_is_a_name_or_a_number(user: str) -> None:
    assert isinstance(parse("a", {**HEALTHY, "image": {**HEALTHY["image"], "user": user}}).image, Unread)
    for valid in ("", "2000:0", "vllm", "DOMAIN.user-1"):
        assert not isinstance(parse("a", {**HEALTHY, "image": {**HEALTHY["image"], "user": valid}}).image, Unread)


def test_a_text_from_a_node_is_one_line_everywhere():
    odd = "a\x1b[31mb\nc\u202e\0" + "d" * 70_000
    ranks = [{"name": "head", "state": "running", "error": odd, "labels": {"io.sparkcluster.rank_dir": "/a\nb"}}]
    dgx, gpus = {"unread": odd}, [{"name": odd}]
    found = parse("a", {**HEALTHY, "hostname": odd, "groups": [odd], "ranks": ranks, "dgx": dgx, "gpus": gpus})
    texts = [found.hostname, found.groups[0], found.ranks[0].error, found.dgx.unread, found.gpus[0].name]
    assert [text.isprintable() and len(text) <= 1 << 16 for text in texts] == [True] * 5
    assert found.hostname.startswith("ab c��ddd")
    assert found.ranks[0].labels["io.sparkcluster.rank_dir"] == "/a\nb", "it is compared, not shown"
