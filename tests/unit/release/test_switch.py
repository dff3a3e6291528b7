"""A switch to another release: checked before, rolled back if it fails, and finished by the next operator if interrupted."""

from __future__ import annotations

import dataclasses
import json
import tarfile

import pytest

from sparkcluster import exit_codes
from sparkcluster.errors import (
    Interrupted,
    LaunchError,
    LeaseLost,
    OtherPlan,
    PlanError,
    RolledBack,
    SparkclusterError,
    StageError,
    UsageError,
)
from sparkcluster.facts.base import read
from sparkcluster.plan.switch import pending
from sparkcluster.release import replacement
from sparkcluster.release.states import Desired, Options
from sparkcluster.release.up import up as switched
from sparkcluster.release.upgrade import restart, resume, rollback, upgrade
from sparkcluster.runtime.lease import Lease
from sparkcluster.runtime.secrets import keyed_hashes
from sparkcluster.staging.plan import find_missing

from .conftest import FOUR, PAIRS, served, up_once

BROKEN = "the engine crashed at load"


class Killed(BaseException):
    """The controller ends abruptly."""


@pytest.fixture
def switching(world):
    """``switching(names, **inventory)``: a world whose playbook was edited since release 3, which serves."""

    def make(names="alpha beta", **inventory):
        old = world(names, playbook={"env": {"A": "1"}}, **inventory)
        cluster = world(names, playbook={"env": {"A": "2"}}, **inventory)
        plan = old.plan(release=3)
        old.run(plan).record(plan, 3)
        cluster.facts, cluster.histories, cluster.secrets = old.facts, old.histories, old.secrets
        return cluster

    return make


def acts(up):
    """Actions on ranks."""
    return [each for each in up.done if each.split()[0] in {"stop", "launch", "watch"}]


def value(cluster, node="alpha"):
    """The value of variable A in a node's recorded release, and the release's number."""
    release = read(cluster.facts[node].release)
    return release.record["plan"]["nodes"][node]["env"]["A"], release.number


def running(cluster):
    """The release numbers of the ranks, by node."""
    return {
        name: [rank.labels["io.sparkcluster.release"] for rank in node.ranks] for name, node in cluster.facts.items()
    }


def fails_with(wanted, error=BROKEN):
    """Ranks with variable A = ``wanted`` do not start."""

    def outcome(launch):
        node = next(iter(launch.plan.nodes.values()))
        return LaunchError(error, node=node.node) if node.env["A"] == wanted else None

    return outcome


def test_a_switch_stages_first_then_replaces_and_is_recorded(up, switching):
    cluster = switching()
    done = up(cluster, command=upgrade)
    assert (done.changed, done.source, done.number) == (True, 3, 4)
    assert value(cluster) == ("2", 4)
    assert [node.switch for node in cluster.facts.values()] == [None, None]
    assert acts(up) == ["stop alpha beta", "launch alpha beta"]
    assert done.downtime_s > 0


def test_a_failing_release_is_rolled_back(up, switching):
    cluster = switching()
    with pytest.raises(RolledBack) as caught:
        up(cluster, command=upgrade, fails=fails_with("2"))
    assert caught.value.exit_code == exit_codes.ROLLED_BACK
    assert caught.value.message == f"{BROKEN}; release 3 serves again, as release 4"
    assert value(cluster) == ("1", 4)
    assert up.done[-2:] == ["launch alpha beta", "launch alpha beta"]
    assert [node.switch for node in cluster.facts.values()] == [None, None]
    # the start of the new release is marked as failed, not the steps of the rollback
    assert [step for step in up.report.ended if step.endswith("!")] == ["start!"]
    assert (up.report.ended[-2:], up.report.begun) == (["start", "verify"], "")


def test_no_other_start_happens_between_a_failed_release_and_its_rollback(up, switching, monkeypatch):
    cluster, close = switching(), Lease.close
    up.held = lambda kind: up.done.append("start lock") if kind == "start" else None
    monkeypatch.setattr(
        Lease, "close", lambda lock: (lock.changer.kind == "start" and up.done.append("let go"), close(lock))
    )
    with pytest.raises(RolledBack):
        up(cluster, command=upgrade, fails=fails_with("2"))
    acted = [each for each in up.done if each.startswith(("start lock", "let go", "launch"))]
    assert acted == ["start lock", "launch alpha beta", "launch alpha beta", "let go"]


