"""``status``: one word for the cluster, and the state of each node."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster import hints
from sparkcluster.cli import status_view as cli_status
from sparkcluster.errors import HostTimeout
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import vitals
from sparkcluster.inspect.cluster import see
from sparkcluster.inspect.status import status
from sparkcluster.release import replacement
from tests.unit.vitals_samples import DOCUMENT


@pytest.fixture
def status_document(world):
    """``status_document(world, answers=True, away=())``: the document."""

    def run(one, *, answers=True, away=()):
        def lost(name):
            raise HostTimeout(f"{name} did not answer within 10 s", node=name)

        done = {"done": {"content": "x", "usage": None, "ttft_s": 0.1, "total_s": 0.2}}
        error = {"error": {"status": None, "kind": "refused", "message": "nothing listens"}}
        hosts = {}
        for name, facts in one.facts.items():
            hosts[name] = FakeHost(name).program("ask", done if answers else error)
            document = facts.model_dump(mode="json")
            hosts[name].program("probe", lambda _, n=name, d=document: lost(n) if n in away else d)
        fleet = Fleet(hosts)
        return status(fleet, see(fleet, one.spec))

    return run


def lease(operation):
    return {"epoch": 4, "held": True, "operator": "ann@desk", "operation": operation, "since": 1763690000.0}


def served(one):
    plan = one.plan(3)
    return one.run(plan).record(plan, 3)


def states(document):
    return {node["name"]: node["state"] for node in document["nodes"]}


def test_a_cluster_without_ranks_is_down(status_document, world):
    document = status_document(world())
    assert (document["state"], document["endpoint"], document["release"]) == ("down", None, None)
    assert states(document) == {"alpha": "empty", "beta": "empty"}


@pytest.mark.parametrize(
    ("inventory", "is_open"),
    [
        ({"api": {"host": "management"}}, True),
        ({"api": {"host": "management", "key": {"env": "K"}}}, False),
        ({}, False),
    ],
)
def test_an_endpoint_open_without_a_key_is_a_warning_with_the_command_to_type(
    status_document, world, capsys, inventory, is_open
):
    document = status_document(served(world(**inventory)))
    assert [group["warning"] is not None for group in document["groups"]] == [is_open]
    hints.command_line = hints.CommandLine("my inventory.yaml")
    cli_status.show(hints.command_line.throughout(document))
    shown = capsys.readouterr().out
    said = "  warning: open to the network without a key: sparkcluster key 'my inventory.yaml'\n"
    assert (said in shown) is is_open


def test_running_ranks_that_do_not_answer_are_not_serving(status_document, world):
    document = status_document(served(world()), answers=False)
    assert (document["state"], document["endpoint"]) == ("degraded", None)
    assert "nothing listens" in document["groups"][0]["why"]
    assert document["nodes"][0]["ray"] == "unknown"


@pytest.mark.parametrize(
    ("changes", "away", "why"),
    [
        ({"state": "exited", "exit_code": 255}, (), "the rank on beta exited with code 255"),
        ({"state": "running"}, ("beta",), "beta did not answer within 10 s"),
        (None, (), "the rank on beta is missing"),
    ],
)
def test_the_first_line_gives_the_reason_of_a_degraded_cluster(status_document, world, capsys, changes, away, why):
    one = served(world())
    ranks = [rank.model_copy(update=changes) for rank in one.facts["beta"].ranks] if changes else []
    dead = [rank.model_copy(update={"state": "exited", "exit_code": 0}) for rank in one.facts["alpha"].ranks]
    document = status_document(
        one.change("beta", ranks=tuple(ranks)).change(
            "alpha", ranks=tuple(dead if changes else one.facts["alpha"].ranks)
        ),
        away=away,
    )
    assert document["why"] == why
    cli_status.show(document)
    assert capsys.readouterr().out.startswith(f"atlas  ● degraded: {why}   release 3\n")


def test_ranks_left_by_an_up_before_it_recorded_them_are_orphaned(status_document, world):
    """A closed terminal ends `up`: its ranks keep running, whether an older release is recorded or none."""
    left = {**lease("up"), "held": False}
    one = world()
    one.run(one.plan(3)).change("alpha", lease=left)
    document = status_document(one)
    (group,) = document["groups"]
    assert (document["state"], document["next"]) == ("orphaned", "sparkcluster up INVENTORY")
    assert (group["state"], group["release"], group["endpoint"]) == ("orphaned", 3, None)
    assert group["why"] == "the command that started it ended before the model was ready"
    older = world()
    older.run(older.plan(4)).record(older.plan(3), 3).change("alpha", lease=left)
    document = status_document(older)
    assert (document["state"], document["groups"][0]["release"], document["release"]) == ("orphaned", 4, None)


def test_a_cluster_without_an_answering_node_is_unknown(status_document, world):
    document = status_document(served(world()), away=("alpha", "beta"))
    assert (document["state"], document["next"]) == ("unknown", "sparkcluster preflight INVENTORY")
    assert "".join(cli_status.headline(document)) == "atlas  ● unknown: no node could be reached"


def test_engine_counters_are_read_twice(world, monkeypatch, capsys):
    monkeypatch.setattr(vitals, "_SOONEST_S", 0.0)
    one = served(world())
    counts = [
        {"generated": 100.0, "prompted": 0.0, "running": 1.0, "waiting": 0.0, "kv_cache": 0.1, "preemptions": 0.0},
        {"generated": 120.0, "prompted": 250.0, "running": 2.0, "waiting": 1.0, "kv_cache": 0.12, "preemptions": 0.0},
    ]
    samples = [
        {**DOCUMENT, "clock_s": 0.5 * at, "engines": {"atlas/default": {"clock_s": 0.5 * at, "counts": each}}}
        for at, each in enumerate(counts)
    ]
    memory = {"total_bytes": 128 * 10**9, "available_bytes": 28 * 10**9}
    hosts = {}
    for name, facts in one.facts.items():
        document = facts.model_dump(mode="json")
        document["ranks"] = [{**rank, "started_at": "2025-11-21T00:00:00.123456789Z"} for rank in document["ranks"]]
        document["memory"] |= memory
        done = {"done": {"content": "x", "usage": None, "ttft_s": 0.1, "total_s": 0.2}}
        hosts[name] = FakeHost(name).program("ask", done).program("probe", document).program("vitals", samples)
    fleet = Fleet(hosts)
    document = status(fleet, see(fleet, one.spec))
    (group,) = document["groups"]
    known = {"running": 2.0, "waiting": 1.0, "kv_cache": 0.12, "tokens_per_s": 40.0, "prompt_tokens_per_s": 500.0}
    assert group["load"] == group["load"] | known
    assert document["nodes"][1]["vitals"]["gpu"]["power_w"] == DOCUMENT["power_w"]
    assert group["uptime_s"] == pytest.approx(1763690000.0 - 1763683200.1, abs=0.1)
    cli_status.show(document)
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "atlas  ● serving   release 3 for 1 h 53 min"
    assert "  2 running, 1 waiting, 40.0 tokens/s, KV cache 12 %, prefill 500 tokens/s" in out.splitlines()
    assert "100.0 of 128.0 GB" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_node_that_cannot_list_its_ranks_is_neither_empty_nor_unreachable(status_document, world, capsys):
    reason = "no such file or directory: /var/run/docker.sock"
    document = status_document(world().change("beta", ranks={"unread": reason}))
    why = f"Docker is not installed or not running on beta: {reason}"
    assert (document["state"], document["why"]) == ("degraded", why)
    assert (states(document)["beta"], document["nodes"][1]["why"]) == ("unknown", why)
    cli_status.show(document)
    row, line = capsys.readouterr().out.splitlines()[-2:]
    assert (row.split()[:3], line) == (["beta", "-", "unknown"], f"  {why}")


def test_a_short_node_name_precedes_a_reason_that_contains_its_letters(status_document, world, capsys):
    document = status_document(world())
    document["nodes"][1] |= {"name": "b", "state": "unreachable", "why": "probe failed"}
    cli_status.show(document)
    assert capsys.readouterr().out.splitlines()[-1] == "  b: probe failed"


@pytest.mark.parametrize("operation", ["up", "upgrade"])
@pytest.mark.parametrize("running", [False, True])
def test_a_start_in_progress(status_document, world, running, operation):
    one = world()
    one.change("alpha", lease=lease(operation))
    document = status_document(one.run(one.plan(3)) if running else one)
    assert document["state"] == "starting"
    assert document["lease"] == {"operator": "ann@desk", "operation": operation, "since": 1763690000.0, "epoch": 4}


def test_a_start_that_copies_first_holds_only_the_staging_lease(status_document, world):
    assert status_document(world().change("alpha", staging=lease("up")))["state"] == "starting"
    assert status_document(world().change("alpha", staging=lease("stage")))["state"] == "down"
    assert status_document(served(world().change("alpha", staging=lease("upgrade"))))["state"] == "serving"


def test_an_interrupted_switch_is_shown_with_the_command_that_finishes_it_until_it_is_recorded(
    status_document, world, capsys
):
    one = served(world())
    number = one.facts["alpha"].release.number
    switch = replacement.document(one.spec, number=number + 1, source=number, groups=["default"], back=None)
    one.change("beta", switch=switch)
    document = status_document(one)
    assert {key: document["interrupted"][key] for key in ("source", "number", "back")} == {
        "source": number,
        "number": number + 1,
        "back": None,
    }
    cli_status.show(document)
    out = capsys.readouterr().out
    assert f"left an upgrade or rollback from release {number} unfinished" in out
    assert document["next"] == "sparkcluster upgrade INVENTORY --resume"
    one.change("beta", switch={**switch, "number": number})
    assert status_document(one)["interrupted"] is None


@pytest.mark.parametrize("operation", ["down", "stage"])
def test_another_running_operation_is_named_and_no_start_is_suggested(status_document, world, operation):
    idle = status_document(world().change("alpha", lease=lease(operation)))
    assert (idle["state"], idle["lease"]["operation"]) == ("down", operation)
    serving = status_document(served(world().change("alpha", lease=lease(operation))))
    assert serving["state"] == "serving"
    stopping = status_document(served(world().change("alpha", lease=lease(operation))), answers=False)
    assert (stopping["state"], stopping["groups"][0]["state"]) == ("degraded", "degraded")


def test_a_group_that_did_not_start_is_down_next_to_a_serving_one(world):
    pairs = [{"name": "east", "nodes": ["alpha", "beta"]}, {"name": "west", "nodes": ["gamma", "delta"]}]
    one = world("alpha beta gamma delta", groups=pairs)
    plan = one.plan(3)
    one.run(plan, "alpha", "beta").record(plan, 3, answered=["east"])
    done = {"done": {"content": "x", "usage": None, "ttft_s": 0.1, "total_s": 0.2}}
    hosts = {
        name: FakeHost(name).program("ask", done).program("probe", facts.model_dump(mode="json"))
        for name, facts in one.facts.items()
    }
    fleet = Fleet(hosts)
    document = status(fleet, see(fleet, one.spec))
    assert document["state"] == "degraded"
    assert [(group["name"], group["state"], group["ready"]) for group in document["groups"]] == [
        ("east", "serving", True), ("west", "down", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("guard", "word"),
    [({}, "on demand"), ({"stopped": True}, "down"), ({"runs": False}, "down"), ({"waits": "it gave up: why"}, "down")],
)
def test_a_model_that_its_guards_would_load_is_not_down(status_document, world, guard, word):
    one = served(world())
    one.spec = dataclasses.replace(one.spec, model="m", idle_s=600.0, gateway_node="alpha")
    for name in one.facts:
        one.change(name, ranks=[], enabled={"runs": True, "on_demand": True, **guard})
    document = status_document(one)
    assert document["state"] == word
    command = hints.CommandLine("home.yaml", model="m")(document["next"])
    assert command == (
        "sparkcluster load home.yaml m" if word == "on demand" else "sparkcluster up home.yaml --model m"
    )
