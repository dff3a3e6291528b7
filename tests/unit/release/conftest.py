"""``up`` on simulated facts: nodes change as a launch would change them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sparkcluster.facts.base import read
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.release import replacement, rollout, serving
from sparkcluster.release import stage as staging
from sparkcluster.release import up as module
from sparkcluster.release.states import Desired, Options
from sparkcluster.report import Report
from sparkcluster.runtime.lease import Lease
from sparkcluster.staging.run import StageReport
from tests.unit.conftest import WEIGHTS, accepted
from tests.unit.release.planned import launch, planned, two  # noqa: F401 - fixtures

ANSWER = Reply("default", "alpha", ttft_s=0.1, tokens_per_s=10.0, tokens=3, text="204")
PAIRS = [{"name": "east", "nodes": ["alpha", "beta"]}, {"name": "west", "nodes": ["gamma", "delta"]}]
FOUR = "alpha beta gamma delta"


class RecordingReport(Report):
    """A Report that records notes, and finished steps, with ``!`` after a failed one.

    ``begun`` is the current step, to which an error that ends the command belongs.
    """

    def __init__(self):
        self.notes = []
        self.ended = []
        self.begun = ""
        self.well = True

    def step(self, name, text=""):
        self.done()
        self.begun = name

    def failed(self):
        self.well = False

    def done(self):
        if self.begun:
            self.ended.append(self.begun if self.well else f"{self.begun}!")
        self.begun, self.well = "", True

    def progress(self, node, text):
        pass

    def note(self, text):
        self.notes.append(text)


def up_once(fleet, spec, options, report):
    """``up`` as a command with options."""
    return module.up(fleet, Desired(spec, options), report)


@pytest.fixture
def up(monkeypatch):  # noqa: C901 - one function for each thing that is played
    """``up(world)``: nodes change as the launch would change them; ``up.done`` has the actions, in order."""

    def run(world, *, errors=None, answers=None, fails=None, options=None, command=None):  # noqa: C901
        """``answers`` are changes of the reply by head, ``fails`` groups that do not start, or a function that gives their end.

        ``command(fleet, spec, options, report)`` is run instead of ``up``.
        """
        run.done, run.world = (done := []), world
        for name in world.facts:
            if world.facts[name].weights is None:
                world.change(name, weights=WEIGHTS)
        run.report = RecordingReport()
        run.fails = fails if callable(fails) else lambda each: (fails or {}).get(each.group)
        hosts = {name: FakeHost(name).program("agent", agent(world, name)).program("unit", {}) for name in world.facts}
        for name, host in hosts.items():
            host.program("observe", observed(world, name)).program("releases", records(world, name))
            host.program("probe", probe(world, name, errors or {}))
            host.program("image", lambda _, name=name: run.gpus.get(name, {"gpus": 1}))
        fleet = Fleet(hosts)
        run.recorded = []
        run.probes = dict.fromkeys(world.facts, 0)
        run.ranks = []

        def ask(host, endpoint, verify, **_):
            done.append(f"ask {host.name}")
            run.verify, run.endpoint = verify, endpoint
            reply = dataclasses.replace(ANSWER, group=endpoint.group, head=host.name)
            change = (answers or {}).get(host.name, {})
            return dataclasses.replace(reply, **(change() if callable(change) else change))

        def stop(changer, ranks, report, *, drain):
            gone = {rank.name for each in ranks.values() for rank in each}
            done.append(f"stop {' '.join(name for name in ranks if ranks[name])}")
            run.tick("stop")
            for name in ranks:
                left = [rank for rank in world.facts[name].model_dump()["ranks"] if rank["name"] not in gone]
                world.change(name, ranks=left)
                run.tick("stopped")
            return {}

        def launch_all(changer, launches, report):
            outcomes = {}
            for each in launches:
                for name, step in ((name, step) for name, steps in (each.steps or {}).items() for step in steps):
                    if step["do"] == "stay-down":
                        done.append(f"stay-down {name}")
                done.append(f"{'watch' if each.steps is None else 'launch'} {' '.join(each.plan.nodes)}")
                run.steps = each.steps
                run.left = {**run.left, each.group: each.left}
                run.tick("launch")
                failed = run.fails(each)
                outcomes[each.group] = failed or dataclasses.replace(ANSWER, group=each.group)
                if each.steps is not None and not failed:
                    for name in each.plan.nodes:
                        world.run(each.plan, name)
                        run.tick("started")
            if any(isinstance(outcome, Exception) for outcome in outcomes.values()):
                report.failed()
            return outcomes

        class HeldLease(Lease):
            def acquire(self, names, *, lost=None):
                if self.changer.kind != "start":
                    done.append({"cluster": "lease", "staging": "lease of staging"}[self.changer.kind])
                run.held(self.changer.kind)
                self.changer.epochs.update(alpha=1, beta=1)
                return self

            def close(self):
                if self.changer.kind == "staging" and self.changer.epochs and not self._programs.closed:
                    done.append("end of staging")
                super().close()

        monkeypatch.setattr(serving, "ask", ask)
        monkeypatch.setattr(serving, "RETRY_S", 0)
        monkeypatch.setattr(rollout, "DYING_S", 0)
        monkeypatch.setattr(rollout, "stop", stop)
        monkeypatch.setattr(rollout, "launch_groups", launch_all)
        monkeypatch.setattr(replacement, "measure_speed", lambda *_: None)
        monkeypatch.setattr(staging, "find", run.find)
        monkeypatch.setattr(staging, "bring", run.bring)
        monkeypatch.setattr(rollout, "Lease", HeldLease)
        monkeypatch.setattr(staging, "Lease", HeldLease)
        return (command or up_once)(fleet, accepted(world.spec), options or Options(), run.report)

    run.find = lambda *_: []
    run.bring = lambda *_: StageReport(())
    run.starts = {}
    run.gpus = {}
    run.left = {}
    run.held = lambda kind: None
    run.tick = lambda event: None

    def probe(world, node, errors):
        def answer(request):
            if node in errors:
                raise errors[node]
            run.tick("look")
            run.probes[node] += 1
            facts = world.facts[node].model_dump(mode="json")
            of_release = {key: facts[key] for key in ("image", "layers", "weights", "companions")}
            return facts | {"also": [of_release for _ in request["also"]]}

        return answer

    def observed(world, node):
        launcher = {"role": "head", "engine": ["vllm", "serve", "m"], **run.launcher}
        return lambda _: {
            "ranks": [
                {"name": rank.name, "state": rank.state, "labels": rank.labels, "launcher": launcher}
                for rank in world.facts[node].ranks
                if rank.labels["io.sparkcluster.rank"] == "0"
            ]
        }

    run.launcher = {}

    def agent(world, node):
        def change(request):
            run.tick(" ".join(step["do"] for step in request["steps"]))
            for step in request["steps"]:
                if step["do"] == "record":
                    run.recorded.append(step["record"])
                    run.ranks.append(step.get("rank"))
                    run.starts[node] = step.get("start")
                    if (step.get("rank") or {}).get("env_file"):
                        world.secrets.setdefault(node, set()).add(step["number"])
                    world.histories.setdefault(node, {})[step["number"]] = step["record"]
                    hashed = {"number": step["number"], "plan_hash": step["record"]["plan_hash"]}
                    release = read(world.facts[node].release)
                    if release is None or release.number <= step["number"]:
                        world.change(node, release={**hashed, "record": step["record"]})
                elif step["do"] in {"put", "delete"}:
                    world.change(node, switch=json.loads(step["content"]) if step["do"] == "put" else None)
            return {"results": [{} for _ in request["steps"]]}

        return change

    def records(world, node):
        def answer(_):
            run.tick("releases")
            found = dict(world.histories.get(node, {}))
            if release := read(world.facts[node].release):
                found[release.number] = release.record
            return {
                "records": json.loads(json.dumps(list(found.values()))),
                "images": None,
                "secrets": sorted(world.secrets.get(node, ())),
            }

        return answer

    return run


def served(world, plan=None, number=3):
    """The world with a recorded plan that runs."""
    plan = plan or world.plan(release=number)
    return world.run(plan).record(plan, number)
