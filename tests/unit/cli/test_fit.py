"""``sparkcluster fit``: output, answers, and exit codes."""

from __future__ import annotations

import json

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.errors import HostTimeout
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from tests.unit.fit.llama import LLAMA_8B


@pytest.fixture
def fit(tmp_path, capsys, monkeypatch):
    """``fit(*flags, config=…, **playbook)``: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def do(*flags, config=LLAMA_8B, **playbook):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        written = {
            "name": "mine",
            "model": {"path": str(tmp_path)},
            "image": "vllm/vllm-openai:v0.23.0",
            "args": {"gpu-memory-utilization": 0.85, "max-model-len": 32768},
            **playbook,
        }
        (tmp_path / "mine.yaml").write_text(json.dumps(written))
        code = guarded(["fit", "mine.yaml", *flags])
        said = capsys.readouterr()
        return code, said.out, said.err

    return do


def test_json_has_all_figures_in_bytes_and_they_add_up(fit):
    code, out, _ = fit("--json")
    told = json.loads(out)
    memory = told["memory"]
    assert (code, told["fits"], told["vllm_version"], told["context"]) == (0, True, "0.23", 32768)
    parts = memory["weights_bytes"] + memory["runtime_bytes"] + told["kv_cache"]["bytes"]
    assert parts == memory["budget_bytes"]
    assert memory["weights_bytes"] == pytest.approx(16e9, rel=0.03)
    assert told["kv_cache"]["bytes_per_token"] == pytest.approx(128 * 1024, rel=0.001)


def test_a_model_that_does_not_fit_exits_1_with_the_setting_to_change(fit):
    code, out, err = fit("--memory-gb", "16")
    assert code == 1
    assert out.startswith("mine does not fit on one Spark\n")
    assert "hint: serve it on 2 Sparks, with tensor_parallel 2 or auto\n" in err


def test_the_answer_comes_first_and_shows_the_number_of_requests_once(fit):
    """vLLM's token count differs for models with sliding windows."""
    _, out, _ = fit()
    first, second = out.splitlines()[:2]
    assert (first, second.split(",")[0]) == ("mine fits on one Spark", "  20 concurrent requests of 32")
    assert "log a KV cache" not in out
    assert "log a KV cache" in fit("--verbose")[1]


