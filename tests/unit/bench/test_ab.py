"""An A/B ends with the previous release whatever happens, or shows the remaining command."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster import exit_codes
from sparkcluster.bench import ab, record
from sparkcluster.bench.measure import Job
from sparkcluster.errors import Interrupted, LaunchError, RolledBack, SparkclusterError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.release import replacement, rollout
from sparkcluster.release.states import Options
from sparkcluster.release.upgrade import rollback, upgrade
from sparkcluster.spec import consent
from tests.unit.release.conftest import ANSWER, RecordingReport, up  # noqa: F401 - a fixture

CHANGE = 'env.A="2"'


@pytest.fixture
def bench(up, world, monkeypatch, tmp_path):  # noqa: F811
    """``bench(...)``: an A/B while release 3 serves with A=1, and ``--ab`` sets A=2; ``bench.runs`` are the stored runs.

    The inventory was edited since, to A=0.

    ``measuring`` are called instead of the measurement, one for each run.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    serves, written = (world(playbook={"env": {"A": value, "B": value}}) for value in "10")
    plan = serves.plan(release=3)
    serves.run(plan).record(plan, 3)
    written.facts, written.histories = serves.facts, serves.histories
    written.secrets = {node: {3} for node in serves.facts}

    def value():
        return read(serves.facts["alpha"].release).record["plan"]["nodes"]["alpha"]["env"]["A"]

    def answer(host, endpoint, verify, **_):
        assert verify.temperature == 0
        return dataclasses.replace(ANSWER, text=f"{verify.prompt}: {value() if verify.prompt == ab.PROMPTS[0] else 0}")

    def run(measuring=(), *, yes=True, change=CHANGE, runs=3, **more):
        steps = iter(measuring)

        def measure(fleet, spec, job, report, *, change="", seed=None):
            up.done.append(f"measure {value()}")
            report.step("measure")
            next(steps, lambda *_: None)(fleet, report)
            ends = {"ended": "complete", "group": "default", "nodes": ["alpha", "beta"]}
            about = {"cluster": "atlas", "model": "m", "playbook": "p", "profile": "quick", "runs": 3, "kind": "chat"}
            found = record.Record(**about, **ends, change=change)
            record.save(found)
            run.runs.append(found)
            report.done()
            return found

        monkeypatch.setattr(ab, "measure", measure)
        run.runs = []
        return up(written, command=lambda f, s, o, r: ab.run(f, s, Job(runs=runs, yes=yes), r, change=change), **more)

    monkeypatch.setattr(replacement, "ask", answer)
    run.value, run.serves, run.up = value, written, up
    return run


def acts(bench):
    return [each for each in bench.up.done if each.split()[0] in {"measure", "stop", "launch"}]


SWITCH = ["stop alpha beta", "launch alpha beta"]


def test_a_b_and_a_are_measured_in_turn_and_a_serves_at_the_end(bench):
    assert bench() == bench.runs
    assert acts(bench) == ["measure 1", *SWITCH, "measure 2", *SWITCH, "measure 1"]
    ids = [run.id for run in bench.runs]
    kept = [record.load(each) for each in ids]
    assert [run.pair for run in kept] == [ids] * 3
    assert [run.change for run in kept] == ["", CHANGE, ""]
    first, second, third = (run.answers for run in kept)
    assert first == third
    assert [first[prompt] == second[prompt] for prompt in ab.PROMPTS] == [False, True, True]
    assert bench.up.report.notes[-1].endswith("B equals A in 2 of 3, A again in 3 of 3")
    assert {each["operation"] for each in bench.up.recorded} == {"bench"}


def test_nothing_is_stopped_until_downtime_and_duration_are_confirmed(bench, monkeypatch):
    asked = []
    monkeypatch.setattr(RecordingReport, "confirm", lambda report, question: asked.append((question, report.notes[-1])))
    monkeypatch.setattr(ab, "accept", lambda spec, *_, **__: spec)
    with pytest.raises(UsageError, match=f"run {bench.serves.spec.inventory.cluster}-1 is kept") as caught:
        bench(yes=False)
    assert "--yes" in caught.value.hint
    assert acts(bench) == ["measure 1"]
    assert bench.up.report.begun == "", "a question is not a failed step"
    ((_, said),) = asked
    assert "all groups twice" in said
    assert "of downtime" in said
    assert "of measuring" in said


