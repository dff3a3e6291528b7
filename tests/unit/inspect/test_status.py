"""``status``: one word for the cluster, and the truth about each node."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from sparkcluster.cli import status as cli_status
from sparkcluster.errors import HostTimeout
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.status import status
from sparkcluster.release import journal
from sparkcluster.runtime.secrets import keyed_hashes
from sparkcluster.spec.inventory import Api


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
        return status(Fleet(hosts), one.spec)

    return run


DIGEST = "sha256:" + "d1" * 32


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


def test_all_is_well(told, world):
    document = told(served(world()))
    assert (document["state"], document["release"], document["model"]) == ("serving", 3, "Qwen/Qwen3-8B")
    assert document["endpoint"] == document["groups"][0]["endpoint"]
    assert document["endpoint"].endswith("/v1")
    assert [(node["role"], node["state"], node["ray"]) for node in document["nodes"]] == [
        ("head", "running", "alive"),
        ("worker", "running", "alive"),
    ]


def test_the_image_is_shown_as_it_can_be_pulled(told, world, capsys):
    """Not by its local ID, which no registry has; a node that got a copy from another has no digest to show."""
    one = world()
    image = one.facts["beta"].image.model_dump() | {"digest": f"vllm/vllm-openai@{DIGEST}"}
    document = told(served(one.change("beta", image=image)))
    assert (document["image"], document["digest"]) == ("vllm/vllm-openai:v0.18.0", f"vllm/vllm-openai@{DIGEST}")
    cli_status.show(document)
    assert f"vllm/vllm-openai@{DIGEST}" in capsys.readouterr().out
    assert told(served(world()))["digest"] is None


@pytest.mark.parametrize(
    ("inventory", "is_open"),
    [
        ({"api": {"host": "management"}}, True),
        ({"api": {"host": "0.0.0.0"}}, True),
        ({"api": {"host": "management", "key": {"env": "K"}}}, False),
        ({"api": {"host": "management"}, "ignore": ["NET-020"]}, False),
        ({"api": {"host": "interconnect"}}, False),
        ({}, False),
    ],
)
def test_an_endpoint_that_is_open_without_a_key_is_a_warning_with_what_to_type(told, world, capsys, inventory, is_open):
    document = told(served(world(**inventory)))
    assert [group["warning"] is not None for group in document["groups"]] == [is_open]
    cli_status.show(cli_status.pasted(document, "my inventory.yaml"))
    shown = capsys.readouterr().out
    assert ("    warning: open to the network, and requires no key\n" in shown) is is_open
    assert ("    hint: sparkcluster key 'my inventory.yaml'\n" in shown) is is_open


def test_a_key_that_was_rotated_since_the_start_is_a_warning_with_what_to_type(told, world, capsys, monkeypatch):
    """The head asks itself with the key of then, so that the answer does not tell."""
    one = world(api={"host": "management", "key": {"env": "SPARK_API_KEY"}})
    plan = one.plan(3)
    one.run(plan).record(plan, 3, secrets={"default": keyed_hashes({"VLLM_API_KEY": "first"})})
    warnings = {}
    for key in ("first", "second", ""):
        monkeypatch.setenv("SPARK_API_KEY", key)
        document = told(one)
        assert document["state"] == "serving"
        warnings[key] = document["groups"][0]["warning"]
    assert warnings == {"first": None, "second": warnings["second"], "": None}
    monkeypatch.setenv("SPARK_API_KEY", "second")
    cli_status.show(cli_status.pasted(told(one), "mine.yaml"))
    shown = capsys.readouterr().out
    assert "warning: the API key of the inventory is not in use before a restart" in " ".join(shown.split())
    assert "hint: sparkcluster upgrade mine.yaml" in shown


def test_a_key_file_that_is_lost_while_its_key_is_required_is_a_warning(told, world, tmp_path, capsys):
    key, one = tmp_path / "key: of/it", world(api={"key": {"file": str(tmp_path / "key: of/it")}})
    plan = one.plan(3)
    one.run(plan).record(plan, 3, secrets={"default": keyed_hashes({"VLLM_API_KEY": "first"})})
    warning = told(one)["groups"][0]["warning"]
    assert warning.startswith(f"cannot read the API key from {key}: No such file")
    cli_status.show(cli_status.pasted(told(one), "my lab: two.yaml"))
    hint = "hint: sparkcluster key 'my lab: two.yaml' && sparkcluster upgrade 'my lab: two.yaml'"
    assert hint in capsys.readouterr().out
    key.parent.mkdir()
    key.write_text("first")
    assert told(one)["groups"][0]["warning"] is None


def test_a_key_that_was_made_since_the_start_and_another_playbook_are_warnings(told, world, monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_API_KEY", "first")
    one = world()
    plan = one.plan(3)
    one.run(plan).record(plan, 3, secrets={"default": keyed_hashes({})})
    assert told(one)["groups"][0]["warning"] is None
    keyed = one.spec.inventory.model_copy(update={"api": Api.model_validate({"key": {"env": "SPARK_API_KEY"}})})
    served, one.spec = one.spec, dataclasses.replace(one.spec, inventory=keyed)
    assert "is not in use before a restart" in told(one)["groups"][0]["warning"]
    absent = Api.model_validate({"key": {"file": str(tmp_path / "none")}})
    one.spec = dataclasses.replace(served, inventory=one.spec.inventory.model_copy(update={"api": absent}))
    assert told(one)["groups"][0]["warning"] is None  # what serves requires none
    other = served.playbook.model_copy(update={"name": "another"})
    one.spec = dataclasses.replace(served, playbook=other)
    warning = told(one)["groups"][0]["warning"]
    assert warning == f"it serves {served.playbook.name}, and the inventory names another: sparkcluster plan INVENTORY"


def test_ranks_that_run_and_do_not_answer_do_not_serve(told, world):
    document = told(served(world()), answers=False)
    assert (document["state"], document["endpoint"]) == ("degraded", None)
    assert "nothing listens" in document["groups"][0]["why"]
    assert document["nodes"][0]["ray"] == "unknown"


@pytest.mark.parametrize("there", [("alpha", "beta"), ("beta",)])
def test_what_is_left_of_a_recorded_release_is_not_orphaned(told, world, there):
    """Its ranks have all ended: the node was rebooted, or `down` did not reach it."""
    one = world()
    plan = one.plan(3)
    document = told(one.run(plan, *there, state="exited").record(plan, 3), answers=False)
    assert (document["state"], document["next"]) == ("degraded", "sparkcluster doctor INVENTORY")
    assert [group["state"] for group in document["groups"]] == ["degraded"]


def test_ranks_that_an_up_left_before_it_recorded_them_are_orphaned(told, world):
    """A terminal that was closed ends `up`: its ranks go on, whether an older release is recorded or none."""
    left = {**lease("up"), "held": False}
    one = world()
    one.run(one.plan(3)).change("alpha", lease=left)
    document = told(one)
    (group,) = document["groups"]
    assert (document["state"], document["next"]) == ("orphaned", "sparkcluster up INVENTORY")
    assert (group["state"], group["release"], group["endpoint"]) == ("orphaned", 3, None)
    assert group["why"] == "`up` by ann@desk ended before the model had answered"
    older = world()
    older.run(older.plan(4)).record(older.plan(3), 3).change("alpha", lease=left)
    document = told(older)
    assert (document["state"], document["groups"][0]["release"], document["release"]) == ("orphaned", 4, None)


def test_a_cluster_of_which_no_node_answers_is_unknown(told, world):
    document = told(served(world()), away=("alpha", "beta"))
    assert (document["state"], document["next"]) == ("unknown", "sparkcluster preflight INVENTORY")
    assert cli_status.headline(document) == "atlas: unknown, no node could be reached"


def test_what_an_engine_does_is_read_twice(world, capsys):
    one = served(world())
    samples = [
        {"at_s": 0.1, "generated": 100.0, "running": 1.0, "waiting": 0.0, "kv_cache": 0.1},
        {"at_s": 0.6, "generated": 120.0, "running": 2.0, "waiting": 1.0, "kv_cache": 0.12},
    ]
    memory = {"total_bytes": 128 * 10**9, "available_bytes": 28 * 10**9}
    hosts = {}
    for name, facts in one.facts.items():
        document = facts.model_dump(mode="json")
        document["ranks"] = [{**rank, "started_at": "2025-11-21T00:00:00.123456789Z"} for rank in document["ranks"]]
        seen = {
            "ranks": [],
            "counters": samples if name == "alpha" else None,
            "memory": {**document["memory"], **memory},
        }
        done = {"done": {"content": "x", "usage": None, "ttft_s": 0.1, "total_s": 0.2}}
        hosts[name] = FakeHost(name).program("ask", done).program("probe", document).program("observe", seen)
    document = status(Fleet(hosts), one.spec)
    (group,) = document["groups"]
    assert group["load"] == {"running": 2.0, "waiting": 1.0, "kv_cache": 0.12, "tokens_per_s": pytest.approx(40.0)}
    assert group["uptime_s"] == pytest.approx(1763690000.0 - 1763683200.1, abs=0.1)
    assert hosts["alpha"].requests[-1][1].get("brief", True)
    cli_status.show(document)
    out = capsys.readouterr().out
    assert "    up 1 h 53 min; requests: 2 running, 1 waiting; 40.0 tokens/s; KV cache 12 %" in out.splitlines()
    assert "100/128 GB" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_group_without_a_token_is_shown_before_its_limit(world, monkeypatch, capsys):
    """A hung engine must not keep all else that is known from the user for half a minute."""
    monkeypatch.setattr("sparkcluster.inspect.status.QUICK_S", 0.05)
    one, release = served(world()), threading.Event()

    def hangs(_):
        release.wait(20)
        return {"error": {"status": None, "kind": "timeout", "message": "no answer"}}

    hosts = {
        name: FakeHost(name).program("ask", hangs).program("probe", facts.model_dump(mode="json"))
        for name, facts in one.facts.items()
    }
    early = []

    def quick(document):
        early.append(document)
        release.set()

    document = status(Fleet(hosts), one.spec, quick)
    assert early[0]["waiting"] == ["default"]
    assert (early[0]["groups"][0]["why"], document["state"]) == (None, "degraded")
    cli_status.show(early[0])
    assert capsys.readouterr().out.startswith(
        "atlas: no token of default yet, release 3\n  default: waiting for a token"
    )


def test_a_dead_rank(told, world):
    one = world()
    plan = one.plan(3)
    document = told(one.run(plan, "alpha").run(plan, "beta", state="exited").record(plan, 3))
    assert document["state"] == "degraded"
    assert states(document) == {"alpha": "running", "beta": "exited"}


def test_a_node_that_is_away(told, world):
    document = told(served(world()), away=("beta",))
    assert document["state"] == "degraded"
    assert states(document)["beta"] == "HostTimeout"
    assert document["nodes"][1]["why"]


def test_a_node_that_cannot_tell_its_ranks_is_not_called_empty(told, world):
    document = told(world().change("beta", ranks={"unread": "the Docker engine does not answer"}))
    assert document["state"] == "degraded"
    assert (states(document)["beta"], document["nodes"][1]["why"]) == ("unknown", "the Docker engine does not answer")


@pytest.mark.parametrize("operation", ["up", "upgrade", "rollback"])
@pytest.mark.parametrize("running", [False, True])
def test_a_start_at_work(told, world, running, operation):
    one = world()
    one.change("alpha", lease=lease(operation))
    document = told(one.run(one.plan(3)) if running else one)
    assert document["state"] == "starting"
    assert document["lease"] == {"operator": "ann@desk", "operation": operation, "since": 1763690000.0, "epoch": 4}


def test_a_switch_that_was_cut_off_is_shown_with_what_ends_it_until_it_is_recorded(told, world, capsys):
    one = served(world())
    number = one.facts["alpha"].release.number
    switch = journal.document(one.spec, number=number + 1, source=number, groups=["default"], back=None)
    one.change("beta", switch=switch)
    document = told(one)
    assert {key: document["switch"][key] for key in ("source", "number", "back")} == {
        "source": number,
        "number": number + 1,
        "back": None,
    }
    cli_status.show(document)
    out = capsys.readouterr().out
    assert f"left a switch from release {number} unfinished" in out
    assert document["next"] == "sparkcluster upgrade INVENTORY --resume"
    one.change("beta", switch={**switch, "number": number})
    assert told(one)["switch"] is None


@pytest.mark.parametrize("operation", ["down", "stage", "measure", None])
def test_another_operation_under_way_is_named_and_starts_nothing(told, world, operation):
    idle = told(world().change("alpha", lease=lease(operation)))
    assert (idle["state"], idle["lease"]["operation"]) == ("down", operation)
    serving = told(served(world().change("alpha", lease=lease(operation))))
    assert serving["state"] == "serving"
    stopping = told(served(world().change("alpha", lease=lease(operation))), answers=False)
    assert (stopping["state"], stopping["groups"][0]["state"]) == ("degraded", "degraded")


def test_an_up_that_restarts_a_group_is_starting(told, world):
    document = told(served(world().change("alpha", lease=lease("up"))), answers=False)
    assert (document["state"], document["groups"][0]["state"]) == ("starting", "starting")


def test_a_staging_beside_what_serves_is_shown_and_changes_no_state(told, world, capsys, monkeypatch):
    monkeypatch.setattr(cli_status.time, "time", lambda: 1763690012.3)
    document = told(served(world().change("beta", staging=lease("stage"))))
    assert (document["state"], document["lease"]) == ("serving", None)
    assert document["staging"] == {
        "operator": "ann@desk", "operation": "stage", "since": 1763690000.0, "epoch": 4, "attached": True,
    }  # fmt: skip
    cli_status.show(document)
    assert "ann@desk is running stage on atlas, started 12 s ago" in capsys.readouterr().out.splitlines()
    both = told(world().change("alpha", lease=lease("up"), staging={**lease("up"), "since": 1763690007.0}))
    assert (both["state"], both["staging"]["operation"]) == ("starting", "up")
    cli_status.show(both)
    assert capsys.readouterr().out.count("ann@desk is running up on atlas") == 1, "one command with two leases"


def test_a_staging_that_goes_on_without_its_operator_is_shown(told, world, capsys):
    document = told(world().change("beta", staging={**lease("stage"), "held": False, "at_work": True}))
    assert (document["lease"], document["staging"]["attached"]) == (None, False)
    cli_status.show(document)
    assert "what ann@desk stages for atlas goes on without them" in capsys.readouterr().out.splitlines()
    over = told(world().change("beta", staging={**lease("stage"), "held": False}))
    assert over["staging"] is None


def test_people_read_who_does_what_since_when(told, world, capsys, monkeypatch):
    monkeypatch.setattr(cli_status.time, "time", lambda: 1763690012.3)
    cli_status.show(told(world().change("alpha", lease=lease("stage"))))
    assert capsys.readouterr().out.splitlines()[:2] == [
        "atlas: down",
        "ann@desk is running stage on atlas, started 12 s ago",
    ]


def test_a_head_that_is_being_stopped_is_not_ready(world):
    """Its ranks run, its API answers, and no request is accepted any more."""
    one = served(world())
    error = {"status": None, "kind": "unavailable", "message": "the engine aborted the request"}
    hosts = {}
    for name, facts in one.facts.items():
        hosts[name] = FakeHost(name).program("ask", {"error": error})
        hosts[name].program("probe", facts.model_dump(mode="json"))
    document = status(Fleet(hosts), one.spec)
    (group,) = document["groups"]
    assert (document["state"], document["endpoint"]) == ("degraded", None)
    assert (group["ready"], group["state"]) == (False, "degraded")
    assert "aborted the request" in group["why"]


@pytest.mark.parametrize(
    ("generated", "state", "why"), [((1, 2, 3), "serving", "busy"), ((1, 1, 1), "degraded", "prefill")]
)
def test_an_engine_that_works_for_others_serves_and_none_is_called_dead(world, monkeypatch, generated, state, why):
    """No token came within the limit, and the counters moved or did not."""
    monkeypatch.setattr("sparkcluster.endpoint.dead.MOVING_S", 0)
    one = served(world())
    late = {
        "error": {"status": None, "kind": "timeout", "message": "127.0.0.1:8000 gave no complete answer within 30 s"}
    }
    told = [{"counters": {"generated": value}, "context": 4096} for value in generated]
    hosts = {}
    for name, facts in one.facts.items():
        hosts[name] = FakeHost(name).program("ask", lambda _: [*told, late])
        hosts[name].program("probe", facts.model_dump(mode="json"))
    document = status(Fleet(hosts), one.spec)
    assert (document["state"], document["groups"][0]["ready"]) == (state, False)
    assert why in document["groups"][0]["why"]


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
    document = status(Fleet(hosts), one.spec)
    assert document["state"] == "degraded"
    assert [(group["name"], group["state"], group["ready"]) for group in document["groups"]] == [
        ("east", "serving", True), ("west", "down", False),
    ]  # fmt: skip
