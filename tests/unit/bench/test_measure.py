"""A run on fake nodes: what is stored however it ends, and what is refused before a request."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import socket
import time

import pytest
import timeline
import yaml

from sparkcluster.bench import child, record
from sparkcluster.bench import measure as module
from sparkcluster.bench.measure import Job, measure
from sparkcluster.endpoint.connection import Connection
from sparkcluster.errors import HostError, NotServing, SparkclusterError, UsageError
from sparkcluster.facts.weights import Weights
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.report import Report
from tests.unit.vitals_samples import MEMORY, sampled

MODEL = Weights.model_validate({"path": "/hub/qwen", "revision": "0" * 40, "config": {}, "files": []})


class Sampler:
    """Samples that are taken on request; ``counters`` are the engine's."""

    counters: dict[str, float] = {}
    moves = True
    later_s = 0.0

    def __init__(self, _fleet, nodes, engines):
        self.engines, self.samples, self.began, self.closed = (
            engines,
            {name: [] for name in nodes},
            time.monotonic(),
            False,
        )
        self.lost = {}
        type(self).made = self
        for name in nodes:
            self.fresh(name)

    def now_s(self):
        return time.monotonic() - self.began + self.later_s

    def fresh(self, node):
        if node in self.lost:
            raise self.lost[node]
        generated = len(self.samples[node]) if self.moves else 0
        engine = {"generated": 1000.0 * (1 + generated), "running": 0.0, **self.counters}
        gpu = {"power_w": 60.0, "system_w": None, "sm_clock_mhz": 2400.0, "temperature_c": 60.0, "throttle": 0}
        sample = sampled(self.now_s(), engine=engine, memory=MEMORY | {"available_bytes": 4 << 30}, rdma={}, **gpu)
        self.samples[node].append(sample)
        return sample

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


class Client:
    """Answers of ``decode`` tokens/s per request; ``fails`` is called before each one with the number of earlier ones."""

    made: list[Client] = []

    def __init__(self, home, job):
        self.__dict__.update(job)
        self.home, self.tokenizer = home, (home / "tokenizer.json").read_text()
        self.cells, self.answered, self.closed = [], 0, False
        type(self).made.append(self)

    def fails(self, answered):
        """No failure."""

    def decode(self, cell):
        return 50.0 / cell.concurrency

    def run(self, cell):
        self.cells.append(cell)
        start_s = 0.0
        for run in range(-1, self.runs):
            if run == 0:
                yield {"event": "warm"}
            for phase in ["context"] * (cell.caching and cell.depth > 0) + ["prompt"]:
                for _ in range(cell.concurrency):
                    if run >= 0:
                        self.fails(self.answered)
                        self.answered += 1
                    yield {"event": ""}
                    last_s = start_s + 1 + (cell.answer - 1) / self.decode(cell)
                    yield {
                        "event": "request", "run": run, "phase": phase, "start_s": start_s, "first_s": start_s + 1,
                        "last_s": last_s, "prompt_tokens": cell.depth + cell.prompt, "tokens": cell.answer,
                        "first_tokens": 1,
                    }  # fmt: skip
            start_s += 1000
        (self.home / "reports").mkdir(exist_ok=True)
        (self.home / "reports/csv").write_text("model\n")
        yield {"event": "cell", "template_tokens": 10}

    def close(self):
        self.closed = True