def test_without_rollback_the_failure_remains_with_a_bundle(up, switching, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cluster = switching()
    with pytest.raises(LaunchError, match=BROKEN) as caught:
        up(cluster, command=upgrade, fails=fails_with("2"), options=Options(rollback=False))
    assert up.left == {"default": True}
    path = tmp_path / "sparkcluster/failed/atlas/bundle.tar.gz"
    assert caught.value.hint == f"bundle: {path}; sparkcluster rollback INVENTORY 3   rolls back to release 3"
    with tarfile.open(path) as archive:
        assert any(name.endswith("doctor.json") for name in archive.getnames())


def test_a_switch_that_fails_before_it_begins_leaves_the_serving_release_unchanged(up, switching):
    cluster = switching()

    def full(*_, **__):
        raise StageError("no space left on device", node="beta", step="copy")

    up.find = full
    with pytest.raises(StageError, match="no space"):
        up(cluster, command=upgrade)
    assert acts(up) == []


def test_if_the_rollback_fails_too_the_command_to_type_is_shown(up, switching):
    cluster = switching()
    with pytest.raises(LaunchError) as caught:
        up(cluster, command=upgrade, fails=lambda _: LaunchError(BROKEN, node="alpha"))
    assert "rolling back to release 3 failed too" in caught.value.message
    assert caught.value.hint == "sparkcluster rollback INVENTORY 3"
    assert caught.value.exit_code == exit_codes.FAILED
    done = up(cluster, command=resume)
    assert (done.number, value(cluster)) == (4, ("1", 4))


def test_ctrl_c_after_the_old_release_was_stopped_rolls_back(up, switching):
    cluster = switching()
    outcome = [Interrupted("interrupted", step="start"), None]
    with pytest.raises(Interrupted, match="release 3 serves again, as release 4") as caught:
        up(cluster, command=upgrade, fails=lambda _: outcome.pop(0))
    assert caught.value.exit_code == exit_codes.INTERRUPTED
    assert value(cluster) == ("1", 4)


def test_after_losing_the_lease_nothing_is_rolled_back(up, switching):
    cluster = switching()
    with pytest.raises(LeaseLost):
        up(cluster, command=upgrade, fails=lambda _: LeaseLost("another operator has the lease"))
    assert up.done.count("launch alpha beta") == 1


STRANGE = {
    "image": "stranger/image:1", "setup": ["pip install x"], "env": {"A": "1", "LD_PRELOAD": "/x.so"},
}  # fmt: skip


def written_by_the_node(cluster, node="alpha", **more):
    """The record on ``node`` has another playbook than the operator's."""
    release = read(cluster.facts[node].release)
    edited = json.loads(json.dumps(release.record))
    edited["groups"]["default"]["playbook"] |= STRANGE
    edited["groups"]["default"] |= more
    cluster.change(node, release={"number": 3, "plan_hash": release.plan_hash, "record": edited})


ON_RECORDS = {"rollback": lambda f, s, o, r: rollback(f, s, 3, o, r), "restart": restart, "upgrade": upgrade}


@pytest.mark.parametrize("command", [*ON_RECORDS, "resume"])
def test_a_record_written_by_a_node_runs_nowhere_before_it_was_shown_and_accepted(up, switching, command):
    cluster = switching()
    if command == "resume":
        switch = replacement.document(cluster.spec, number=4, source=3, groups=["default"], back=None)
        switch["playbook"] |= STRANGE
        for node in cluster.facts:
            cluster.change(node, switch=json.loads(json.dumps(switch)))
    else:
        written_by_the_node(cluster, bundled=True)
    run = ON_RECORDS.get(command, resume)
    with pytest.raises(UsageError, match="not accepted yet: image, setup, variable") as caught:
        up(cluster, command=run)
    assert "--yes" in caught.value.hint
    assert not {"lease", "lease of staging"} & {*up.done}
    assert acts(up) == []
    done = up(cluster, command=run, options=Options(yes=True))
    shown = "\n".join(up.report.notes)
    assert all(text in shown for text in ("stranger/image:1", "pip install x", "LD_PRELOAD=/x.so")), shown
    assert done.changed
    assert "/bundled/" not in str(up.recorded), "shipped playbooks have separate compile caches"


def test_the_image_in_a_nodes_record_needs_consent_unless_it_was_started_from_this_machine(up, switching):
    cluster = switching()
    other = "sha256:" + "66" * 32
    release = read(cluster.facts["alpha"].release)
    edited = json.loads(json.dumps(release.record))
    edited["groups"]["default"]["image"]["build"] = other
    cluster.change("alpha", release={"number": 3, "plan_hash": release.plan_hash, "record": edited})
    for command in ON_RECORDS.values():
        with pytest.raises(
            UsageError, match=f"build {other} of .*v0.18.0 was never started from this machine; not accepted"
        ):
            up(cluster, command=command)
        assert acts(up) == []


def test_an_automatic_rollback_asks_nothing_even_if_the_record_changes_during_the_upgrade(up, switching):
    """It was read and accepted before anything was stopped."""
    cluster = switching()
    up.tick = lambda event: written_by_the_node(cluster) if event == "stop" else None
    with pytest.raises(RolledBack):
        up(cluster, command=upgrade, fails=fails_with("2"))
    assert value(cluster) == ("1", 4)
    assert "/x.so" not in str(up.recorded[-1])


@pytest.mark.parametrize("command", ON_RECORDS)
def test_a_node_that_was_off_causes_one_warning_and_the_heads_record_is_used(up, switching, command):
    cluster = switching()
    before = read(cluster.facts["beta"].release)
    up(cluster, command=upgrade)
    cluster.change("beta", release=before.model_dump())
    cluster.histories["beta"] = {3: before.record}
    up(cluster, command=ON_RECORDS[command])
    warnings = [note for note in up.report.notes if note.startswith("warning:")]
    used = "warning: beta: record of release 4 is missing or different; using the record of alpha"
    assert warnings == ([] if command == "upgrade" else [used]), "the running release is recorded again"
    assert value(cluster)[0] == ("1" if command == "rollback" else "2")
    assert len({read(node.release).number for node in cluster.facts.values()}) == 1


@pytest.mark.parametrize("answer", [{"unread": "nvidia-container-cli: requirement error"}, {"gpus": 0}])
def test_nothing_is_stopped_if_a_container_of_the_image_has_no_gpu(up, switching, answer):
    cluster = switching()
    up.gpus = {"beta": answer}
    with pytest.raises(LaunchError, match=r"has no GPU on beta: (nvidia-container-cli: req|nvidia-smi lists none)"):
        up(cluster, command=upgrade)
    assert acts(up) == []
    assert value(cluster) == ("1", 3)


def test_a_manual_rollback_works_and_a_repeated_one_changes_nothing(up, switching):
    cluster = switching()
    up(cluster, command=upgrade)

    def to(number):
        return lambda fleet, spec, options, report: rollback(fleet, spec, number, options, report)

    done = up(cluster, command=to(3))
    assert (done.changed, done.source, done.number) == (True, 4, 5)
    assert value(cluster) == ("1", 5)
    assert up(cluster, command=to(3)).changed is False
    with pytest.raises(UsageError, match="no node has a readable record of release 9"):
        up(cluster, command=to(9))


@pytest.fixture
def staging(up):
    """Missing parts of the image that were found; nothing is copied."""
    found = []

    def find(run, spec, *_):
        found.append(find_missing(run.facts, run.topology, spec, "image"))
        return [found[-1]]

    up.find = find
    return found


OTHER = {"id": "sha256:" + "ee" * 32, "layers": ["sha256:" + "ef" * 32]}


def other_image(cluster, node):
    """The name of the image refers to another one on ``node``."""
    cluster.change(node, image=cluster.facts[node].image.model_dump() | OTHER)


def test_a_rollback_uses_the_recorded_image(up, switching, staging):
    """Even if the head's tag refers to another image: that node gets the image of the others."""
    cluster = switching()
    up(cluster, command=upgrade)
    other_image(cluster, "alpha")
    back = {"command": lambda f, s, o, r: rollback(f, s, 3, o, r), "options": Options(rollback=False)}
    with pytest.raises(PlanError, match="before every node has the image"):
        up(cluster, **back)
    assert (staging[-1].sources, staging[-1].missing) == (("beta",), (("alpha", "has another image with this name"),))
    assert acts(up) == []
    other_image(cluster, "beta")
    with pytest.raises(StageError, match="the image of release 3 was removed from all nodes"):
        up(cluster, **back)
    assert acts(up) == []


def test_a_rebuilt_tag_is_another_plan_that_upgrade_starts(up, world, staging):
    cluster = served(world())
    cluster.secrets = {node: {3} for node in cluster.facts}
    ran = cluster.facts["alpha"].image.id
    for node in cluster.facts:
        other_image(cluster, node)
    with pytest.raises(OtherPlan, match=f"every node: image: {ran[7:19]} → {'ee' * 6}"):
        up(cluster)
    assert up(cluster, command=upgrade, options=Options(rollback=False)).number == 4
    assert up.recorded[-1]["groups"]["default"]["image"]["ids"] == dict.fromkeys(cluster.facts, OTHER["id"])


def test_the_rollback_target_is_the_last_different_release(up, switching, world):
    cluster = switching()
    with pytest.raises(UsageError, match="no rollback target"):
        up(cluster, command=lambda f, s, o, r: rollback(f, s, None, o, r))
    up(cluster, command=upgrade)
    assert up(cluster, command=lambda f, s, o, r: rollback(f, s, None, o, r)).number == 5
    assert value(cluster) == ("1", 5)
    up(cluster, command=lambda f, s, o, r: rollback(f, s, None, o, r))
    assert value(cluster) == ("2", 6)


def test_a_release_started_by_bench_is_not_a_rollback_target(up, switching):
    """With its A, B and A the rollback target is the release before them; each can be chosen by number."""

    def benched(fleet, spec, options, report):
        switched(fleet, Desired(spec, dataclasses.replace(options, replace=True), "bench"), report)
        return rollback(fleet, spec, 3, options, report, operation="bench")

    cluster = switching()
    assert up(cluster, command=benched).number == 5
    assert [each["operation"] for each in up.recorded[::2]] == ["bench", "bench"]
    with pytest.raises(UsageError, match="no rollback target"):
        up(cluster, command=lambda f, s, o, r: rollback(f, s, None, o, r))
    assert up(cluster, command=lambda f, s, o, r: rollback(f, s, 4, o, r)).number == 6
    assert value(cluster) == ("2", 6)


def test_a_bench_killed_during_its_switch_is_finished_with_the_previous_release(up, switching):
    def benched(fleet, spec, options, report):
        return switched(fleet, Desired(spec, dataclasses.replace(options, replace=True), "bench"), report)

    cluster = switching()
    up.tick = lambda event: (_ for _ in ()).throw(Killed) if event == "launch" else None
    with pytest.raises(Killed):
        up(cluster, command=benched)
    up.tick = lambda event: None
    assert up(cluster, command=resume).number == 4
    assert value(cluster) == ("1", 4)


def test_a_rolled_back_release_is_not_a_rollback_target_even_with_reordered_arguments(up, world):
    """A restored release is started from its record, whose keys are sorted."""
    args = {"max-num-seqs": 4, "gpu-memory-utilization": 0.5}
    first, second = (world(playbook={"args": args, "env": {"A": str(number)}}) for number in (1, 2))
    plan = first.plan(release=3)
    first.run(plan).record(plan, 3)
    second.facts, second.histories, second.secrets = first.facts, first.histories, first.secrets
    up(second, command=upgrade)
    second.spec = world(playbook={"args": args, "env": {"A": "3"}}).spec
    with pytest.raises(RolledBack):
        up(second, command=upgrade, fails=fails_with("3"))
    assert value(second) == ("2", 5)
    assert up(second, command=lambda f, s, o, r: rollback(f, s, None, o, r)).desired.release.number == 3
    assert value(second)[0] == "1"


def test_a_restart_starts_the_recorded_release_whatever_the_inventory_says(up, switching):
    cluster = switching()
    done = up(cluster, command=restart)
    assert acts(up) == ["stop alpha beta", "launch alpha beta"]
    assert (value(cluster), done.desired.release.number) == (("1", 4), 3)
    document = up.recorded[-1]
    assert (document["operation"], document["restores"]) == ("restart", 3)


def test_a_restart_prevents_guards_from_starting_stopped_ranks_and_updates_them_afterwards(up, switching):
    cluster = switching().change("beta", enabled={"runs": True})
    up(cluster, command=restart)
    assert [each for each in up.done if each.split()[0] in {"lease", "stop", "stay-down", "launch"}] == [
        "lease", "stop alpha beta", "stay-down beta", "launch alpha beta",
    ]  # fmt: skip
    assert up.starts["beta"]["ranks"]


def test_a_failed_restart_is_retried_once(up, switching):
    cluster, tries = switching(), iter([LaunchError(BROKEN, node="alpha"), None])
    with pytest.raises(RolledBack, match="release 3 serves again, as release 4") as caught:
        up(cluster, command=restart, fails=lambda _: next(tries))
    assert caught.value.exit_code == exit_codes.ROLLED_BACK
    assert value(cluster)[0] == "1"


def test_groups_are_switched_one_after_the_other(up, switching):
    cluster = switching(FOUR, groups=PAIRS)
    done = up(cluster, command=upgrade)
    assert done.number == 5
    assert acts(up) == ["stop alpha beta", "launch alpha beta", "stop gamma delta", "launch gamma delta"]
    record = read(cluster.facts["delta"].release).record
    assert {name: group["release"] for name, group in record["groups"].items()} == {"east": 4, "west": 5}


@pytest.mark.parametrize("broken", ["east", "west"])
def test_the_first_failing_group_rolls_back_the_earlier_ones(up, switching, broken):
    cluster = switching(FOUR, groups=PAIRS)
    new = fails_with("2")
    with pytest.raises(RolledBack):
        up(cluster, command=upgrade, fails=lambda launch: new(launch) if launch.group == broken else None)
    assert {value(cluster, node)[0] for node in cluster.facts} == {"1"}
    if broken == "east":
        assert "stop gamma delta" not in up.done


COMMANDS = {"resume": resume, "up": up_once, "rollback": lambda f, s, o, r: rollback(f, s, 3, o, r)}


def killed_at(up, cluster, event, **more):
    """Run an upgrade that is killed at event ``event``; False if it ended before."""
    left = [event]

    def tick(_):
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    up.tick = tick
    try:
        up(cluster, command=upgrade, **more)
    except Killed:
        return True
    except SparkclusterError:
        return False
    finally:
        up.tick = lambda event: None
    return False


def ended(up, cluster, command, fails):
    """The error of ``command``, or None."""
    try:
        up(cluster, command=command, fails=fails)
    except SparkclusterError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("then", "broken", "stride"),
    [
        ("resume", True, 6),
        ("up", False, 6),
        pytest.param("up", True, 2, marks=pytest.mark.full),
        pytest.param("rollback", False, 2, marks=pytest.mark.full),
    ],
)
def test_a_switch_killed_at_any_point_is_finished_by_the_next_operator(up, switching, then, broken, stride):
    """Events of the fake world, on every node: every path ends with a serving, recorded release."""
    fails = fails_with("2") if broken else None
    for event in range(1, 200, stride):
        cluster = switching()
        if not killed_at(up, cluster, event, fails=fails):
            break
        stopped = any(each.startswith("stop") for each in up.done)
        if stopped:
            switch = pending(cluster.facts, read(cluster.facts["alpha"].release))
            recorded = {read(node.release).number for node in cluster.facts.values()}
            assert switch is not None or recorded != {3}, (event, up.done)
        error = ended(up, cluster, COMMANDS[then], fails)
        if isinstance(error, OtherPlan):  # the old release serves, and up replaces nothing that does
            assert acts(up) == []
            error = ended(up, cluster, resume, fails)
        assert error is None or isinstance(error, RolledBack), (event, up.done, error)
        numbers = running(cluster)
        assert len({tuple(each) for each in numbers.values()}) == 1, (event, numbers)
        (number,) = numbers["alpha"]
        releases = [read(node.release) for node in cluster.facts.values()]
        assert len({release.number for release in releases}) == 1, (event, releases)
        recorded = {release.record["groups"]["default"]["release"] for release in releases}
        assert {int(number)} == recorded, (event, numbers, recorded)
        assert value(cluster)[0] == "1" or not broken, event
    assert event > 15, "the exploration reached its end too early"


