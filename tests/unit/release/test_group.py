"""Starting, watching and stopping a group on scripted nodes."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

from sparkcluster.errors import HostLost, HostSilent, HostTimeout, Interrupted, LaunchError, LeaseLost
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.fake import FakeHost, FakeStream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.release import group, readiness, stopping
from sparkcluster.release.rollout import failure
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.spec.playbook import Playbook


class Spark(FakeHost):
    """A node with ranks that changes them as the agent would, with scripted answers."""

    def __init__(self, name, log):
        super().__init__(name)
        self.log = log
        self.ranks: set[str] = set()
        self.epoch = 1
        self.fails: dict[str, str] = {}
        self.waits: dict[str, float] = {}
        self.graces: list[int] = []
        self.says: list[dict] = []
        self.answers = ["204"]
        self.program("agent", self.change)
        self.program("ask", self.ask)

    def change(self, request):
        if request["epoch"] != self.epoch:
            return {"refused": f"epoch {request['epoch']} is over: the lease was last requested by bob"}
        for step in request["steps"]:
            self.log.append((self.name, step["do"]))
            self.waits[step["do"]] = request["wait_s"]
            self.graces += [step["grace_s"]] if "grace_s" in step else []
            if step["do"] in self.fails:
                return {"failed": {"step": step["do"], "message": self.fails[step["do"]]}}
            if step["do"] == "start-container":
                self.ranks.add(step["name"])
            if step["do"] == "stop":
                self.ranks -= set(step["containers"])
        return {"results": [{} for _ in request["steps"]]}

    def ask(self, request):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, dict):
            return {"error": answer}
        usage = {"completion_tokens": 3}
        return {"done": {"content": answer, "usage": usage, "ttft_s": 0.1, "total_s": 0.3}}

    def stream(self, argv, *, stdin=b""):
        boot = json.loads(stdin.split(b"\n", 1)[0])
        return Watched(self, boot["request"]) if boot["program"] == "watch" else super().stream(argv, stdin=stdin)


class Watched(FakeStream):
    """The watch program's output: the scripted documents, and then regular signs of life until it is closed."""

    def __init__(self, spark, request):
        super().__init__(Result(0, b"", b""))
        self.spark, self.request = spark, request

    def lines(self, silence_s):
        for report in self.spark.says:
            if isinstance(report, Exception):
                raise report
            yield json.dumps(report).encode()
        states = {rank["name"]: {"state": "running"} for rank in self.request["ranks"]}
        for report in self.spark.says:
            states |= report.get("states", {})
        while not self.closed:
            yield json.dumps({"tick": 0, "states": states, "listening": True}).encode()
            time.sleep(0.02)


class RecordingReport(Report):
    """A Report that records."""

    def __init__(self):
        self.steps, self.notes = [], []

    def step(self, name, text=""):
        self.steps.append(name)

    def progress(self, node, text):
        pass

    def log(self, node, line):
        pass

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def log():
    return []


@pytest.fixture
def sparks(log):
    return {name: Spark(name, log) for name in ("alpha", "beta", "gamma", "delta")}


@pytest.fixture
def up(sparks, monkeypatch):
    """``up(planned)`` starts, watches and verifies; its output is in ``up.report``."""
    monkeypatch.setattr(group, "INTERVAL_S", -1.5)

    def run(planned, *, again=False, timeout_s=30, **verify):
        fleet = Fleet({name: sparks[name] for name in planned.plan.nodes})
        run.report = RecordingReport()
        changer = Changer(fleet, cluster="atlas", state_dir="~/s", epochs=dict.fromkeys(fleet.names, 1), operation="up")
        document = {"name": "x", "model": {"id": "a/b"}, "verify": {"pause_s": 0, **verify}}
        spec = SimpleNamespace(playbook=Playbook.model_validate(document), places={})
        launches = []
        for each in planned.plan.groups:
            part = planned.plan.of_groups([each.name])
            steps = {
                name: [{"do": "start-container", "name": rank.name} for rank in node.containers]
                for name, node in part.nodes.items()
            }
            topology = planned.topology.of_groups([each.name])
            launches.append(group.Launch(each.name, part, topology, spec, timeout_s, None if again else steps))
        run.outcomes = group.launch_groups(changer, launches, run.report)
        failed = failure(run.outcomes, 4)
        if failed:
            raise failed
        return run.outcomes

    return run


