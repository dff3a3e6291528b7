"""``up`` and its state table: the action for each state, and the states it does not touch."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster.errors import (
    FoundErrors,
    Interrupted,
    LaunchError,
    LeaseHeld,
    NotServing,
    OtherPlan,
)
from sparkcluster.release import up as module
from sparkcluster.release.states import Options
from sparkcluster.release.upgrade import upgrade
from sparkcluster.runtime.lease import Lease
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.run import StageReport

from .conftest import FOUR, PAIRS, served

DEAD = {"problem": "engine-dead", "message": "the engine answers 500: EngineCore encountered an issue"}
BUSY = {"problem": "timeout", "message": "no complete answer within 180 s", "stalled_s": 1.0, "context": 4096}
HUNG = BUSY | {"stalled_s": 61.0}


def test_a_first_up_launches(up, world):
    done = up(world())
    assert (done.changed, done.number) == (True, 1)
    assert up.done == ["lease", "launch alpha beta"]


def test_a_node_is_probed_twice_with_changes_and_once_without(up, world):
    cluster = world(playbook={"env": {"A": "1"}})
    probed = lambda: {*up.probes.values()}  # noqa: E731
    up(cluster)
    assert probed() == {2}
    up(cluster)
    assert probed() == {1}
    cluster.spec = world(playbook={"env": {"A": "2"}}).spec
    up(cluster, command=upgrade)
    assert (probed(), up.done[-2:]) == ({2}, ["stop alpha beta", "launch alpha beta"])
    groups = world(FOUR, groups=PAIRS, playbook={"env": {"A": "1"}})
    up(groups)
    groups.spec = world(FOUR, groups=PAIRS, playbook={"env": {"A": "2"}}).spec
    up(groups, command=upgrade)
    assert (probed(), up.done[-2:]) == ({2}, ["stop gamma delta", "launch gamma delta"])


def test_a_guard_stays_down_during_a_start_and_after_a_failed_one(up, world):
    """It would start the previous release as soon as the lease is free; a new record ends that."""
    cluster = world().change("beta", enabled={"runs": True})
    with pytest.raises(LaunchError):
        up(cluster, fails={"default": LaunchError("the engine crashed at load", node="alpha")})
    assert up.done == ["lease", "stay-down beta", "launch alpha beta"]
    assert up.recorded == []


def test_a_serving_release_is_queried_and_left_unchanged(up, world):
    done = up(served(world()))
    assert (done.changed, done.number) == (False, 3)
    assert up.done == ["ask alpha"]


@pytest.mark.parametrize(("reply", "asked"), [(DEAD, 2), (HUNG, 1)])
def test_a_dead_release_is_replaced(up, world, reply, asked):
    cluster = served(world())
    done = up(cluster, answers={"alpha": reply})
    assert (done.changed, done.number) == (True, 4)
    assert up.done == [*["ask alpha"] * asked, "lease", "stop alpha beta", "launch alpha beta"]
    assert any("is dead" in note for note in up.report.notes)


NOT_DEAD = [
    BUSY,
    {"problem": "refused", "message": "nothing is listening at 127.0.0.1:8000"},
    {"text": "42"},
]


@pytest.mark.parametrize("reply", NOT_DEAD)
def test_a_release_that_is_not_dead_is_refused_with_the_observation_and_replaced_on_request(up, world, reply):
    changes = {"playbook": {"verify": {"expect": "204"}}}
    with pytest.raises(NotServing) as caught:
        up(served(world(**changes)), answers={"alpha": reply})
    assert (caught.value.exit_code, caught.value.node) == (1, "alpha")
    assert "it is not dead and was left running" in caught.value.message
    assert reply.get("message", "the answer") in caught.value.message
    assert "up inventory.yaml --replace; or sparkcluster down inventory.yaml" in caught.value.hint
    assert set(up.done) == {"ask alpha"}
    done = up(served(world(**changes)), answers={"alpha": reply}, options=Options(replace=True))
    assert (done.changed, up.done[-2:]) == (True, ["stop alpha beta", "launch alpha beta"])


def test_a_running_release_is_judged_by_its_record_and_not_by_an_edited_playbook(up, world):
    cluster = served(world(playbook={"verify": {"expect": "204"}}))
    edited = world(playbook={"verify": {"expect": "a riddle", "prompt": "?"}})
    edited.facts = cluster.facts
    assert up(edited).changed is False
    assert up.verify.expect == "204"
    assert any("verify in the playbook was edited since release 3" in note for note in up.report.notes)


def test_a_release_replaced_on_request_serves_during_checks_and_staging(up, world):
    other = world(playbook={"env": {"A": "1"}})
    cluster = world(playbook={"env": {"A": "2"}})
    cluster.run(other.plan(release=3)).record(other.plan(release=3), 3)

    def find(*_):
        up.done.append("stage")
        return []

    up.find = find
    assert up(cluster, options=Options(replace=True)).changed is True
    assert up.done == ["ask alpha", "stage", "lease", "stop alpha beta", "launch alpha beta"]
    broken = world(playbook={"env": {"A": "2"}})
    broken.run(other.plan(release=3)).record(other.plan(release=3), 3)
    broken.change("alpha", gpus={"unread": "nvidia-smi: no devices were found"})
    with pytest.raises(FoundErrors):
        up(broken, options=Options(replace=True))
    assert up.done == ["ask alpha"]


def test_the_staging_lease_is_taken_only_if_files_are_missing_and_released_before_the_start(up, world):
    lacks = Staging("weights", "m", ("alpha",), (("beta", "missing"),), (), 1, spec=world().spec)

    def find(*_):
        up.done.append("look")
        return [lacks]

    def bring(run, changer, stagings):
        up.done.append("stage")
        assert changer.kind == "staging"
        assert changer.epochs == {"alpha": 1, "beta": 1}
        assert run.lease("beta") == changer.lease("beta")
        return StageReport(stagings)

    up.find, up.bring = find, bring
    assert up(world()).changed is True
    assert up.done == ["look", "lease of staging", "stage", "lease", "end of staging", "launch alpha beta"]

    def held(kind):
        if kind == "staging":
            raise LeaseHeld("ann@desk (pid 7) is running stage on atlas")

    up.held = held
    with pytest.raises(LeaseHeld):
        up(world())
    assert up.done == ["look", "lease of staging"]


def test_the_start_lock_is_held_from_the_stop_until_the_answer_and_not_while_files_are_copied(up, world, monkeypatch):
    lacks = Staging("weights", "m", ("alpha",), (("beta", "missing"),), (), 1, spec=world().spec)
    up.find = lambda *_: [lacks]
    up.bring = lambda _run, _changer, stagings: up.done.append("stage") or StageReport(stagings)
    up.held = lambda kind: up.done.append("start lock") if kind == "start" else None
    close = Lease.close
    monkeypatch.setattr(
        Lease, "close", lambda lock: (lock.changer.kind == "start" and up.done.append("let go"), close(lock))
    )
    up(served(world()), answers={"alpha": DEAD})
    at = up.done.index("start lock")
    assert up.done[at:] == ["start lock", "stop alpha beta", "launch alpha beta", "let go"]
    assert "stage" in up.done[:at]


def test_drift_is_reported_and_does_not_stop_a_group_that_answers(up, world, spark):
    for replace in (False, True):
        cluster = served(world())
        moved = spark({"enp1s0f0np0": "192.168.177.99/24", "enP2p1s0f0np0": "192.168.178.12/24"})
        cluster.change("beta", interfaces=moved.model_dump()["interfaces"], hcas=moved.model_dump()["hcas"])
        done = up(cluster, options=Options(replace=replace))
        assert done.changed is replace
    cluster = served(world())
    cluster.change("beta", interfaces=moved.model_dump()["interfaces"], hcas=moved.model_dump()["hcas"])
    assert up(cluster).groups["default"].drift == ("beta: address 192.168.177.12 → 192.168.177.99",)
    (note,) = up.report.notes
    assert note.startswith("atlas: beta: address 192.168.177.12 → 192.168.177.99 since release 3 was started: ")
    assert "sparkcluster up inventory.yaml --replace " in note


def test_a_rotated_key_is_offered_and_applied_with_replace(up, world, monkeypatch):
    changes = {"api": {"key": {"env": "KEY"}}, "playbook": {"secrets": ["WANDB_KEY"]}}
    changes["permit"] = {"secrets": ["WANDB_KEY"]}
    monkeypatch.setenv("KEY", "first")
    monkeypatch.setenv("WANDB_KEY", "hf")
    cluster = world(**changes).staged()
    up(cluster)
    (document, _) = up.recorded
    assert "first" not in str(document)
    cluster.record(cluster.plan(1), 1)
    for name in cluster.facts:
        cluster.change(name, release={"number": 1, "plan_hash": document["plan_hash"], "record": document})
    assert up(cluster).changed is False
    monkeypatch.setenv("KEY", "second")
    with pytest.raises(OtherPlan, match="a different secret than the one set here") as caught:
        up(cluster)
    assert caught.value.lines == ("atlas: VLLM_API_KEY has a new value  (secrets: restart)",)
    assert (up.report.ended, up.report.begun) == (["connect", "check"], "")
    assert caught.value.hint.startswith("sparkcluster restart inventory.yaml   ")
    monkeypatch.delenv("KEY")
    assert up(cluster).changed is False
    monkeypatch.setenv("KEY", "second")
    assert up(cluster, options=Options(replace=True)).changed is True


def test_a_start_continues_with_already_started_ranks(up, world):
    cluster = world()
    done = up(cluster.run(cluster.plan(release=5)))
    assert (done.changed, done.number) == (True, 5)
    assert up.done == ["lease", "watch alpha beta"]


def test_leftovers_are_cleaned_first(up, world):
    cluster = world()
    done = up(cluster.run(cluster.plan(release=5), "alpha"))
    assert done.changed is True
    assert up.done == ["lease", "stop alpha", "launch alpha beta"]


def test_another_plan_that_answers_is_left_running_and_the_difference_reported(up, world):
    other = world(playbook={"env": {"A": "1"}})
    cluster = world(playbook={"env": {"A": "2"}})
    cluster.run(other.plan(release=3)).record(other.plan(release=3), 3)
    cluster.spec = dataclasses.replace(cluster.spec, selected={"playbook": "my model.yaml"})
    with pytest.raises(OtherPlan) as caught:
        up(cluster)
    assert caught.value.exit_code == 1
    switch = "sparkcluster upgrade inventory.yaml --playbook 'my model.yaml'   "
    assert caught.value.hint.startswith(switch)
    assert any("A" in line for line in caught.value.lines)
    assert "lease" not in up.done


def test_another_plan_is_described_by_model_image_and_first_setting(up, world):
    other = world(playbook={"args": {"max-model-len": 1024}})
    cluster = world(playbook={"image": "a/new:1", "args": {"max-model-len": 2048, "block-size": 32}, "env": {"A": "1"}})
    cluster.facts = served(other).facts
    with pytest.raises(OtherPlan) as caught:
        up(cluster)
    assert caught.value.message.splitlines()[1:] == [
        f"image {other.spec.reference} → a/new:1",
        "settings max-model-len 1,024 → 2,048; 2 more: sparkcluster plan inventory.yaml -v",
    ]


KEEP = (
    "   keeps the running release and saves it in inventory.yaml; or sparkcluster upgrade inventory.yaml   switches to"
)


@pytest.mark.parametrize(
    ("serves", "typed", "hint"),
    [
        ({"image": "own:1"}, {}, f"sparkcluster upgrade inventory.yaml --image own:1 --save{KEEP} inventory.yaml"),
        (
            {"args.a": "x y"},
            {},
            f"sparkcluster upgrade inventory.yaml --set 'args.a=x y' --save{KEEP} inventory.yaml",
        ),
        ({"playbook": "b"}, {}, f"sparkcluster upgrade inventory.yaml --playbook b --save{KEEP} inventory.yaml"),
        (
            {},
            {"playbook": "t"},
            "sparkcluster upgrade inventory.yaml --playbook t   switches to --playbook t",
        ),
        ({}, {}, "sparkcluster upgrade inventory.yaml   switches to inventory.yaml"),
    ],
)
def test_the_running_release_can_be_kept_with_all_its_options(up, world, serves, typed, hint):
    other, cluster = (world(playbook={"env": {"A": each}}) for each in "12")
    written = {"playbook": cluster.spec.inventory.playbook}
    other.spec = dataclasses.replace(other.spec, selected={**written, **serves})
    cluster.run(other.plan(release=3)).record(other.plan(release=3), 3)
    for name in cluster.facts:
        release = cluster.facts[name].release.model_dump()
        release["record"]["groups"]["default"]["selected"] = {**written, **serves}
        cluster.change(name, release=release)
    cluster.spec = dataclasses.replace(cluster.spec, selected={**written, **typed})
    with pytest.raises(OtherPlan) as caught:
        up(cluster)
    assert caught.value.hint == hint


def test_another_plan_without_a_record_is_replaced_only_on_request(up, world):
    cluster = world(playbook={"env": {"A": "1"}})
    edited = world(playbook={"env": {"A": "2"}})
    edited.facts = cluster.run(cluster.plan(release=3)).facts
    with pytest.raises(OtherPlan, match="an unrecorded plan") as caught:
        up(edited)
    assert "not in any readable record" in caught.value.lines[0]
    assert "up inventory.yaml --replace" in caught.value.hint, "no rollback target is recorded"
    assert up.done == []
    assert up(edited, options=Options(replace=True)).changed is True
    assert up.done == ["lease", "stop alpha beta", "launch alpha beta"]


def test_ranks_of_another_state_directory_are_refused(up, world):
    cluster = world()
    cluster.run(cluster.plan(), "beta", **{"io.sparkcluster.state_dir": "/srv/other"})
    with pytest.raises(LaunchError, match="belongs to a cluster of this name with state_dir /srv/other") as caught:
        up(cluster)
    assert caught.value.node == "beta"
    assert "stop" not in up.done


def test_a_node_that_cannot_list_its_ranks_does_not_prevent_a_stop_on_the_others(up, world):
    cluster = served(world()).change("beta", ranks={"unread": "the Docker engine does not answer"})
    with pytest.raises(FoundErrors) as caught:
        up(cluster)
    (finding,) = [each for each in caught.value.findings if each.severity == "error"]
    assert (finding.code, finding.node) == ("HOST-001", "beta")
    assert finding.summary == "Docker on beta does not answer: the Docker engine does not answer"
    assert up.done == []


def test_an_error_ends_up_before_the_lease(up, world):
    with pytest.raises(FoundErrors) as caught:
        up(world().change("beta", infiniband_devices=False))
    assert ("NET-010", "beta") in {(finding.code, finding.node) for finding in caught.value.findings}
    assert up.done == []


def test_ctrl_c_during_staging_reports_that_nothing_was_started(up, world):
    def interrupt(*_):
        raise KeyboardInterrupt

    up.find = interrupt
    with pytest.raises(Interrupted, match=r"^interrupted; no rank was started$") as caught:
        up(world())
    assert (caught.value.exit_code, caught.value.step) == (130, "copy")


# ------------------------------------------------------------------------------------------- several groups


def half_running(world, *, state=None):
    """Two groups with release 3 recorded, and only east running; ranks of west in ``state``."""
    cluster = world(FOUR, groups=PAIRS)
    plan = cluster.plan(release=3)
    cluster.record(plan, 3).run(plan, "alpha", "beta")
    return cluster.run(plan, "gamma", "delta", state=state) if state else cluster


def test_a_dead_group_is_restarted_and_the_other_is_unchanged(up, world):
    done = up(half_running(world, state="exited"))
    assert (done.changed, done.number) == (True, 4)
    assert up.done == ["ask alpha", "lease", "stop gamma delta", "launch gamma delta"]
    groups = up.recorded[0]["groups"]
    assert {name: group["release"] for name, group in groups.items()} == {"east": 3, "west": 4}
    names = [node["containers"][0]["name"].split("-")[2] for node in up.recorded[0]["plan"]["nodes"].values()]
    assert names == ["3", "3", "4", "4"]
    assert len(up.recorded) == 4, "every node has the record"
    image = "sha256:" + "5a" * 32
    kept = sorted((rank["release"], rank["image"], rank["env_file"].split("/")[-2]) for rank in up.ranks)
    ranks = [(3, "alpha"), (3, "beta"), (4, "delta"), (4, "gamma")]
    assert kept == [(release, image, f"sparkcluster-atlas-{release}-{node}") for release, node in ranks]


def test_a_failing_group_leaves_the_other_recorded_and_the_next_up_restarts_only_it(up, world):
    cluster = world(FOUR, groups=PAIRS)
    with pytest.raises(LaunchError, match=r"^the rank on delta ended; east serves as release 1$") as caught:
        up(cluster, fails={"west": LaunchError("the rank on delta ended", node="delta")})
    assert caught.value.exit_code == 1
    (document, *_) = up.recorded
    assert [rank and rank["release"] for rank in up.ranks].count(None) == 2, "a release that never answered is not kept"
    assert {name: group["verified"] for name, group in document["groups"].items()} == {"east": True, "west": False}
    for name in cluster.facts:
        cluster.change(name, release={"number": 1, "plan_hash": document["plan_hash"], "record": document})
    done = up(cluster)
    assert (done.changed, done.number) == (True, 2)
    assert up.done == ["ask alpha", "lease", "launch gamma delta"]


def test_a_busy_group_is_left_running_and_does_not_prevent_a_restart_of_the_dead_one(up, world):
    cluster = half_running(world)
    with pytest.raises(NotServing, match=r"east does not answer as its release expects: .*; it is not dead"):
        up(cluster, answers={"alpha": BUSY})
    assert up.done == ["ask alpha", "lease", "launch gamma delta"]
    assert {name: group["verified"] for name, group in up.recorded[0]["groups"].items()} == {"east": True, "west": True}


GUARDED = {"runs": True, "on_demand": True}


def on_demand(cluster, **guard):
    """``cluster`` as a model on demand, with matching guards."""
    cluster.spec = dataclasses.replace(cluster.spec, model="m", idle_s=600.0, gateway_node="alpha")
    for name in cluster.facts if guard else ():
        cluster.change(name, enabled=guard)
    return cluster


@pytest.fixture
def enabled(up, monkeypatch):
    """The enable, stop and disable actions of ``up``."""
    calls = []

    def disable(*_):
        calls.append("disable" if not up.done or up.done[-1].startswith("ask") else "too late")
        for name in up.world.facts:
            up.world.change(name, enabled=None)

    monkeypatch.setattr(module, "load_on_demand", lambda *_, yes: calls.append("enable and stop"))
    monkeypatch.setattr(module, "disable", disable)
    return calls


def test_a_model_on_demand_is_started_once_and_then_left_as_it_is(up, world, enabled):
    cluster = on_demand(world(playbook={"env": {"A": "1"}}))
    up(cluster)
    assert (up.done, enabled) == (["lease", "launch alpha beta"], ["enable and stop"])
    for name in cluster.facts:
        cluster.change(name, ranks=[], enabled=GUARDED)
    done = up(cluster)
    assert (up.done, done.changed, enabled) == ([], False, ["enable and stop"])
    cluster.spec = on_demand(world(playbook={"env": {"A": "2"}})).spec
    up(cluster)
    # Guards would stop a model without requests.
    assert (up.done, enabled[1:]) == (["lease", "launch alpha beta"], ["disable", "enable and stop"])


@pytest.mark.parametrize(
    "why", [{"stopped": True}, {"runs": False}, {"waits": "it gave up: why"}, {"on_demand": False}]
)
def test_a_model_that_its_guards_would_not_load_is_started(up, world, enabled, why):
    cluster = served(world())
    for name in cluster.facts:
        cluster.change(name, ranks=[])
    up(on_demand(cluster, **GUARDED | why))
    assert (up.done[-1], enabled[-1]) == ("launch alpha beta", "enable and stop")


def test_a_model_loaded_by_its_guard_is_kept_unless_it_is_now_always_on(up, world, enabled):
    lease = {"epoch": 4, "held": True, "operator": "the guard on alpha", "operation": "restart"}
    cluster = on_demand(served(world()), **GUARDED).change("alpha", lease=lease)
    up(cluster, answers={"alpha": {"problem": "refused", "message": "nothing listens"}})
    assert (up.done, enabled) == (["ask alpha"], [])
    cluster.change("alpha", lease=None).spec = world().spec
    up(cluster)
    assert (up.done, enabled) == (["ask alpha"], ["disable"])


def test_with_models_on_demand_guards_are_installed_and_nothing_starts_while_one_is_loaded(up, world, monkeypatch):
    enabled = []
    monkeypatch.setattr(module, "enable", lambda *_, yes: enabled.append(list(up.done)))
    options, loaded = Options(on_demand={"atlas-coder": "coder"}), {"io.sparkcluster.cluster": "atlas-coder"}
    coder = {"name": "sparkcluster-atlas-coder", "state": "running", "labels": loaded}
    cluster = world().change("beta", ranks=[coder])
    with pytest.raises(LaunchError, match="while coder is loaded on its nodes") as caught:
        up(cluster, options=options)
    assert caught.value.hint.startswith("sparkcluster unload INVENTORY coder; ")
    assert up.done == []
    up(cluster.change("beta", ranks=[]), options=options)
    for name in cluster.facts:
        cluster.change(name, enabled={"runs": True})
    cluster.change("beta", ranks=[*cluster.facts["beta"].model_dump()["ranks"], coder])
    up(cluster, options=options)
    assert enabled == [["lease", "launch alpha beta"]]
