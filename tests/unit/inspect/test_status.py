"""``status``: one word for the cluster, and the truth about each node."""

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
from tests.unit.sampled import DOCUMENT


@pytest.fixture
def told(world):
    """``told(world, answers=True, away=())``: the document."""

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


def test_nothing(told, world):
    document = told(world())
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
def test_an_endpoint_that_is_open_without_a_key_is_a_warning_with_what_to_type(told, world, capsys, inventory, is_open):
    document = told(served(world(**inventory)))
    assert [group["warning"] is not None for group in document["groups"]] == [is_open]
    hints.command_line = hints.Typed("my inventory.yaml")
    cli_status.show(hints.command_line.throughout(document))
    shown = capsys.readouterr().out
    said = "  warning: open to the network without a key: sparkcluster key 'my inventory.yaml'\n"
    assert (said in shown) is is_open


def test_ranks_that_run_and_do_not_answer_do_not_serve(told, world):
    document = told(served(world()), answers=False)
    assert (document["state"], document["endpoint"]) == ("degraded", None)
    assert "nothing listens" in document["groups"][0]["why"]
    assert document["nodes"][0]["ray"] == "unknown"


@pytest.mark.parametrize(
    ("changes", "away", "why"),
    [
        ({"state": "exited", "exit_code": 255}, (), "the rank on beta exited with code 255"),
        ({"state": "running"}, ("beta",), "beta did not answer within 10 s"),
        (None, (), "the rank on beta is gone"),
    ],
)
def test_the_first_line_says_why_a_cluster_is_degraded(told, world, capsys, changes, away, why):
    one = served(world())
    ranks = [rank.model_copy(update=changes) for rank in one.facts["beta"].ranks] if changes else []
    dead = [rank.model_copy(update={"state": "exited", "exit_code": 0}) for rank in one.facts["alpha"].ranks]
    document = told(
        one.change("beta", ranks=tuple(ranks)).change(
            "alpha", ranks=tuple(dead if changes else one.facts["alpha"].ranks)
        ),
        away=away,
    )
    assert document["why"] == why
    cli_status.show(document)
    assert capsys.readouterr().out.startswith(f"atlas  ● degraded: {why}   release 3\n")


def test_ranks_that_an_up_left_before_it_recorded_them_are_orphaned(told, world):
    """A terminal that was closed ends `up`: its ranks go on, whether an older release is recorded or none."""
    left = {**lease("up"), "held": False}
    one = world()
    one.run(one.plan(3)).change("alpha", lease=left)
    document = told(one)
    (group,) = document["groups"]
    assert (document["state"], document["next"]) == ("orphaned", "sparkcluster up INVENTORY")
    assert (group["state"], group["release"], group["endpoint"]) == ("orphaned", 3, None)
    assert group["why"] == "the command that started it ended before the model was ready"
    older = world()
    older.run(older.plan(4)).record(older.plan(3), 3).change("alpha", lease=left)
    document = told(older)
    assert (document["state"], document["groups"][0]["release"], document["release"]) == ("orphaned", 4, None)


def test_a_cluster_of_which_no_node_answers_is_unknown(told, world):
    document = told(served(world()), away=("alpha", "beta"))
    assert (document["state"], document["next"]) == ("unknown", "sparkcluster preflight INVENTORY")
    assert "".join(cli_status.headline(document)) == "atlas  ● unknown: no node could be reached"


def test_what_an_engine_does_is_read_twice(world, monkeypatch, capsys):
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


def test_a_node_that_cannot_tell_its_ranks_is_neither_empty_nor_unreachable(told, world, capsys):
    reason = "no such file or directory: /var/run/docker.sock"
    document = told(world().change("beta", ranks={"unread": reason}))
    why = f"Docker is not installed or not running on beta: {reason}"
    assert (document["state"], document["why"]) == ("degraded", why)
    assert (states(document)["beta"], document["nodes"][1]["why"]) == ("unknown", why)
    cli_status.show(document)
    row, line = capsys.readouterr().out.splitlines()[-2:]
    assert (row.split()[:3], line) == (["beta", "-", "unknown"], f"  {why}")


@pytest.mark.parametrize("operation", ["up", "upgrade"])
@pytest.mark.parametrize("running", [False, True])
def test_a_start_at_work(told, world, running, operation):
    one = world()
    one.change("alpha", lease=lease(operation))
    document = told(one.run(one.plan(3)) if running else one)
    assert document["state"] == "starting"
    assert document["lease"] == {"operator": "ann@desk", "operation": operation, "since": 1763690000.0, "epoch": 4}


def test_a_start_that_copies_first_has_the_lease_of_staging_alone(told, world):
    assert told(world().change("alpha", staging=lease("up")))["state"] == "starting"
    assert told(world().change("alpha", staging=lease("stage")))["state"] == "down"
    assert told(served(world().change("alpha", staging=lease("upgrade"))))["state"] == "serving"


def test_a_switch_that_was_cut_off_is_shown_with_what_ends_it_until_it_is_recorded(told, world, capsys):
    one = served(world())
    number = one.facts["alpha"].release.number
    switch = replacement.document(one.spec, number=number + 1, source=number, groups=["default"], back=None)
    one.change("beta", switch=switch)
    document = told(one)
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
    assert told(one)["interrupted"] is None


@pytest.mark.parametrize("operation", ["down", "stage"])
def test_another_operation_under_way_is_named_and_starts_nothing(told, world, operation):
    idle = told(world().change("alpha", lease=lease(operation)))
    assert (idle["state"], idle["lease"]["operation"]) == ("down", operation)
    serving = told(served(world().change("alpha", lease=lease(operation))))
    assert serving["state"] == "serving"
    stopping = told(served(world().change("alpha", lease=lease(operation))), answers=False)
    assert (stopping["state"], stopping["groups"][0]["state"]) == ("degraded", "degraded")


def test_a_group_that_did_not_come_up_is_down_beside_the_one_that_serves(world):
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
def test_what_its_guards_would_load_is_not_down(told, world, guard, word):
    one = served(world())
    one.spec = dataclasses.replace(one.spec, model="m", idle_s=600.0, gateway_node="alpha")
    for name in one.facts:
        one.change(name, ranks=[], enabled={"runs": True, "on_demand": True, **guard})
    document = told(one)
    assert document["state"] == word
    command = hints.Typed("home.yaml", model="m")(document["next"])
    assert command == (
        "sparkcluster load home.yaml m" if word == "on demand" else "sparkcluster up home.yaml --model m"
    )