def running(sparks):
    return {name: spark.ranks for name, spark in sparks.items() if spark.ranks}


def test_every_group_answers_twice_before_it_is_up(up, sparks, planned):
    four = planned(groups=2)
    answers = up(four, expect="204")
    assert {name: reply.text for name, reply in answers.items()} == {"g0": "204", "g1": "204"}
    assert [len([1 for module, _ in sparks[head].requests if module == "ask"]) for head in ("alpha", "gamma")] == [2, 2]
    assert set(running(sparks)) == {"alpha", "beta", "gamma", "delta"}
    assert up.report.steps == ["verify", "verify"]


def test_running_ranks_are_not_restarted(up, two, log):
    up(two, again=True)
    assert log == []


def test_a_rank_that_cannot_start_stops_the_others(up, sparks, two):
    sparks["beta"].fails["start-container"] = "Error: could not select device driver with capabilities: [[gpu]]"
    with pytest.raises(LaunchError) as caught:
        up(two)
    assert (caught.value.node, caught.value.step) == ("beta", "start")
    assert "could not select device driver" in caught.value.message
    assert "left running" not in caught.value.message
    assert running(sparks) == {}


def test_a_dead_rank_stops_the_others_heads_first(up, sparks, two, log, monkeypatch):
    monkeypatch.setattr(group, "INTERVAL_S", 2)
    sparks["beta"].says = [{"states": {two.rank("beta"): {"state": "exited", "exit_code": 3}}}]
    sparks["alpha"].answers = [{"status": None, "kind": "refused", "message": "nothing listens"}]
    with pytest.raises(LaunchError, match="the rank on beta failed with exit code 3") as caught:
        up(two)
    assert caught.value.node == "beta"
    assert running(sparks) == {}
    stops = [node for node, do in log if do == "stop"]
    assert stops == ["alpha", "beta"]


def test_a_serving_release_is_stopped_after_its_requests_had_time_to_finish(sparks, planned, log):
    two = planned(args={"shutdown-timeout": 60})
    fleet = Fleet({name: sparks[name] for name in two.plan.nodes})
    changer = Changer(fleet, cluster="atlas", state_dir="~/s", epochs=dict.fromkeys(fleet.names, 1))
    assert stopping.stop(changer, stopping.ranks_of(two.plan), RecordingReport()) == {}
    assert [node for node, do in log if do == "stop"] == ["alpha", "beta"]
    assert (sparks["alpha"].graces, sparks["beta"].graces) == ([90], [30])
    assert sparks["alpha"].waits["stop"] > sparks["beta"].waits["stop"]


@pytest.mark.parametrize(
    ("answers", "report"),
    [
        (["!!!!!!!!!!!!!!!!!!!!"], "garbage"),
        (["204", "42"], "does not match '204'"),
        (["204", {"status": 500, "kind": "engine-dead", "message": "EngineDeadError"}], "after a pause"),
    ],
)
def test_a_wrong_answer_ends_the_launch(up, sparks, two, answers, report):
    sparks["alpha"].answers = answers
    with pytest.raises(LaunchError) as caught:
        up(two, expect="204")
    assert report in caught.value.message
    assert (caught.value.node, caught.value.step) == ("alpha", "verify")
    assert caught.value.hint
    assert running(sparks) == {}


# ------------------------------------------------------------------------------------------- silence


class EndlessLoad(Watched):
    """Output of the watch program for a rank that loads endlessly."""

    def lines(self, silence_s):
        while not self.closed:
            states = {rank["name"]: {"state": "running"} for rank in self.request["ranks"]}
            yield json.dumps({"tick": 0, "states": states, "listening": False}).encode()
            time.sleep(0.02)


def load_endlessly(spark):
    """Make it load endlessly."""

    def stream(argv, *, stdin=b""):
        boot = json.loads(stdin.split(b"\n", 1)[0])
        if boot["program"] == "watch":
            return EndlessLoad(spark, boot["request"])
        return FakeHost.stream(spark, argv, stdin=stdin)

    spark.stream = stream