def fails(*outcomes):
    """The result of each launch, in turn."""
    left = list(outcomes)
    return lambda _: left.pop(0) if left else None


def raises(error):
    def measuring(*_):
        raise error

    return measuring


def nothing(*_):
    pass


BROKEN = LaunchError("the engine crashed at load", node="alpha")
STOPPED = Interrupted("interrupted", step="start")


@pytest.mark.parametrize(
    ("measuring", "launches", "error", "code"),
    [
        pytest.param([], [BROKEN], RolledBack, exit_codes.ROLLED_BACK, id="B-does-not-start"),
        pytest.param([], [STOPPED], Interrupted, exit_codes.INTERRUPTED, id="ctrl-c-while-B-starts"),
        pytest.param(
            [nothing, raises(KeyboardInterrupt())], [], KeyboardInterrupt, None, id="ctrl-c-while-B-is-measured"
        ),
        pytest.param([nothing, raises(SparkclusterError("no answer"))], [], SparkclusterError, 1, id="B-fails"),
        pytest.param([nothing, raises(ValueError("a bug"))], [], ValueError, None, id="measuring-has-a-bug"),
        pytest.param([], [None, STOPPED], Interrupted, exit_codes.INTERRUPTED, id="ctrl-c-during-rollback"),
    ],
)
def test_a_is_restored_however_b_ends(bench, measuring, launches, error, code):
    with pytest.raises(error) as caught:
        bench(measuring, fails=fails(*launches))
    assert getattr(caught.value, "exit_code", None) == code
    assert bench.value() == "1"
    assert [node.switch for node in bench.serves.facts.values()] == [None, None]
    assert acts(bench)[-2:] == SWITCH or acts(bench)[-1:] == SWITCH[1:]
    assert "release 3 serves again" in bench.up.report.notes


@pytest.mark.parametrize("second", [STOPPED, BROKEN])
def test_if_a_cannot_be_restored_the_command_to_type_is_shown(bench, second):
    with pytest.raises(SparkclusterError, match="no answer; release 3 does not serve again: ") as caught:
        bench([nothing, raises(SparkclusterError("no answer"))], fails=fails(None, second))
    assert caught.value.hint == "sparkcluster rollback INVENTORY 3"
    done = bench.up(bench.serves, command=lambda f, s, o, r: rollback(f, s, 3, o, r), options=Options(yes=True))
    assert (done.changed, bench.value()) == (True, "1")


def test_a_concurrent_deployment_by_another_operator_is_not_undone(bench, world, monkeypatch):
    third = world(playbook={"env": {"A": "3"}}).spec

    def deploy(fleet, report):
        accepted = consent.accept(third, report, yes=True)
        with monkeypatch.context() as patch:
            patch.setattr(rollout, "this_operator", lambda: "bob@desk (pid 7)")
            upgrade(fleet, accepted, Options(yes=True), report)

    with pytest.raises(SparkclusterError, match=r"bob@desk \(pid 7\) deployed release 5$") as caught:
        bench([nothing, deploy])
    assert caught.value.hint == "sparkcluster rollback INVENTORY 3"
    assert bench.value() == "3"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ('env.A="1"', "does not change the running release"),
        ("A=2", "did you mean|unknown playbook key"),
        ("args.port=1", "port"),
    ],
)
def test_an_empty_change_is_refused_before_any_measurement(bench, change, why):
    with pytest.raises(UsageError, match=f"--ab {change.split('=')[0]}.*({why})"):
        bench(change=change)
    assert acts(bench) == []


def test_a_single_pass_is_refused_before_any_measurement(bench):
    with pytest.raises(UsageError, match="needs several passes") as caught:
        bench(runs=1)
    assert (caught.value.hint, acts(bench)) == ("remove --runs 1", [])


def test_b_is_the_running_release_with_only_the_change_whatever_the_inventory_says_now(bench):
    bench()
    (b, *_) = (each["plan"]["nodes"]["alpha"]["env"] for each in bench.up.recorded)
    assert (b["A"], b["B"]) == ("2", "1")
