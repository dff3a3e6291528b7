"""The controller of a copy: its orders, its output, and its end. Workers are scripted."""

from __future__ import annotations

import pytest

from sparkcluster.errors import LeaseLost, StageError
from tests.unit.staging.scripted import GB, SIZE, ScriptedCopy, file


@pytest.fixture
def copy(spark, cluster):
    """``copy(names)``: the first has everything; nodes in ``offline`` have no cable."""

    def make(names="abc", files=(), offline=""):
        return ScriptedCopy(spark, cluster, names, list(files) or [file("model.safetensors")], offline)

    return make


def test_each_node_gets_its_sources_once_with_cables_first(copy):
    made = copy()
    arrived = made.run()
    assert {node: (each.source, each.bytes, each.medium) for node, each in arrived.items()} == {
        "b": ("a", SIZE, "rail"), "c": ("b", SIZE, "rail"),
    }  # fmt: skip
    assert made.sources("c") == [("b", "rail"), ("a", "rail"), ("a", "wire"), ("b", "wire")]
    assert [len(node.ordered("look")) for node in made.nodes.values()] == [1, 1, 1]
    (order,) = made.nodes["b"].ordered("from")
    rail, wire = order[0]["ways"][0], order[2]["ways"][0]
    assert (rail["address"], rail["port"], "cert" in rail and rail["cert"]) == ("10.1.0.11", 4001, None)
    assert (wire["address"], wire["cert"][:27]) == ("192.168.86.11", "-----BEGIN CERTIFICATE-----")
    assert all(node.orders[-1] == {"end": True} for node in made.nodes.values())
    assert made.shown.notes == []


def test_with_encrypt_every_address_has_a_certificate_and_the_event_says_so(copy):
    made = copy("ab")
    assert made.run(encrypt=True)["b"].encrypted
    assert all(way["cert"] for each in made.nodes["b"].ordered("from")[0] for way in each["ways"])


def test_a_copy_outside_the_interconnect_is_reported_before_its_first_byte(copy):
    made, before = copy(offline="c"), []
    script = made.nodes["c"].script
    made.nodes["c"].script = lambda node: (before.extend(made.shown.notes), script(node))
    made.run()
    (loud,) = made.job.warnings
    assert loud == (
        "a and c share no cable: c gets weights from a over the management network (enP7s7, 10 Gb/s), encrypted; "
        "2.00 GB, about 5 s"
    )
    assert before == [f"warning: {loud}"]
    last = {each.node: (each.source, each.medium, each.encrypted, each.state) for each in made.shown.transfers}
    assert last["c"] == ("a", "wire", True, "complete")


def test_a_change_to_another_network_is_reported_once(copy):
    def script(node):
        node.say(**{"from": "a", "medium": "rail", "bytes": GB})
        for more in (0, 1):
            node.say(**{"from": "a", "medium": "wire", "bytes": GB + more})
        node.say(done={"bytes": SIZE, "seconds": 9.0})

    made = copy("ab")
    made.nodes["b"].script = script
    assert made.run()["b"].medium == "wire"
    text = "the planned connection failed: b gets weights from a over the management network (enP7s7, 10 Gb/s)"
    assert made.job.warnings == [f"{text}, encrypted; 1.00 GB, about 2.5 s"]


def test_a_problem_of_a_node_is_reported_once(copy):
    met = {
        "left": [
            {"node": "b", "why": "b sent nothing for 5 s"}, {"node": "a", "address": "10.1.0.11", "why": "no answer"},
        ],
        "wrong": [{"file": 0, "from": "b"}, {"file": 7, "from": "b"}],
        "kept": ["/models/m/model.safetensors.replaced"],
    }  # fmt: skip

    def script(node):
        for more in (0, 1, 2):
            node.say(**met, **{"from": "a", "bytes": GB + more})
        node.complete()

    made = copy()
    made.nodes["c"].script = script
    made.run()
    assert made.shown.notes == [
        "c: b sent nothing for 5 s; continuing with a at 1.00 of 2.00 GB",
        "c: the link to a at 10.1.0.11 failed: no answer; continuing over another at 1.00 of 2.00 GB",
        "model.safetensors from b arrived corrupt on c (wrong SHA-256); copying it again",
        "warning: a different file on c was replaced; the old one was moved to /models/m/model.safetensors.replaced",
    ]


def test_files_without_a_known_hash_come_from_a_node_that_had_them_at_the_start(copy):
    made = copy("abc", [file("known"), file("unknown", None), file("other", None)])
    made.nodes["b"].began = {"sha256": {"1": "ee" * 32}}
    made.nodes["a"].began = {"sha256": {"0": "cc" * 32, "1": "cd" * 32, "9": "ce" * 32}}
    made.run()
    assert made.nodes["c"].ordered("sha256")[-1] == {"1": "cd" * 32}