def test_a_silent_node_ends_the_command_and_stops_no_rank(up, sparks, two, log):
    load_endlessly(sparks["alpha"])
    sparks["beta"].says = [HostLost("connection to beta broke during watch", node="beta")]
    with pytest.raises(HostSilent, match="connection to beta broke during watch") as caught:
        up(two)
    assert (caught.value.node, caught.value.exit_code) == ("beta", 1)
    assert caught.value.hint.startswith("sparkcluster up INVENTORY ")
    assert up.report.notes == ["not stopping the ranks on alpha, beta"]
    assert {do for _, do in log} == {"start-container"}
    assert set(running(sparks)) == {"alpha", "beta"}


def test_a_head_that_cannot_be_queried_ends_the_command_and_stops_no_rank(up, sparks, two, log):
    def lost(request):
        raise HostTimeout("alpha: no answer", node="alpha")

    sparks["alpha"].program("ask", lost)
    with pytest.raises(HostSilent, match="alpha: no answer") as caught:
        up(two)
    assert caught.value.hint.startswith("sparkcluster up INVENTORY ")
    assert {do for _, do in log} == {"start-container"}


def test_a_rank_that_dies_while_another_node_is_silent_is_named_with_the_remaining_ranks(up, sparks, two, monkeypatch):
    monkeypatch.setattr(readiness, "SILENCE_S", 0.2)
    monkeypatch.setattr(group, "INTERVAL_S", 2)
    sparks["beta"].stream = lambda argv, *, stdin=b"": SilentRank(Result(0, b"", b""), silent=True)
    sparks["beta"].fails["stop"] = "beta: no answer"
    sparks["alpha"].says = [{"states": {two.rank("alpha"): {"state": "exited", "exit_code": 3}}}]
    sparks["alpha"].answers = [{"status": None, "kind": "refused", "message": "nothing listens"}]
    with pytest.raises(LaunchError, match="the rank on alpha failed with exit code 3") as caught:
        up(two)
    assert "stopping the ranks on alpha, beta" in up.report.notes
    assert caught.value.message.endswith("; left running on beta: run sparkcluster down once it can be reached")
    assert set(running(sparks)) == {"beta"}


def test_a_launch_that_never_answers_times_out(up, sparks, two):
    make_silent(sparks["alpha"])
    with pytest.raises(LaunchError, match="no answer within 0 s") as caught:
        up(two, timeout_s=0.3)
    assert "ready_timeout_s" in caught.value.hint
    assert running(sparks) == {}


class SilentRank(FakeStream):
    """A rank that is alive and never listens; a rank of a ``silent`` node sends nothing."""

    def __init__(self, result, *, silent=False):
        super().__init__(result)
        self.silent = silent

    def lines(self, silence_s):
        while not self.closed:
            if not self.silent:
                yield b'{"tick": 0, "states": {}}'
            time.sleep(0.02)


def make_silent(spark):
    """Its watch program only reports that it is alive."""
    plain = spark.stream

    def stream(argv, stdin=b""):
        return SilentRank(Result(0, b"", b"")) if b'"program": "watch"' in stdin else plain(argv, stdin=stdin)

    spark.stream = stream


# ------------------------------------------------------------------------------------------- lease and Ctrl-C


def test_a_node_that_refuses_the_start_is_unchanged_and_the_others_are_cleaned(up, sparks, two, log):
    sparks["beta"].epoch = 2
    sparks["beta"].ranks = {"of-bob"}
    with pytest.raises(LeaseLost, match="beta refused the change: epoch 1 is over: the lease was last") as caught:
        up(two)
    assert caught.value.exit_code == 1
    assert caught.value.hint
    assert running(sparks) == {"beta": {"of-bob"}}


def test_a_watch_that_lost_the_lease_says_so_and_stops_no_rank_of_others(up, sparks, two):
    def taken_over(request):
        for spark in sparks.values():
            spark.epoch, spark.ranks = 2, {"of-bob"}
        return {"error": {"status": None, "kind": "refused", "message": "nothing listens"}}

    sparks["alpha"].program("ask", taken_over)
    with pytest.raises(LeaseLost, match="alpha refused the change") as caught:
        up(two)
    assert "left running" not in caught.value.message
    assert sparks["alpha"].ranks == sparks["beta"].ranks == {"of-bob"}