@pytest.fixture
def serving(world, monkeypatch, tmp_path):
    """``serving(**inventory)``: fleet and spec of a cluster that serves release 3, reachable only over SSH."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "Sampler", type("Fake", (Sampler,), {}))
    monkeypatch.setattr(module, "Client", type("Fake", (Client,), {"made": []}))

    def make(**changes):
        site = world(**{"api": {"host": "127.0.0.1"}, **changes})
        for name in site.facts:
            site.change(name, weights=MODEL.model_dump())
        plan = site.plan(3)
        site.run(plan).record(plan, 3)
        hosts = {
            name: FakeHost(name)
            .program("probe", lambda _, name=name: site.facts[name].model_dump(mode="json"))
            .on("cat", "/hub/qwen/tokenizer.json", answer="{}")
            for name in site.facts
        }
        return Fleet(hosts), site

    return make


class AnsweringReport(Report):
    """Records questions and notes, and answers yes if ``says``."""

    def __init__(self, *, says=False):
        self.says, self.questions, self.notes, self.doing = says, [], [], []

    def confirm(self, question):
        self.questions.append(question)
        return self.says

    def note(self, text):
        self.notes.append(text)

    def progress(self, node, text):
        self.doing.append((node, text))


def test_a_run_is_stored_with_the_served_release_and_leaves_nothing_behind(serving):
    fleet, site = serving()
    report = AnsweringReport()
    found = measure(fleet, site.spec, Job(runs=2), report, seed=7)
    client = module.Client.made[0]
    assert (client.url, client.key, client.tokenizer, client.seed) == ("http://127.0.0.1:8000/v1", None, "{}", 7)
    assert client.closed
    assert not client.home.exists()
    assert (found.id, found.ended, found.release, found.nodes) == ("atlas-1", "complete", 3, ["alpha", "beta"])
    assert (found.model, found.client["path"]) == ("Qwen/Qwen3-8B", "engine")
    assert found.versions["llama_benchy"].startswith("0.4")
    assert found.versions["plan_hash"] == site.plan(3).hash
    cell = found.cells[0]
    assert (cell.prompt, cell.answer, cell.phase, len(cell.figures["decode"])) == (2048, 128, "prompt", 2)
    assert cell.engine["generated"] == 1000
    assert set(found.samples) == {"alpha", "beta"}
    assert len({len(series) for series in found.samples["alpha"].values()}) == 1
    assert record.load("atlas-1") == found
    assert found.as_json()["cells"][0]["figures"] == cell.figures
    assert report.doing[-1] == ("alpha", "1 of 1: 2,048 tokens, 1 request; 3 of 3 answered")


def test_a_run_with_the_real_child_process(serving, monkeypatch, tmp_path):
    with timeline.serving(timeline.Timeline(), timeline.tokenizer(tmp_path)) as engine:
        fleet, site = serving(playbook={"args": {"max-num-seqs": 2, "max-model-len": 4096}})
        found = (tmp_path / "tokenizer.json").read_text()
        fleet.hosts["alpha"].on("cat", "/hub/qwen/tokenizer.json", answer=found)
        monkeypatch.setattr(module, "forwarded", lambda *_: contextlib.nullcontext(engine.url))
        monkeypatch.setattr(module, "Client", child.Client)
        found = measure(fleet, site.spec, Job("sweep", runs=2), report := AnsweringReport())
    answers = [(cell.concurrency, cell.figures["answer_tokens"]) for cell in found.cells]
    assert answers == [(1, [128] * 2), (2, [128] * 4)]
    assert "the other 1 cell take" in report.notes[0]
    assert len((record.directory() / "atlas-1.csv").read_text().splitlines()) == 1 + 4


def test_ctrl_c_keeps_complete_cells_and_no_partial_cell(serving):
    def fails(_self, answered):
        if answered == 4:  # three were answered with 1 and 2 concurrent requests, and one of the 4 concurrent ones
            raise KeyboardInterrupt

    fleet, site = serving(playbook={"args": {"max-num-seqs": 4}})
    module.Client.fails = fails
    with pytest.raises(KeyboardInterrupt):
        measure(fleet, site.spec, Job("sweep", runs=1), report := AnsweringReport())
    assert report.notes[-1] == "partial results are kept: sparkcluster bench show atlas-1"
    found = record.load("atlas-1")
    assert found.ended == "interrupted"
    assert [(each.concurrency, len(each.figures["ttft_s"])) for each in found.cells] == [(1, 1), (2, 2)]


def test_after_an_error_of_the_child_the_complete_cells_are_kept(serving):
    def fails(_self, answered):
        if answered == 1:
            raise KeyError("first_s")

    fleet, site = serving(playbook={"args": {"max-num-seqs": 4}})
    module.Client.fails = fails
    with pytest.raises(KeyError):
        measure(fleet, site.spec, Job("sweep", runs=1), report := AnsweringReport())
    assert record.load("atlas-1").ended == "failed: 'first_s'"
    assert "atlas-1" in report.notes[-1]


def test_a_run_that_ends_in_its_first_cell_stores_nothing(serving):
    def fails(*_):
        raise KeyboardInterrupt

    fleet, site = serving()
    module.Client.fails = fails
    with pytest.raises(KeyboardInterrupt):
        measure(fleet, site.spec, Job(), report := AnsweringReport())
    assert (record.kept(), report.notes) == (([], []), [])


@pytest.mark.parametrize("node", ["alpha", "beta"])
def test_a_lost_node_ends_the_run_immediately_and_is_named(serving, node):
    fleet, site = serving()
    module.Client.fails = lambda *_: module.Sampler.made.lost.update(
        {node: HostError(f"{node} was silent for 60 s", node=node)}
    )
    with pytest.raises(HostError, match=f"{node} was silent"):
        measure(fleet, site.spec, Job(), AnsweringReport())


def test_a_dying_rank_ends_the_run_with_the_cause_and_keeps_finished_measurements(serving):
    fleet, site = serving(playbook={"args": {"max-num-seqs": 4}})

    def fails(_self, answered):
        if answered == 1:
            ranks = [{**rank, "state": "exited", "exit_code": 137} for rank in site.facts["beta"].model_dump()["ranks"]]
            site.change("beta", ranks=ranks)
            raise SparkclusterError("llama-benchy: HTTP 500")

    module.Client.fails = fails
    with pytest.raises(NotServing, match="the rank on beta exited with code 137") as caught:
        measure(fleet, site.spec, Job("sweep", runs=1), report := AnsweringReport())
    assert caught.value.hint == "sparkcluster doctor INVENTORY"
    assert record.load("atlas-1").ended == "failed: llama-benchy: HTTP 500"
    assert "atlas-1" in report.notes[-1]
    assert module.Client.made[0].closed


def test_an_engine_whose_counters_do_not_change_times_out(serving):
    fleet, site = serving()

    def fails(self, _answered):
        module.Sampler.later_s = 10_000

    module.Client.fails, module.Sampler.moves = fails, False
    with pytest.raises(NotServing, match="no counter of the engine has moved"):
        measure(fleet, site.spec, Job(), AnsweringReport())


def test_requests_of_others_need_confirmation_and_mark_the_run(serving):
    fleet, site = serving()
    module.Sampler.counters = {"running": 1.0, "waiting": 2.0}
    with pytest.raises(UsageError, match="3 requests of others"):
        measure(fleet, site.spec, Job(), refused := AnsweringReport())
    assert len(refused.questions) == 1
    assert module.Client.made == []
    for job, report in ((Job(), AnsweringReport(says=True)), (Job(yes=True), AnsweringReport())):
        found = measure(fleet, site.spec, job, report)
        assert "disturbed" in found.cells[0].marks


def test_a_row_of_a_sweep_ends_when_more_requests_bring_no_gain(serving):
    fleet, site = serving(playbook={"args": {"max-num-seqs": "16", "max-model-len": 4096}})
    found = measure(fleet, site.spec, Job("sweep", runs=1), report := AnsweringReport())
    assert [cell.concurrency for cell in module.Client.made[0].cells] == [1, 2, 4]
    assert len(found.skipped) == 2
    assert any("take about" in note for note in report.notes)


def test_no_cell_begins_after_the_time_limit(serving):
    fleet, site = serving()
    module.Client.fails = lambda *_: time.sleep(0.05)
    found = measure(fleet, site.spec, Job("guide", runs=1, minutes=0.001), AnsweringReport())
    assert found.ended == "time"
    assert 1 <= len(found.cells) < 5
    assert len(found.cells) + len(found.skipped) == 5


def test_files_for_spark_arena_contain_no_network_data_and_require_all_cells(serving):
    env, args = {"ENGINE_TUNING": "fast"}, {"max-model-len": 131072, "max-num-seqs": 10}
    fleet, site = serving(playbook={"args": args, "env": env})
    measure(fleet, site.spec, Job("arena", runs=1), report := AnsweringReport())
    folder = record.directory() / "atlas-1-arena"
    assert str(folder) in report.notes[-1]
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["env"] == env
    text = "".join(file.read_text() for file in folder.iterdir())
    text = re.sub(r'"timing": {.*?}', "", text, flags=re.DOTALL)  # a microsecond may have the digits of the port
    ranks = site.facts["alpha"].model_dump()["release"]["record"]["plan"]["nodes"]
    made = {
        value for name in ranks for key, value in ranks[name]["env"].items() if key.endswith(("NAME", "HCA", "_IP"))
    }
    assert len(made) > 3
    assert not [value for value in ("127.0.0.1", "8000", *ranks, *made) if value in text]

    fleet, site = serving(playbook={"args": {**args, "max-model-len": 8192}})
    measure(fleet, site.spec, Job("arena", runs=1), report := AnsweringReport())
    assert "no files for Spark Arena" in report.notes[-1]
    assert not (record.directory() / "atlas-2-arena").exists()


def test_an_address_that_is_not_the_heads_gets_no_request_and_no_key(serving):
    fleet, site = serving()
    release = site.facts["alpha"].model_dump()["release"]
    launcher = release["record"]["plan"]["nodes"]["alpha"]["containers"][0]["launcher"]
    launcher["engine"] = ["192.0.2.9" if word == "127.0.0.1" else word for word in launcher["engine"]]
    site.change("alpha", release=release)
    with pytest.raises(UsageError, match=r"192\.0\.2\.9.* is not an address of alpha"):
        measure(fleet, site.spec, Job(), AnsweringReport())
    assert module.Client.made == []


@pytest.mark.parametrize(
    ("job", "changes", "text"),
    [
        (Job(through="gateway"), {}, "has no gateway"),
        (Job(group="west"), {}, "there is no group west"),
        (Job(), {"playbook": {"verify": {"kind": "rerank"}}}, "rerank"),
        (Job("arena"), {"playbook": {"args": {"max-model-len": 1024}}}, "no cell of profile arena fits"),
    ],
)
def test_an_impossible_measurement_is_refused_before_any_request(serving, job, changes, text):
    fleet, site = serving(**changes)
    with pytest.raises(UsageError, match=text):
        measure(fleet, site.spec, job, AnsweringReport())
    assert module.Client.made == []


@pytest.mark.parametrize(
    ("of_spec", "job", "text"),
    [
        ({"idle_s": 60.0, "gateway_node": "alpha", "model": "coder"}, Job(), "coder is on demand"),
        ({"gateway_node": "alpha"}, Job(through="gateway"), "several groups behind the gateway"),
    ],
)
def test_a_measurement_that_the_gateway_would_disturb_is_refused(serving, of_spec, job, text):
    groups = [{"name": name, "nodes": [name]} for name in ("alpha", "beta")]
    fleet, site = serving(groups=groups)
    with pytest.raises(UsageError, match=text):
        measure(fleet, dataclasses.replace(site.spec, **of_spec), job, AnsweringReport())
    assert module.Client.made == []


@pytest.mark.parametrize("listens", [True, False])
def test_a_gateway_is_queried_at_the_address_of_clients_and_only_if_present(serving, monkeypatch, listens):
    fleet, site = serving()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        if not listens:
            server.close()
        found = Connection("atlas", url, "m", tunnel="ssh -N -L 8000:127.0.0.1:8000 alpha")
        monkeypatch.setattr(module, "connection", lambda _: found)
        ended = contextlib.nullcontext() if listens else pytest.raises(NotServing, match="does not answer at")
        with ended as caught:
            run = measure(
                fleet, dataclasses.replace(site.spec, gateway_node="alpha"), Job(through="gateway"), AnsweringReport()
            )
    if listens:
        assert (run.client["path"], module.Client.made[0].url) == ("gateway", url)
    else:
        assert (caught.value.hint, module.Client.made) == (found.tunnel, [])


def test_a_model_without_a_tokenizer_file_is_refused(serving):
    fleet, site = serving()
    fleet.hosts["alpha"].on("cat", "/hub/qwen/tokenizer.json", answer=Result(1, b"", b"cat: No such file"))
    with pytest.raises(UsageError, match=r"has no tokenizer\.json on alpha"):
        measure(fleet, site.spec, Job(), AnsweringReport())


def test_without_the_extra_the_error_says_what_to_install(serving, monkeypatch):
    fleet, site = serving()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llama_benchy" else found(name))
    with pytest.raises(UsageError) as caught:
        measure(fleet, site.spec, Job(), AnsweringReport())
    assert caught.value.hint == "in the clone: uv tool install --reinstall '.[bench]'"
    assert not fleet.hosts["alpha"].calls