def test_a_switch_reported_by_a_single_node_blocks_no_start(up, world):
    cluster = world()
    switch = replacement.document(cluster.spec, number=5, source=999, groups=["default"], back=None)
    cluster.change("beta", switch=switch)
    assert up(cluster).changed is True
    assert any("no node has a readable record of release 999" in note for note in up.report.notes)
    assert cluster.facts["beta"].switch is None


KEY = "THE_KEY"


@pytest.fixture
def with_key(world, monkeypatch):
    """The world of ``switching`` with an API key and a secret, ``first`` at the start of release 3, and now on this machine."""
    monkeypatch.setenv(KEY, "first")
    monkeypatch.setenv("WANDB_KEY", "first")
    more = {"api": {"key": {"env": KEY}}, "permit": {"secrets": ["WANDB_KEY"]}}
    old = world(playbook={"env": {"A": "1"}, "secrets": ["WANDB_KEY"]}, **more)
    cluster = world(playbook={"env": {"A": "2"}, "secrets": ["WANDB_KEY"]}, **more)
    plan = old.plan(release=3)
    hashes = {"default": keyed_hashes({"VLLM_API_KEY": "first", "WANDB_KEY": "first"})}
    cluster.facts, cluster.histories = old.run(plan).record(plan, 3, secrets=hashes).facts, old.histories
    return cluster


