"""``bench`` on a running release: the stored run, also of an interrupted one, and no leftovers.

The tests of the stub share two Sparks and one ``up``; each continues in the state that the previous one left. With
``--full`` every profile runs against the real engine.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
import threading
import time
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from tests.lab.test_serving import SERVES, complete, set_stub_faults, until
from tests.lab.test_several_models import POOLING

WORDS, LONG = "/root/models/words", "/root/models/long"
CONTEXT = 8192
ROOT = Path(__file__).parent.parent.parent
# A sweep of a model with a context of 8,192 tokens and four concurrent requests: depths 0 and 4,096.
SWEEP = [(depth, concurrency) for depth in (0, 4096) for concurrency in (1, 2, 4)]
MASKED = "import sys\nsys.modules['llama_benchy'] = None\n"


def copied(lab, path, tokenizer=None):
    """Give every Spark a copy of the lab's model with a longer context and a tokenizer."""
    source = yaml.safe_load(lab.playbook.read_text())["model"]["path"]
    script = f"mkdir -p {path} && cp {source}/* {path} && "
    script += f"sed -i 's/max_position_embeddings\": [0-9]*/max_position_embeddings\": {CONTEXT}/' {path}/config.json"
    for spark in lab.sparks:
        spark.run(["sh", "-c", script])
        if tokenizer is not None:
            Path(f"/proc/{spark.pid}/root{path}/tokenizer.json").write_text(json.dumps(tokenizer))


def words():
    """A tokenizer that counts words, like the stub engine."""
    book = gzip.decompress((files("sparkcluster.bench") / "book.txt.gz").read_bytes()).decode()
    vocabulary = {word: number for number, word in enumerate(["?", *sorted(set(book.split()))])}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": vocabulary},
    }


