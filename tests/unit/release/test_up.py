"""``up`` walking its table: what it does about each state, and what it leaves alone."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from sparkcluster.errors import FoundErrors, HostTimeout, Interrupted, LaunchError, OtherPlan, UsageError
from sparkcluster.facts.reach import Reach
from sparkcluster.facts.running import Reply
from sparkcluster.findings import Finding
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import assess
from sparkcluster.probing.collect import Collected
from sparkcluster.release import up as module
from sparkcluster.release import walk
from sparkcluster.report import Silent
from sparkcluster.staging.run import StageReport

ANSWER = Reply("default", "alpha", ttft_s=0.1, tokens_per_s=10.0, tokens=3, text="204")


@pytest.fixture
def up(monkeypatch):
    """``up(world)``: nodes change as the launch would change them; ``up.done`` tells what was done, in order."""

    def run(world, *, errors=None, answers=True, options=None):
        run.done = done = []
        fleet = Fleet({name: FakeHost(name).program("agent", lambda _: {"results": [{}]}) for name in world.facts})

        def look(*_, **__):
            facts = {name: one for name, one in world.facts.items() if name not in (errors or {})}
            return assess(world.spec, Collected(facts, errors or {}), facts)

        def ask(host, endpoint, verify, **_):
            done.append(f"ask {host.name}")
            return ANSWER if answers else dataclasses.replace(ANSWER, problem="refused", message="nothing listens")

        def stop(changer, ranks, **_):
            done.append("stop")
            for name in ranks:
                world.change(name, ranks=[])
            return {}

        def launch(fleet, changer, launch, steps, report):
            done.append("watch" if steps is None else "launch")
            run.steps = steps
            if steps is not None:
                world.run(launch.plan)
            return {"default": ANSWER}

        @contextlib.contextmanager
        def held():
            done.append("lease")
            yield type("Held", (), {"epoch": 1})

        monkeypatch.setattr(module, "look", look)
        monkeypatch.setattr(walk, "look", look)
        monkeypatch.setattr("sparkcluster.release.settled.ask", ask)
        monkeypatch.setattr("sparkcluster.inspect.status.ask", ask)
        monkeypatch.setattr(walk.launching, "stop", stop)
        monkeypatch.setattr(walk.launching, "run", launch)
        monkeypatch.setattr(walk, "stage", getattr(run, "stage", lambda *_, **__: StageReport(())))
        monkeypatch.setattr(module, "Lease", lambda *_, **__: type("L", (), {"acquire": lambda _, names: held()})())
        return module.up(fleet, world.spec, options or module.Options(), Silent())

    return run


def served(world, plan=None, number=3):
    """The world with a recorded plan that runs."""
    plan = plan or world.plan(release=number)
    return world.run(plan).record(plan, number)


def test_from_nothing(up, world):
    done = up(world())
    assert (done.changed, done.release) == (True, 1)
    assert up.done == ["lease", "launch"]


def test_what_serves_is_asked_and_left_alone(up, world):
    done = up(served(world()))
    assert (done.changed, done.release) == (False, 3)
    assert up.done == ["ask alpha"]


def test_what_does_not_answer_any_more_is_replaced(up, world):
    one = served(world())
    done = up(one, answers=False)
    assert (done.changed, done.release) == (True, 4)
    assert up.done == ["ask alpha", "lease", "ask alpha", "stop", "launch"]


def test_ranks_that_were_started_are_gone_on_with(up, world):
    one = world()
    done = up(one.run(one.plan(release=5)))
    assert (done.changed, done.release) == (True, 5)
    assert up.done == ["lease", "watch"]


def test_remains_are_cleaned_first(up, world):
    one = world()
    done = up(one.run(one.plan(release=5), "alpha"))
    assert done.changed is True
    assert up.done == ["lease", "stop", "launch"]


def test_another_plan_that_answers_is_left_alone_and_the_difference_told(up, world):
    other = world(playbook={"env": {"A": "1"}})
    one = world(playbook={"env": {"A": "2"}})
    one.run(other.plan(release=3)).record(other.plan(release=3), 3)
    with pytest.raises(OtherPlan) as caught:
        up(one)
    assert caught.value.exit_code == 1
    assert any("A" in line for line in caught.value.lines)
    assert "lease" not in up.done


def test_another_plan_that_does_not_answer_is_replaced(up, world):
    other = world(playbook={"env": {"A": "1"}})
    one = world(playbook={"env": {"A": "2"}})
    one.run(other.plan(release=3)).record(other.plan(release=3), 3)
    assert up(one, answers=False).changed is True
    assert up.done[-2:] == ["stop", "launch"]


@pytest.mark.parametrize("kept", ["alpha", "beta"])
def test_a_cluster_that_lost_a_node_from_its_inventory_is_not_torn_down(up, world, kept):
    whole = served(world())
    one = world(kept)
    one.facts = {kept: whole.facts[kept]}
    with pytest.raises(OtherPlan):
        up(one)
    assert "lease" not in up.done


def test_ranks_that_are_not_ours_to_touch_are_refused(up, world):
    one = world()
    one.run(one.plan(), "beta", **{"io.sparkcluster.state_dir": "/srv/other"})
    with pytest.raises(LaunchError, match="belongs to a cluster of this name with state_dir /srv/other") as caught:
        up(one)
    assert caught.value.node == "beta"
    assert "stop" not in up.done


def test_a_node_that_is_away_ends_it_before_anything_else(up, world):
    error = HostTimeout("beta did not answer within 10 s", node="beta", hint="ping beta")
    with pytest.raises(FoundErrors) as caught:
        up(served(world()), errors={"beta": error})
    assert caught.value.findings[0].node == "beta"
    assert up.done == []


def test_a_missing_secret_ends_it_before_the_lease(up, world, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(UsageError):
        up(world(playbook={"secrets": ["HF_TOKEN"]}))
    assert up.done == []


def test_an_error_ends_it_before_the_lease(up, world):
    with pytest.raises(FoundErrors) as caught:
        up(world().change("beta", infiniband_devices=False))
    assert ("NET-010", "beta") in {(one.code, one.node) for one in caught.value.findings}
    assert up.done == []


def test_nodes_that_do_not_reach_each_other_end_it_before_anything_is_staged(up, world, monkeypatch):
    blocked = Finding("NET-041", "error", "beta drops it", "beta")
    monkeypatch.setattr(walk, "between", lambda *_, **__: (Reach(()), [blocked]))
    up.stage = lambda *_, **__: pytest.fail("staged")
    with pytest.raises(FoundErrors) as caught:
        up(world())
    assert blocked in caught.value.findings
    assert up.done == ["lease"]


def test_what_serves_is_not_made_to_reach_each_other(up, world, monkeypatch):
    monkeypatch.setattr(walk, "between", lambda *_, **__: pytest.fail("a healthy cluster pays for nothing"))
    assert up(served(world())).changed is False


def test_ctrl_c_while_staging_says_that_nothing_was_started(up, world):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    up.stage = interrupt
    with pytest.raises(Interrupted, match=r"^interrupted; no rank was started$") as caught:
        up(world())
    assert (caught.value.exit_code, caught.value.step) == (130, "stage")


def test_clearing_caches_takes_those_of_the_plans_image_alone(up, world):
    one = world()
    up(one, options=module.Options(clear_caches=True))
    deleted = [step["path"] for step in up.steps["alpha"] if step["do"] == "delete"]
    caches = f"{one.facts['alpha'].state_dir}/caches/5a5a5a5a5a5a/"
    assert sorted(deleted) == [caches + name for name in ("flashinfer", "triton", "vllm")]