def test_a_restored_release_uses_the_current_api_key(up, world, monkeypatch):
    """The release record has the key that the release uses."""
    monkeypatch.setenv(KEY, "first")
    api = {"api": {"key": {"env": KEY}}}
    old = world(playbook={"env": {"A": "1"}}, **api)
    cluster = world(playbook={"env": {"A": "2"}}, **api)
    plan = old.plan(release=3)
    hashes = {"default": keyed_hashes({"VLLM_API_KEY": "first"})}
    cluster.facts, cluster.histories = old.run(plan).record(plan, 3, secrets=hashes).facts, old.histories
    cluster.secrets = {node: {3} for node in cluster.facts}
    up(cluster, command=upgrade)
    monkeypatch.setenv(KEY, "second")
    up(cluster, command=lambda f, s, o, r: rollback(f, s, 3, o, r))
    assert value(cluster) == ("1", 5)
    restored = {node: step for node, steps in up.steps.items() for step in steps if step["do"] == "restore-secrets"}
    assert restored["alpha"]["values"] == {"VLLM_API_KEY": "second"}
    assert "VLLM_API_KEY" in restored["alpha"]["names"]
    assert restored["beta"]["values"] == {}
    record = read(cluster.facts["alpha"].release).record
    assert "second" not in str(record)