def children(pid):
    """Process ids of the children of a process."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= set(map(int, task.read_text().split()))
    return found


def sampled(lab):
    """The lines of ``ps`` about the sampling processes of a Spark."""
    listed = [spark.run(["ps", "-eo", "args"]).stdout.splitlines() for spark in lab.sparks]
    return [line for lines in listed for line in lines if line.endswith(" vitals") or "nvidia-smi" in line]


class Runs:
    """Runs ``bench`` in the home of the module, and reads the stored runs."""

    def __init__(self, cli, inventory):
        self._cli, self.inventory = cli, inventory
        self.folder = cli.home / ".local/state/sparkcluster/bench"

    def start(self, *words, **options):
        return self._cli.start("bench", *words, **options)

    def __call__(self, *words, timeout=300, **options):
        return self.start(*words, **options).wait(timeout)

    def record(self, *words, timeout=300):
        """The document of a run on the inventory, which must succeed."""
        return self.start(self.inventory, *words, "--json").wait(timeout).ok().json

    def kept(self):
        """The output of ``bench list``, newest first."""
        return self("list", "--json").ok().json["runs"]


@pytest.fixture(scope="module")
def shared_lab(mixed_sparks):
    return mixed_sparks


@pytest.fixture(scope="module")
def bench(shared_lab, module_cli, module_variant, clean):
    clean(shared_lab)
    copied(shared_lab, WORDS, words())
    playbook = {**SERVES, "model": {"path": WORDS}, "args": {"max-model-len": CONTEXT}}
    inventory = module_variant(shared_lab, playbook=playbook, api=None)
    module_cli("up", inventory).ok()
    yield Runs(module_cli, inventory)
    clean(shared_lab)


def test_a_run_over_ssh_counts_the_engines_tokens_and_keeps_samples_of_both_sparks(bench, shared_lab):
    record = bench.record("--profile", "quick", "--runs", "2")
    assert (record["ended"], record["client"]["path"], record["skipped"]) == ("complete", "engine", [])
    (cell,) = record["cells"]
    assert cell["marks"] == []
    assert {name: len(figures) for name, figures in cell["figures"].items()} == dict.fromkeys(
        ("prefill", "decode", "decode_user", "ttft_s", "prompt_tokens", "answer_tokens"), 2
    )
    assert (cell["figures"]["prompt_tokens"], cell["figures"]["answer_tokens"]) == ([2048] * 2, [128] * 2)
    assert (cell["engine"]["prompted"], cell["engine"]["generated"]) == (2 * 2048, 2 * 128)
    assert set(record["samples"]) == {spark.name for spark in shared_lab.sparks}
    for series in record["samples"].values():
        assert cell["began_s"] <= series["at_s"][-1]
        assert None not in series["available_gib"]
    assert {path.name for path in bench.folder.iterdir()} == {
        f"{record['id']}{ending}" for ending in (".json", ".llama-benchy.json", ".csv")
    }
    assert bench.kept() == [record]
    assert bench("show", record["id"], "--json").ok().json == record
    assert record["id"] in bench("list").ok().out
    assert "2,048" in bench("show", record["id"]).ok().out


def test_an_impossible_measurement_display_or_comparison_is_refused_in_one_sentence(bench, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(MASKED)
    first = bench.kept()[0]["id"]
    for words, env, said in (
        ([bench.inventory], {"PYTHONPATH": f"{tmp_path}:{ROOT}"}, "uv tool install --reinstall '.[bench]'"),
        ([bench.inventory, "--profile", "fast"], {}, "quick"),
        ([bench.inventory, "--through", "gateway"], {}, "has no gateway"),
        (["show", "../../x"], {}, "there is no run ../../x"),
        (["show"], {}, "sparkcluster bench show RUN"),
        (["compare", first, first[:-1] + "9"], {}, "there is no run"),
    ):
        done = bench(*words, env=env)
        assert (done.code, done.out, said in done.err) == (2, "", True), done
        assert "Traceback" not in done.err


def test_ctrl_c_keeps_finished_measurements_and_leaves_no_process(bench, shared_lab):
    running = bench.start(bench.inventory, "--profile", "sweep", "--runs", "1")
    running.wait_for("the other 5 cells take")
    ours = children(running.pid)
    assert ours
    assert sampled(shared_lab)
    running.kill(signal.SIGINT)
    done = running.wait()
    record = bench.kept()[0]
    assert (done.code, record["ended"], record["id"] in done.err) == (130, "interrupted", True), done
    assert "Traceback" not in done.err
    assert 0 < len(record["cells"]) < len(SWEEP)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours), limit_s=10)
    until(lambda: not sampled(shared_lab), limit_s=10)
    compared = bench("compare", record["id"], bench.kept()[1]["id"])
    assert (compared.code, "no valid cell" in compared.err) == (2, True), compared


def test_requests_of_others_require_confirmation_and_mark_the_run(bench, shared_lab):
    head = shared_lab.sparks[0]
    set_stub_faults(head, "slow=20")
    asking = threading.Thread(target=complete, args=(head, "http://127.0.0.1:8000/v1", 1500))
    asking.start()
    time.sleep(1)
    refused = bench(bench.inventory, "--runs", "1")
    assert (refused.code, "1 request of others in flight" in refused.err, "--yes" in refused.err) == (2, True, True)
    running = bench.start(bench.inventory, "--runs", "1", "--yes", "--json")
    running.wait_for("2,048 tokens")
    set_stub_faults(head)
    record = running.wait().ok().json
    assert record["cells"][0]["marks"] == ["disturbed"]
    asking.join()


def test_a_dying_rank_ends_the_run_with_its_cause_and_keeps_finished_measurements(bench, shared_lab):
    running = bench.start(bench.inventory, "--profile", "sweep", "--runs", "1", "--json")
    running.wait_for("the other 5 cells take")
    shared_lab.sparks[1].run(["sh", "-c", "docker kill $(docker ps -q)"])
    done = running.wait()
    error = done.error
    assert (done.code, "sparkcluster doctor" in error["hint"]) == (1, True), done
    assert "the rank on " in error["message"]
    record = bench.kept()[0]
    assert record["ended"].startswith("failed: ")
    assert 0 < len(record["cells"]) < len(SWEEP)


@pytest.mark.full
def test_models_are_measured_through_the_gateway_and_embedding_models_in_texts(
    shared_lab, module_cli, module_variant, clean
):
    clean(shared_lab)
    copied(shared_lab, WORDS, words())
    first, second = (spark.name for spark in shared_lab.sparks)

    def entry(name, node, args, **more):
        args = {"max-model-len": CONTEXT, "gpu-memory-utilization": 0.1, **args}
        return {
            "name": name,
            "nodes": [node],
            "playbook": {"served_name": name, "model": {"path": WORDS}, "args": args},
            **more,
        }

    models = [entry("embed", first, POOLING), entry("coder", second, {}, on_demand={"idle_s": 600})]
    inventory = module_variant(shared_lab, models=models, gateway={})
    module_cli("up", inventory).ok()
    runs = Runs(module_cli, inventory)

    record = runs.record("--model", "embed", "--runs", "2")
    (cell,) = record["cells"]
    assert (record["client"]["path"], cell["figures"].keys(), cell["marks"]) == ("engine", {"texts"}, [])
    assert len(cell["figures"]["texts"]) == 2
    refused = runs(inventory, "--model", "coder")
    assert (refused.code, "sparkcluster load" in refused.err, "--through gateway" in refused.err) == (2, True, True)
    module_cli("load", inventory, "coder").ok()  # returns immediately

    def ready():
        models = module_cli("status", inventory, "--json").json["gateway"]["models"]
        return {"coder": "ready"}.items() <= {each["name"]: each["state"] for each in models}.items()

    until(ready)
    record = runs.record("--model", "coder", "--through", "gateway", "--runs", "1")
    assert (record["ended"], record["client"]["path"]) == ("complete", "gateway")
    assert (record["cells"][0]["figures"]["prompt_tokens"], record["cells"][0]["marks"]) == ([2048], [])
    clean(shared_lab)


@pytest.fixture(scope="module")
def real(make_lab, module_cli, module_variant):
    """Two Sparks that serve a model of random weights with the real engine; each byte is a token."""
    lab = make_lab(2, engine="vllm")
    copied(lab, LONG)
    playbook = {"model": {"path": LONG}, "args": {"max-model-len": CONTEXT}, "verify": {"pause_s": 0}}
    inventory = module_variant(lab, playbook=playbook)
    module_cli("up", inventory, timeout=1500).ok()
    return Runs(module_cli, inventory)


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize(
    ("profile", "flags", "cells", "skipped"),
    [
        ("quick", ["--runs", "2"], {(2048, 0, 1)}, ""),
        ("guide", ["--runs", "1"], {(prompt, 0, 1) for prompt in (58, 1834, 7234)}, ""),
        ("sweep", ["--runs", "1", "--minutes", "1"], {(2048, *row) for row in SWEEP}, ""),
        # 10 concurrent requests, of which the engine runs four
        (
            "arena",
            ["--runs", "1"],
            {(2048, depth, each) for depth in (0, 4096) for each in (1, 2, 5, 10)},
            "20 of 28 cells do not fit in the context",
        ),
    ],
)
def test_every_profile_runs_against_the_real_engine(real, profile, flags, cells, skipped):
    record = real.record("--profile", profile, *flags, timeout=1500)
    assert record["client"]["path"] == "engine"
    measured = {(cell["prompt"], cell["depth"], cell["concurrency"]) for cell in record["cells"]}
    if profile == "sweep":  # as many as fit in the time
        assert (2048, 0, 1) in measured <= cells
    else:
        assert (measured, record["ended"], ". ".join(record["skipped"])) == (cells, "complete", skipped)
    for cell in record["cells"]:
        sent = cell["prompt"] + cell["depth"] if profile != "arena" else None
        assert set(cell["figures"]["answer_tokens"]) == {cell["answer"]}
        assert sent is None or set(cell["figures"]["prompt_tokens"]) == {sent}
        assert cell["marks"] == []
    assert not (real.folder / f"{record['id']}-arena").exists()


@pytest.mark.engine
@pytest.mark.full
def test_an_a_b_of_the_real_engine_compares_three_runs_and_restores_the_previous_release(real):
    done = real(real.inventory, "--ab", "args.max-num-seqs=3", "--runs", "2", "--yes", timeout=1500)
    assert done.code == 0, done
    again, changed, before = real.kept()[:3]
    assert [each["change"] for each in (before, changed, again)] == ["", "args.max-num-seqs=3", ""]
    assert before["pair"] == [before["id"], changed["id"], again["id"]] == again["pair"]
    assert before["answers"] == changed["answers"] == again["answers"] != {}
    assert "noise" in real("compare", before["id"], again["id"]).ok().out