def test_all_disks_that_are_too_small_are_reported_before_the_first_byte(copy):
    made = copy()
    for name in "bc":
        made.nodes[name].began = {"room": {"free": GB, "needed": SIZE, "path": "/models"}}
    with pytest.raises(StageError, match=r"b has 1.00 GB free at /models but needs 2.00 GB for weights") as caught:
        made.run()
    assert [each.node for each in (caught.value, *caught.value.others)] == ["b", "c"]
    assert all(node.ordered("from") == [] and node.orders[-1] == {"cancel": True} for node in made.nodes.values())


def test_a_node_without_a_reachable_source_is_reported_with_a_suggestion_and_the_others_complete(copy):
    made = copy(offline="c")
    for node in made.nodes.values():
        node.reaches = lambda address: address.startswith("10.1.")
    with pytest.raises(StageError, match="c: it cannot reach any node that has the weights") as caught:
        made.run()
    assert caught.value.hint == "ping from c to a, and sudo ufw status on both"
    assert made.nodes["c"].orders[-1] == {"end": True}
    assert set(made.job.arrived) == {"b"}


def test_a_node_that_fails_during_the_reachability_test_is_skipped(copy):
    made = copy()
    reached = made.nodes["b"].reaches

    def reaches(address):
        made.nodes["c"].lose()
        return reached(address)

    made.nodes["b"].reaches = reaches
    with pytest.raises(StageError, match="connection to c broke"):
        made.run()
    assert set(made.job.arrived) == {"b"}


def test_if_the_only_source_fails_during_the_reachability_test_no_node_waits_for_it(copy):
    made = copy()
    made.nodes["a"].reaches = lambda _: made.nodes["a"].say(failed="the disk fails", kind="other")
    with pytest.raises(StageError, match="the disk fails") as caught:
        made.run()
    assert (caught.value.node, caught.value.others) == ("a", ())
    assert [node.orders[-1] for node in made.nodes.values()] == [{"cancel": True}] * 3


def fails(text, kind):
    return lambda node: node.say(failed=text, kind=kind)


def test_all_failing_nodes_are_reported_and_the_others_get_the_files(copy):
    made = copy("abcd")
    made.nodes["b"].script = fails("no space left on device", "disk")
    made.nodes["d"].script = fails("no node sends model.safetensors", "missing")
    with pytest.raises(StageError, match="copy weights on b: the disk is full: no space left on device") as caught:
        made.run()
    assert [each.node for each in (caught.value, *caught.value.others)] == ["b", "d"]
    assert sorted(made.shown.notes) == [
        "b was skipped: no space left on device", "d was skipped: no node sends model.safetensors",
    ]  # fmt: skip
    assert set(made.job.arrived) == {"c"}
    states = {each.node: each.state for each in made.shown.transfers}
    assert states == {"b": "skipped", "c": "complete", "d": "skipped"}


def test_the_error_of_the_only_source_ends_the_copy(copy):
    made = copy("ab")
    made.nodes["a"].began = {"failed": "/models/m does not exist", "kind": "source"}
    with pytest.raises(StageError, match="/models/m does not exist") as caught:
        made.run()
    assert (caught.value.node, caught.value.others) == ("a", ())
    assert made.nodes["b"].ordered("from") == []


def test_a_source_with_a_broken_connection_is_not_an_error_if_the_others_have_everything(copy):
    made = copy("ab")

    def script(node):
        made.nodes["a"].lose()
        node.complete()

    made.nodes["b"].script = script
    assert set(made.run()) == {"b"}


def test_if_another_operator_takes_the_lease_all_workers_are_cancelled(copy):
    made = copy("ab")
    made.nodes["b"].script = lambda node: node.say(refused="epoch 7 is over")
    with pytest.raises(LeaseLost, match="b refused the change: epoch 7 is over"):
        made.run()
    assert made.nodes["a"].orders[-1] == {"cancel": True}


def test_ctrl_c_cancels_all_workers(copy):
    made = copy()

    def pressed(_):
        raise KeyboardInterrupt

    made.shown.transfer = pressed
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert all(node.orders[-1] == {"cancel": True} for node in made.nodes.values())


@pytest.mark.parametrize(
    "lie",
    [
        {"reached": {"a": ["10.9.9.9", "10.1.0.11"], "x": ["10.1.0.11"]}},
        {"ports": {}, "done": {"bytes": 5}},
        {"bytes": 10**15},
        {"from": "x", "medium": "tunnel"},
        {"token": None, "cert": None},
    ],
)
def test_a_node_with_false_statements_about_itself_affects_no_other(copy, lie):
    made = copy()
    made.nodes["b"].began = lie
    assert "c" in made.run()
