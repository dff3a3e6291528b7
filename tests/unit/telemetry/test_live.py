"""The complete loop: nodes disconnect and return independently, and an error reaches every waiting caller."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from docgen import json_schemas

from sparkcluster import hints
from sparkcluster.cli import common, status_watch
from sparkcluster.cli.main import guarded
from sparkcluster.errors import HostLost
from sparkcluster.hosts.fake import FakeHost, FakeStream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import vitals
from sparkcluster.telemetry import live as lives
from sparkcluster.telemetry.live import Live
from tests.unit.vitals_samples import DOCUMENT

KEY = "atlas/default"
DONE = {"done": {"content": "x", "usage": None, "ttft_s": 0.1, "total_s": 0.2}}


class Spark(FakeHost):
    """Sends samples while ``up``, and of its engine while that ``serves``: ten tokens and a second each."""

    def __init__(self, name: str, facts: Any) -> None:
        super().__init__(name)
        self.up, self.serves, self.tokens = threading.Event(), True, 0
        self.up.set()
        self.program("probe", lambda asked: self.facts(facts[name], asked["also"]))
        self.program("ask", DONE)

    def facts(self, said: Any, also: Any) -> dict[str, Any]:
        """The document of ``said``, repeated for each spec in ``also``."""
        document = {**said.model_dump(mode="json"), "clock_s": time.time()}
        return {**document, "also": [document for _ in also]}

    def stream(self, argv: Any, *, stdin: bytes = b"") -> FakeStream:
        request = json.loads(stdin.split(b"\n")[0])
        if request["program"] != "vitals":
            return super().stream(argv, stdin=stdin)
        return Samples(self, request["request"]["engines"])


class Samples(FakeStream):
    def __init__(self, spark: Spark, engines: Any) -> None:
        super().__init__(spark.run(["true"]), spark.name)
        self.spark, self.engines = spark, engines

    def lines(self, silence_s: float, **limits: float) -> Iterator[bytes]:
        while self.spark.up.is_set():
            self.spark.tokens += 10
            counts = {"generated": self.spark.tokens, "running": 1, "kv_cache": 0.25}
            clock_s = self.spark.tokens / 10
            engines = {key: {"clock_s": clock_s, "counts": counts} for key in self.engines if self.spark.serves}
            yield json.dumps({**DOCUMENT, "clock_s": clock_s, "engines": engines}).encode()
            time.sleep(0.02)
        raise HostLost(f"{self.spark.name}: the connection broke", node=self.spark.name)


@pytest.fixture
def sparks(world, monkeypatch):
    """A cluster that serves, sampled fifty times per second; and its Sparks."""
    monkeypatch.setattr(vitals, "_SOONEST_S", 0.0)
    monkeypatch.setattr(lives, "SOON_S", 0.0)
    monkeypatch.setattr(lives, "RETRY_S", 0.05)
    one = world()
    plan = one.plan(3)
    one.run(plan).record(plan, 3)
    return one, {name: Spark(name, one.facts) for name in one.facts}


def begin(one: Any, hosts: Any, **more: Any) -> Live:
    return Live(Fleet(hosts), [one.spec], **{"tick_s": 0.05, "check_s": 60.0, **more})


def until(live: Live, holds: Any, limit_s: float = 20.0) -> dict[str, Any]:
    """The first document for which the condition is true."""
    deadline, number = time.monotonic() + limit_s, 0
    while not holds(live.document):
        number = live.wait(number, 1.0)
        assert time.monotonic() < deadline, live.document
    return live.document


def test_a_document_is_complete_and_does_not_change_later(sparks):
    one, hosts = sparks
    with begin(one, hosts, draw=lambda view, findings: [[[f"{len(view.facts)} nodes, {len(findings)}", ""]]]) as live:
        first, kept = live.document, json.dumps(live.document)
        (model,) = first["models"]
        assert (first["inventory"], first["state"], first["gateway"]) == ("atlas", "serving", None)
        assert (model["name"], model["state"], model["released_at"], model["findings"]) == (None, "serving", 1.0, [])
        assert model["next"] == hints.CommandLine(str(one.spec.inventory_path))('sparkcluster ask INVENTORY "Hello"')
        json_schemas.validate("follow", {**first, "models": []})
        more = {"name", "findings", "released_at", "drawing"}
        json_schemas.validate("status", {key: value for key, value in model.items() if key not in more})
        assert model["drawing"] == [[["2 nodes, 0", ""]]]
        found = until(live, lambda found: (found["models"][0]["groups"][0]["load"] or {}).get("tokens_per_s") == 10)
        assert found["models"][0]["groups"][0]["load"]["kv_cache"] == 0.25
        assert found["nodes"]["beta"]["vitals"]["available_bytes"] == DOCUMENT["memory"]["available_bytes"]
        assert json.dumps(first) == kept
        live.wait(live.number, 5.0)
        history = live.history
        columns = [each for kind in ("nodes", "groups") for every in history[kind].values() for each in every.values()]
        assert {len(each) for each in columns} == {len(history["at"])}
        assert history["at"] == sorted(history["at"])
        assert history["groups"][KEY]["kv_cache"][-1] == 0.25


def test_a_lost_node_loses_only_its_own_series_until_it_returns(sparks):
    one, hosts = sparks
    with begin(one, hosts) as live:
        hosts["beta"].up.clear()
        gone = until(live, lambda found: found["state"] == "degraded")
        assert (gone["nodes"]["beta"]["state"], gone["nodes"]["alpha"]["state"]) == ("lost", "up")
        assert gone["nodes"]["beta"]["why"] == "beta: the connection broke"
        assert [(each["code"], each["node"]) for each in gone["models"][0]["findings"]] == [("SSH-003", "beta")]
        hosts["beta"].up.set()
        back = until(live, lambda found: found["state"] == "serving")
        assert back["nodes"]["beta"] == back["nodes"]["beta"] | {"state": "up", "why": None}


def test_an_engine_that_starts_or_stops_answering_is_checked_immediately(sparks, monkeypatch):
    one, hosts = sparks
    for module in ("inspect.signals", "telemetry.check"):
        monkeypatch.setattr(f"sparkcluster.{module}.FRESH_S", 0.3)
    with begin(one, hosts) as live:
        until(live, lambda found: found["models"][0]["groups"][0]["load"])
        hosts["alpha"].serves = False
        hosts["alpha"].program("ask", {"error": {"status": None, "kind": "refused", "message": "nothing listens"}})
        found = until(live, lambda found: found["state"] == "degraded")
        assert "RUN-002" in {each["code"] for each in found["models"][0]["findings"]}
        hosts["alpha"].serves = True
        hosts["alpha"].program("ask", DONE)
        until(live, lambda found: found["state"] == "serving")


def test_a_new_release_is_followed(sparks):
    one, hosts = sparks
    with begin(one, hosts, check_s=0.1) as live:
        plan = one.plan(4)
        for name in one.facts:
            one.change(name, ranks=[])
        one.run(plan).record(plan, 4)
        found = until(live, lambda found: found["models"][0]["release"] == 4)
        assert found["state"] == "serving"


def test_a_starting_model_is_checked_more_often(sparks, monkeypatch):
    one, hosts = sparks
    monkeypatch.setattr(lives, "STARTING_S", 0.1)
    records = {name: facts.release for name, facts in one.facts.items()}
    lease = {"epoch": 4, "held": True, "operator": "ann@desk", "operation": "up", "since": 1763690000.0}
    for name in one.facts:
        one.change(name, release=None, lease=lease)
    with begin(one, hosts) as live:
        assert live.document["state"] == "starting"
        for name, record in records.items():
            one.change(name, release=record.model_dump(), lease=None)
        until(live, lambda found: found["state"] == "serving")


def test_a_cluster_of_unreachable_sparks_has_a_document(sparks):
    one, hosts = sparks
    for host in hosts.values():
        host.up.clear()

        def off(_: Any, name: str = host.name) -> None:
            raise HostLost(f"{name}: no route to host", node=name)

        host.program("probe", off)
    with begin(one, hosts) as live:
        assert live.document["state"] == "unknown"
        assert {each["state"] for each in live.document["nodes"].values()} == {"lost"}


def test_an_error_of_the_sampling_is_raised_to_waiting_callers(sparks, monkeypatch):
    one, hosts = sparks
    with begin(one, hosts) as live:
        monkeypatch.setattr(lives, "vitals", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            [live.wait(live.number, 5.0) for _ in range(9)]


def test_ctrl_c_during_the_first_check_ends_the_sampling(sparks, monkeypatch):
    one, hosts = sparks

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    closed = threading.Event()
    monkeypatch.setattr(lives.Sampler, "close", lambda _: closed.set())
    monkeypatch.setattr(lives.Checker, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begin(one, hosts)
    assert closed.is_set()


def test_setting_the_clock_moves_the_complete_history(sparks, monkeypatch):
    one, hosts = sparks
    with begin(one, hosts) as live:
        live.wait(live.number, 5.0)
        monkeypatch.setattr(lives.time, "time", lambda: 4e9 + time.monotonic())
        live.wait(live.wait(live.number, 5.0), 5.0)
        assert live.history["at"] == sorted(live.history["at"])
        assert live.history["at"][0] > 3.9e9


def test_each_line_of_follow_has_all_models(sparks, tmp_path, monkeypatch):
    _, hosts = sparks
    (tmp_path / "qwen.yaml").write_text("name: qwen\nmodel: {id: Qwen/Qwen3-8B}\nimage: vllm/vllm-openai:v0.18.0\n")
    models = "[{playbook: qwen.yaml, nodes: [alpha]}, {playbook: qwen.yaml, name: code, nodes: [beta], set: {served_name: c}}]"
    nodes = "[{name: alpha, host: 192.168.86.11}, {name: beta, host: 192.168.86.12}]"
    (tmp_path / "home.yaml").write_text(f"cluster: atlas\nnodes: {nodes}\nmodels: {models}\n")
    lines: list[dict[str, Any]] = []

    def printed(document: dict[str, Any], *, line: bool) -> None:
        lines.append(document)
        if len(lines) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(lives, "Live", functools.partial(Live, tick_s=0.05))
    monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet(hosts))
    monkeypatch.setattr(status_watch, "emit_json", printed)
    assert guarded(["status", str(tmp_path / "home.yaml"), "--follow", "--json"]) == 130
    assert [model["name"] for model in lines[0]["models"]] == ["qwen", "code"]
    assert (lines[0]["inventory"], set(lines[0]["nodes"])) == ("home", {"alpha", "beta"})
    assert lines[1]["models"][1]["next"].endswith("--model code")