@pytest.mark.parametrize(
    ("lifted", "flags", "limited"),
    [
        ({}, ("--context", "131073"), True),
        ({"args": {"max-model-len": 200000}}, (), True),
        ({}, ("--context", "131072"), False),
        ({"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}, ("--context", "200000"), False),
    ],
)
def test_no_context_above_the_models_limit_fits_or_is_advised(fit, lifted, flags, limited):
    """Like SM121-063, by which `plan` and `up` refuse it."""
    playbook = {"args": {"gpu-memory-utilization": 0.85, **lifted.get("args", {})}, "env": lifted.get("env", {})}
    code, _, err = fit(*flags, **playbook)
    assert (code == 1, "set max-model-len to 131072\n" in err) == (limited, limited)


NANO = {**LLAMA_8B, "max_position_embeddings": 262144}


@pytest.mark.parametrize(
    ("flags", "context", "code"),
    [(("--context", "800000"), 65536, 0), ((), 800000, 1), (("--context", "1048577"), 65536, 1)],
)
def test_an_extended_context_that_the_vendor_documents_needs_one_variable(fit, tmp_path, flags, context, code):
    """As the guide says about Nemotron 3 Nano, whose config.json has a lower limit."""
    model = {"id": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8"}
    config = ("--config", str(tmp_path / "config.json"))
    args = {"gpu-memory-utilization": 0.85, "max-model-len": context, "kv-cache-dtype": "fp8"}
    got, _, err = fit(*config, *flags, config=NANO, model=model, args=args)
    hint = 'for 800,000 tokens write VLLM_ALLOW_LONG_MAX_MODEL_LEN: "1" under env'
    assert (got, hint in err) == (code, "1048577" not in flags)


@pytest.mark.parametrize(
    ("image", "hinted"),
    [("nvcr.io/nvidia/vllm:25.12.post1-py3", False), ("vllm/vllm-openai:v0.18.0-cu130", True), ("mine/vllm:1", True)],
)
def test_no_argument_unknown_to_the_image_is_advised(offline, tmp_path, capsys, image, hinted):
    guarded(["fit", "nemotron-3-nano-30b-a3b-nvfp4", "--set", f"image={image}"])
    assert ("set moe-backend to marlin" in capsys.readouterr().err) == hinted


def test_a_cache_requested_in_bytes_is_answered_in_bytes(fit):
    """In that case vLLM does not derive it from gpu-memory-utilization (vllm#21489)."""
    args = {"gpu-memory-utilization": 0.15, "max-model-len": 32768, "kv-cache-memory-bytes": "6G"}
    code, out, _ = fit(args=args)
    assert (code, out.splitlines()[-1]) == (
        0,
        "kv-cache-memory-bytes sets a KV cache of 6.44 GB; 4.29 GB is enough for 1 concurrent request",
    )
    assert "utilization" not in out
    code, out, _ = fit("--json", args=args | {"kv-cache-memory-bytes": "110G"})
    told = json.loads(out)
    assert (code, told["gpu_memory_utilization"], told["kv_cache"]["set_by"]) == (1, None, "kv-cache-memory-bytes")
    assert [line.rsplit(" ", 4)[0] for line in told["advice"]] == ["set kv-cache-memory-bytes to"]
    json_schemas.validate("fit", told)


def test_the_smallest_utilization_for_a_context_and_concurrency(fit):
    """The smallest utilization for a context and a concurrency."""
    _, out, _ = fit("--json", "--context", "131072", "--concurrency", "4")
    told = json.loads(out)
    # 16 GB, 4 x 17.2 GB and the memory of a step, of 130.6 GB
    assert 0.65 < told["smallest_gpu_memory_utilization"] < 0.75
    safe = told["safe_gpu_memory_utilization"]
    assert told["smallest_gpu_memory_utilization"] < safe < 0.8
    code, out, _ = fit("--json", "--context", "131072", "--concurrency", "4", args={"gpu-memory-utilization": "auto"})
    told = json.loads(out)
    assert (code, told["gpu_memory_utilization"], told["gpu_memory_utilization_is_auto"]) == (0, safe, True)


def test_a_model_that_is_too_close_to_say_shows_the_range_and_exits_0(fit):
    _, out, _ = fit("--json")
    smallest = json.loads(out)["smallest_gpu_memory_utilization"]
    code, out, err = fit(args={"gpu-memory-utilization": smallest, "max-model-len": 32768})
    assert (code, out.splitlines()[0]) == (0, "mine may not fit on one Spark")
    assert "set gpu-memory-utilization to" in err
    told = json.loads(fit("--json", args={"gpu-memory-utilization": smallest, "max-model-len": 32768})[1])
    assert (told["fits"], told["verdict"], told["problems"]) == (None, "too close to call", [])
    cache = told["kv_cache"]
    assert cache["tokens_least"] < cache["tokens"] < cache["tokens_most"]
    assert cache["bytes_least"] < cache["bytes"] < cache["bytes_most"]


@pytest.mark.parametrize(
    ("flags", "config", "told"),
    [
        ((), "{", "is not JSON"),
        ((), {**LLAMA_8B, "num_hidden_layers": 10**40}, "num_hidden_layers"),
        (("--nodes", "3"), LLAMA_8B, "32 attention heads"),
        (("--config", "nowhere"), LLAMA_8B, "nowhere"),
        (("--memory-gb", "nan"), LLAMA_8B, "memory-gb"),
    ],
)
def test_an_invalid_request_is_an_error_with_exit_code_2(fit, flags, config, told):
    code, out, err = fit(*flags, config=config)
    assert (code, out) == (2, "")
    assert told in err
    assert "hint" in err


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """The hub is unreachable, and the user has no models."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_bundled_playbook_is_answered_without_the_hub(offline, capsys):
    assert guarded(["fit", "qwen3.6-35b-a3b-nvfp4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", document)
    assert (document["verdict"], document["kv_cache"]["tokens"] > 0) == ("fits", True)
    assert document["recorded"]


def test_a_model_without_a_record_is_reported_with_the_command_that_records_it(offline, capsys):
    assert guarded(["fit", "gemma-4-12b-coder"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("gemma-4-12b-coder is not recorded: unknown whether it fits on one Spark\n")
    assert "http://127.0.0.1:1" in said.out
    assert "scripts/record-model sakamakismile/gemma-4-12B" in said.err
    assert guarded(["fit", "gemma-4-12b-coder", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", document)
    assert (document["fits"], document["verdict"], "memory" in document) == (None, "not recorded", False)


def test_memory_for_more_nodes_than_the_playbook_is_for_is_no_promise(offline, capsys):
    """``lint`` and ``up`` refuse the group."""
    assert guarded(["fit", "qwen3.6-27b-nvfp4", "--nodes", "2"]) == 0
    headline, reason = capsys.readouterr().out.splitlines()[:2]
    assert headline == "qwen3.6-27b-nvfp4 would fit on 2 Sparks"
    assert reason == "  the playbook is for 1 Spark, so up refuses 2"
    assert guarded(["fit", "gpt-oss-120b", "--nodes", "2"]) == 0
    assert capsys.readouterr().out.startswith("gpt-oss-120b fits on 2 Sparks\n")


def test_smaller_weights_are_advised_only_for_a_model_that_is_not_quantized(offline, capsys):
    found = {}
    for name in ("llama-3.3-70b-instruct", "qwen3.6-35b-a3b-nvfp4"):
        guarded(["fit", name, "--memory-gb", "12"])
        found[name] = capsys.readouterr().err
    assert ["such as NVFP4" in text for text in found.values()] == [True, False]
    assert "hint: serve it on 4 Sparks" in found["llama-3.3-70b-instruct"]
    assert "or: use a checkpoint with smaller weights" in found["llama-3.3-70b-instruct"]


MEASURED = {"load_gib": 7.61, "kv_gib": 76.49, "kv_tokens": 4_843_965.0, "graphs_gib": 0.83}


def test_a_measurement_on_the_cluster_is_shown_next_to_the_prediction(world, monkeypatch, capsys, tmp_path):
    arguments = {"gpu-memory-utilization": 0.85, "max-model-len": 4096}
    one = world(playbook={"args": arguments, "served_name": "chat"})
    documents = [one.document(one.plan(number), number) for number in (6, 7)]
    documents[1]["groups"]["default"]["measured"] |= MEASURED
    hosts = {name: FakeHost(name).program("releases", {"records": documents}) for name in one.facts}
    monkeypatch.setattr("sparkcluster.cli.common.fleet_of", lambda *_: Fleet(hosts))
    monkeypatch.setattr("sparkcluster.spec.load.load", lambda *_, **__: one.spec)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    flags = ["x", "--inventory", str(one.spec.inventory_path), "--config", str(tmp_path / "config.json")]
    assert guarded(["fit", *flags]) == 0
    out = capsys.readouterr().out
    assert "measured here in release 7: weights 8.17 GB" in out
    assert "4,843,965 tokens of KV cache" in out
    guarded(["fit", *flags, "--json"])
    found = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", found)
    args = {"gpu-memory-utilization": 0.85, "max-model-len": 4096}
    assert found["measured"] == {"release": 7, "group": "default", "nodes": 2, "args": args, **MEASURED}
    hosts.clear()
    hosts["alpha"] = FakeHost("alpha")
    assert guarded(["fit", *flags]) == 0
    assert "cannot read measurements from atlas" in capsys.readouterr().err


PAIR = ["gpt-oss-20b", "qwen3.5-4b-dflash"]


def test_several_playbooks_are_checked_together(offline, capsys, tmp_path):
    """The memory of each, in bytes for programs; exit code 1 if it is too much."""
    assert guarded(["fit", "gpt-oss-120b", "qwen3.6-35b-a3b-nvfp4", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", document)
    (spark,) = document["sparks"]
    taken = sum(part["bytes"] for part in spark["parts"]) + spark["system_bytes"] + spark["kept_free_bytes"]
    assert (document["fits"], spark["free_bytes"]) == (False, spark["visible_bytes"] - taken)
    assert document["problems"][0].startswith("spark-1: gpt-oss-120b")
    assert guarded(["fit", *PAIR]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("fits: gpt-oss-20b, qwen3.5-4b-dflash\n")
    assert "reserve" in shown
    assert "unused" in shown
    unknown = tmp_path / "mine.yaml"
    unknown.write_text(
        json.dumps({"name": "mine", "model": {"id": "someone/mine"}, "image": "vllm/vllm-openai:v0.20.0"})
    )
    assert guarded(["fit", str(unknown), PAIR[0]]) == 0
    assert capsys.readouterr().out.startswith("unknown whether it fits: mine, gpt-oss-20b\n")
    assert guarded(["fit", "llama-3.3-70b-instruct", "--nodes", "2"]) == 0
    assert "\non each Spark:\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*PAIR, "gpt-oss-12b"], 'no playbook named "gpt-oss-12b"'),
        ([*PAIR, "--context", "4096"], "--context is for one playbook"),
        ([*PAIR, "--concurrency", "2"], "--concurrency is for one playbook"),
    ],
)
def test_one_wrong_word_is_a_single_error(offline, capsys, words, told):
    assert guarded(["fit", *words]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("error: ")) == ("", 1)
    assert told in said.err


def test_an_inventory_is_answered_per_spark_with_the_measurements_there(offline, monkeypatch, capsys, tmp_path):
    inventory = tmp_path / "sparks.yaml"
    nodes = [{"host": f"192.168.86.1{number}", "name": f"spark-{number}"} for number in (1, 2)]
    groups = [{"name": name, "nodes": [f"spark-{number}"]} for number, name in enumerate("ab", 1)]
    models = [
        {"playbook": "gpt-oss-20b", "groups": groups, "set": {"args.gpu-memory-utilization": "auto"}},
        {"playbook": "nemotron-3-nano-30b-a3b-32gb", "name": "nano", "nodes": ["spark-2"]},
    ]
    inventory.write_text(json.dumps({"cluster": "atlas", "nodes": nodes, "models": models}))
    measured = {"release": 7, "group": "a", "nodes": 1, "args": {}, "load_gib": 15.0}
    monkeypatch.setattr("sparkcluster.cli.common.fleet_of", lambda *_: Fleet({}))
    monkeypatch.setattr(
        "sparkcluster.inspect.releases.measured",
        lambda _, spec, __: measured if not spec.model.startswith("nano") else None,
    )
    assert guarded(["fit", str(inventory), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", document)
    kinds = [{part["model"]: part["kind"] for part in spark["parts"]} for spark in document["sparks"]]
    assert kinds == [{"gpt-oss-20b": "measured"}, {"gpt-oss-20b": "measured", "nano": "computed"}]

    def unread(*_):
        raise HostTimeout("no answer within 5 s", node="spark-1")

    monkeypatch.setattr("sparkcluster.inspect.releases.measured", unread)
    assert guarded(["fit", str(inventory)]) == 0
    assert capsys.readouterr().out.startswith("fits by estimate: gpt-oss-20b, nano\n")