def test_a_release_without_its_secrets_is_not_a_rollback_target(up, with_key, monkeypatch):
    with_key.secrets = {"alpha": {3}, "beta": {3}}
    up(with_key, command=upgrade)
    with_key.secrets["beta"].discard(3)
    monkeypatch.delenv(KEY)
    with pytest.raises(LaunchError, match="beta lost the secrets of release 3; nothing was stopped"):
        up(with_key, command=lambda f, s, o, r: rollback(f, s, 3, o, r))
    assert acts(up) == []


@pytest.mark.parametrize(
    ("then", "broken", "stride"), [("resume", "west", 20), pytest.param("up", "west", 7, marks=pytest.mark.full)]
)
def test_a_killed_switch_of_two_groups_leaves_no_group_behind(up, switching, then, broken, stride):
    """Whatever was interrupted, all groups serve afterwards, with one release."""
    new = fails_with("2")

    def fails(launch):
        return new(launch) if launch.group == broken else None

    for event in range(1, 300, stride):
        cluster = switching(FOUR, groups=PAIRS)
        if not killed_at(up, cluster, event, fails=fails):
            break
        error = ended(up, cluster, COMMANDS[then], fails)
        if isinstance(error, OtherPlan):  # every group serves
            assert acts(up) == []
            error = ended(up, cluster, resume, fails)
        assert error is None or isinstance(error, RolledBack), (event, up.done, error)
        assert all(running(cluster).values()), (event, running(cluster))
        values = {value(cluster, node)[0] for node in cluster.facts}
        assert len(values) == 1, (event, values, up.done)
    assert event > 30, "the exploration reached its end too early"