def test_a_node_with_a_lost_lease_hides_no_failure_of_another(up, sparks, two, monkeypatch):
    """Its connection broke, and the lease ended with it."""
    monkeypatch.setattr(group, "INTERVAL_S", 2)

    def lost(request):
        sparks["beta"].epoch = 2
        return {"error": {"status": None, "kind": "refused", "message": "nothing listens"}}

    sparks["alpha"].program("ask", lost)
    sparks["alpha"].says = [{"states": {two.rank("alpha"): {"state": "exited", "exit_code": 3}}}]
    with pytest.raises(LaunchError, match=r"the rank on alpha failed with exit code 3.*; left running on beta: "):
        up(two)


@pytest.fixture
def ctrl_c(sparks, monkeypatch):
    """``ctrl_c(times)`` while alpha is alive and never listens."""
    make_silent(sparks["alpha"])

    def press(times=1):
        left = iter(range(times))

        class Pressed(group.Calls):
            def wait(self, limit_s):
                if next(left, None) is not None:
                    raise KeyboardInterrupt
                return super().wait(limit_s)

        monkeypatch.setattr(group, "Calls", Pressed)

    return press


def test_ctrl_c_stops_started_ranks_and_reports_that_nothing_is_left(up, sparks, two, ctrl_c):
    ctrl_c()
    with pytest.raises(Interrupted, match=r"^interrupted; nothing is left running$") as caught:
        up(two)
    assert caught.value.exit_code == 130
    assert running(sparks) == {}
    assert "press Ctrl-C again" in up.report.notes[0]


def test_ctrl_c_leaves_a_group_that_has_answered_running(up, sparks, planned, monkeypatch):
    make_silent(sparks["gamma"])
    left = iter([1])

    class Pressed(group.Calls):
        def wait(self, limit_s):
            if limit_s == group.WAIT_S and next(left, None):
                while "g0" in self.pending():
                    time.sleep(0.01)
                raise KeyboardInterrupt
            return super().wait(limit_s)

    monkeypatch.setattr(group, "Calls", Pressed)
    with pytest.raises(Interrupted, match=r"^interrupted; g0 serves as release 4$"):
        up(planned(groups=2))
    assert set(running(sparks)) == {"alpha", "beta"}


def test_a_second_ctrl_c_leaves_the_ranks_and_shows_the_command_to_type(up, two, ctrl_c):
    ctrl_c(2)
    with pytest.raises(Interrupted, match="interrupted again; ranks may still run on alpha, beta") as caught:
        up(two)
    assert caught.value.hint == "sparkcluster down INVENTORY"


# ------------------------------------------------------------------------------------------- several groups


@pytest.mark.parametrize("fault", ["start", "death", "answer"])
def test_a_failing_group_stops_only_its_ranks(up, sparks, planned, fault, monkeypatch):
    four = planned(groups=2)
    if fault == "start":
        sparks["delta"].fails["start-container"] = "Error: no space left on device"
    elif fault == "death":
        monkeypatch.setattr(group, "INTERVAL_S", 2)
        sparks["delta"].says = [{"states": {four.rank("delta"): {"state": "exited", "exit_code": 3}}}]
        sparks["gamma"].answers = [{"status": None, "kind": "refused", "message": "nothing listens"}]
    else:
        sparks["gamma"].answers = ["42"]
    with pytest.raises(LaunchError, match=r"; g0 serves as release 4$"):
        up(four, expect="204")
    assert set(running(sparks)) == {"alpha", "beta"}
    assert up.outcomes["g0"].text == "204"


# ------------------------------------------------------------------------------------------- stopping


def test_stop_continues_after_a_failure_on_one_node(sparks, two):
    fleet = Fleet({name: sparks[name] for name in ("alpha", "beta")})
    changer = Changer(fleet, cluster="atlas", state_dir="~/s", epochs=dict.fromkeys(fleet.names, 1))
    for name in fleet.hosts:
        sparks[name].ranks = {two.rank(name)}
    sparks["alpha"].fails["stop"] = "stuck"
    doing, report = [], Report()
    report.progress = lambda node, text: doing.append((node, text))
    left = stopping.stop(changer, stopping.ranks_of(two.plan), report)
    assert sorted(doing[:2]) == [(name, "stopping its rank within 30 s") for name in ("alpha", "beta")]
    assert set(left) == {"alpha"}
    assert "stuck" in left["alpha"].message
    assert sparks["beta"].ranks == set()
