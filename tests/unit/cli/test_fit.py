"""``sparkcluster fit``: what it shows, what it answers, and how it ends."""

from __future__ import annotations

import json
import re

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.lab.engine.model import write_tiny_model
from tests.unit.models.llama import LLAMA_8B


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


def test_what_fits_is_shown_within_80_columns_without_colour(fit):
    code, out, err = fit()
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out
    bar = next(line for line in lines if line.startswith("|"))
    assert len(bar) == 80
    assert [sign for sign in "WrKhs.x" if sign in bar] == list("WrKhs.x")
    assert "weights are estimated" in err


def test_json_has_it_all_in_bytes_and_adds_up(fit):
    code, out, _ = fit("--json")
    told = json.loads(out)
    memory = told["memory"]
    assert (code, told["fits"], told["vllm_version"], told["context"]) == (0, True, "0.23", 32768)
    parts = memory["weights_bytes"] + memory["runtime_bytes"] + told["kv_cache"]["bytes"]
    assert parts == memory["budget_bytes"]
    assert memory["weights_bytes"] == pytest.approx(16e9, rel=0.03)
    assert told["kv_cache"]["bytes_per_token"] == pytest.approx(128 * 1024, rel=0.001)


def test_what_does_not_fit_ends_with_1_and_what_to_change(fit):
    code, out, err = fit("--memory-gb", "16")
    assert code == 1
    assert "error" not in out
    assert "does not fit: weights of" in err
    assert "hint: serve it on 2 Sparks" in err


def test_no_advice_takes_more_memory_than_sparks_survive(fit):
    """SM121-060 and `auto` end at 0.90, so a hint that says more would be refused by the next command."""
    _, _, err = fit("--context", "9000000", env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert "with gpu-memory-utilization 0.90" in err


@pytest.mark.parametrize(
    ("lifted", "flags", "limited"),
    [
        ({}, ("--context", "9000000"), True),
        ({}, ("--context", "131073"), True),
        ({"args": {"max-model-len": 200000}}, (), True),
        ({}, ("--context", "131072"), False),
        ({"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}, ("--context", "200000"), False),
        ({"args": {"hf-overrides": {"rope_parameters": {"factor": 4}}}}, ("--context", "200000"), False),
    ],
)
def test_no_context_above_the_models_own_fits_or_is_advised(fit, lifted, flags, limited):
    """As SM121-063, by which `plan` and `up` refuse it."""
    playbook = {"args": {"gpu-memory-utilization": 0.85, **lifted.get("args", {})}, "env": lifted.get("env", {})}
    code, _, err = fit(*flags, **playbook)
    assert (code == 1, "are more than the model's 131,072" in err) == (limited, limited)
    assert ("hint: set max-model-len to 131072\n" in err) == limited
    assert err.count("hint:") == limited
    if limited:
        code, _, err = fit(*flags, "--memory-gb", "46", **playbook)
        assert (err.count("set max-model-len to"), "with gpu-memory-utilization" in err) == (1, True)


def test_the_utilization_that_is_needed_is_the_one_that_is_advised(fit):
    _, out, err = fit("--context", "131072", args={"gpu-memory-utilization": 0.2})
    advised = re.search(r"hint: set gpu-memory-utilization to (\S+)", err)[1]
    assert re.search(
        rf"^needs +gpu-memory-utilization {advised} for 1 request at once\n +0\.\d\d by the", out, re.MULTILINE
    )


def test_the_other_way_round(fit):
    """The smallest utilization for a context and a concurrency."""
    _, out, _ = fit("--json", "--context", "131072", "--concurrency", "4")
    told = json.loads(out)
    assert (
        0.65 < told["smallest_gpu_memory_utilization"] < 0.75
    )  # 16 GB, 4 x 17.2 GB and what a step needs, of 130.6 GB
    safe = told["safe_gpu_memory_utilization"]
    assert told["smallest_gpu_memory_utilization"] < safe < 0.8
    code, out, _ = fit("--json", "--context", "131072", "--concurrency", "4", args={"gpu-memory-utilization": "auto"})
    told = json.loads(out)
    assert (code, told["gpu_memory_utilization"], told["gpu_memory_utilization_is_auto"]) == (0, safe, True)


def test_what_is_too_close_to_say_is_told_with_the_range_and_ends_with_0(fit):
    _, out, _ = fit("--json")
    smallest = json.loads(out)["smallest_gpu_memory_utilization"]
    code, out, err = fit(args={"gpu-memory-utilization": smallest, "max-model-len": 32768})
    assert (code, "between" in out) == (0, True)
    assert "too close to say whether it fits: one request of 32,768 tokens needs" in err
    assert "hint: set gpu-memory-utilization to" in err
    told = json.loads(fit("--json", args={"gpu-memory-utilization": smallest, "max-model-len": 32768})[1])
    assert (told["fits"], told["verdict"], told["problems"]) == (None, "too close to say", [])
    cache = told["kv_cache"]
    assert cache["tokens_least"] < cache["tokens"] < cache["tokens_most"]
    assert cache["bytes_least"] < cache["bytes"] < cache["bytes_most"]


def test_two_nodes_take_half_of_it_each(fit):
    one, two = (json.loads(fit("--json", *flags)[1])["memory"]["weights_bytes"] for flags in ((), ("--nodes", "2")))
    assert two == pytest.approx(one / 2, rel=0.01)


def test_the_tensors_are_counted_where_they_lie(fit, tmp_path):
    tiny = write_tiny_model(tmp_path / "tiny")
    code, out, err = fit("--json", "--config", str(tiny), args={"max-model-len": 1024})
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["memory"]["weights_counted"]
    assert told["memory"]["weights_bytes"] < (tiny / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    "asked",
    [{"env": {"VLLM_CPU_KVCACHE_SPACE": "2"}}, {"args": {"kv-cache-memory-bytes": 2 << 30, "max-model-len": 8192}}],
)
def test_a_cache_that_is_asked_for_by_its_size_has_that_size(fit, asked):
    code, out, _ = fit("--json", **{"args": {"max-model-len": 8192}, **asked})
    told = json.loads(out)
    assert (code, told["kv_cache"]["bytes"]) == (0, 2 << 30)
    code, _, err = fit(**{**asked, "args": {**asked.get("args", {}), "max-model-len": 131072}})
    assert code == 1
    assert "to 16 GiB" in err


def test_an_inventory_tells_the_number_of_nodes(fit, tmp_path, monkeypatch):
    monkeypatch.setattr("sparkcluster.inspect.history.measured", lambda *_: None)
    nodes = [{"name": name, "host": f"10.0.0.{at}"} for at, name in enumerate(("a", "b"), 1)]
    (tmp_path / "two.yaml").write_text(json.dumps({"cluster": "two", "nodes": nodes, "playbook": "mine.yaml"}))
    told = json.loads(fit("--json", "--inventory", "two.yaml")[1])
    assert (told["nodes"], told["tensor_parallel"]) == (2, 2)
    groups = [{"name": name, "nodes": [name]} for name in ("a", "b")]
    both = {"cluster": "two", "nodes": nodes, "playbook": "mine.yaml", "groups": groups}
    (tmp_path / "two.yaml").write_text(json.dumps(both))
    assert json.loads(fit("--json", "--inventory", "two.yaml")[1])["nodes"] == 1


@pytest.mark.parametrize(
    ("flags", "config", "told"),
    [
        ((), "{", "is not JSON"),
        ((), {**LLAMA_8B, "num_hidden_layers": 10**40}, "num_hidden_layers must be"),
        (("--nodes", "3"), LLAMA_8B, "32 attention heads"),
        (("--config", "nowhere"), LLAMA_8B, "no model at nowhere"),
        (("--memory-gb", "nan"), LLAMA_8B, "memory-gb"),
        (("--memory-gb", "0"), LLAMA_8B, "must be from 1"),
        (("--concurrency", "0"), LLAMA_8B, "must be 1 or more"),
    ],
)
def test_what_makes_no_sense_is_told_and_ends_with_2(fit, flags, config, told):
    code, out, err = fit(*flags, config=config)
    assert (code, out) == (2, "")
    assert told in err
    assert "hint" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "args",
    [
        {"gpu-memory-utilization": 3},
        {"gpu-memory-utilization": "most"},
        {"max-model-len": -5},
        {"max-num-seqs": "many"},
        {"max-num-seqs": [4]},
        {"speculative-config": "{"},
        {"speculative-config": {"num_speculative_tokens": 10**9}},
        {"kv-cache-dtype": "int2"},
        {"dtype": "bits"},
    ],
)
def test_arguments_that_make_no_sense_are_told(fit, args):
    code, _, err = fit(args=args)
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(("length", "expected"), [("32k", 32000), ("32K", 32768), (4096, 4096), ("auto", 131072)])
def test_lengths_are_read_as_vllm_reads_them(fit, length, expected):
    assert json.loads(fit("--json", args={"max-model-len": length})[1])["context"] == expected


@pytest.mark.parametrize(
    "command",
    [
        ["vllm", "serve", "/models/llama", "--max-model-len", "8192"],
        ["bash", "-c", "pip install x && vllm serve /models/llama --max-model-len=8192"],
    ],
)
def test_the_arguments_of_a_command_count(fit, command):
    assert json.loads(fit("--json", args={}, command=command)[1])["context"] == 8192


QWEN = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "vision_config": {"depth": 27},
    "text_config": {
        "model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "num_experts": 256, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1, "vocab_size": 248320,
        "max_position_embeddings": 262144,
    },
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}  # fmt: skip


def test_an_ngc_image_is_computed_by_the_vllm_in_it(fit):
    """26.03 contains vLLM 0.17.1 (NVIDIA's release notes)."""
    args = {"kv-cache-dtype": "fp8"}
    answers = {
        image: json.loads(fit("--json", config=QWEN, args=args, image=image)[1])
        for image in ("nvcr.io/nvidia/vllm:26.03-py3", "vllm/vllm-openai:v0.17.1", "vllm/vllm-openai:v0.32.0")
    }
    ngc, release, newest = answers.values()
    assert (ngc["fits"], ngc["vllm_version"], ngc["kv_cache"]) == (release["fits"], "0.17", release["kv_cache"])
    assert ngc["kv_cache"]["tokens"] < newest["kv_cache"]["tokens"] / 3


def test_a_key_that_is_set_counts(fit):
    _, short, _ = fit("--json")
    _, long, _ = fit("--json", "--set", "args.max-model-len=65536")
    assert (json.loads(short)["context"], json.loads(long)["context"]) == (32768, 65536)


def test_a_playbook_for_several_nodes_is_computed_on_the_fewest(fit):
    _, out, _ = fit("--json", nodes={"min": 2})
    assert json.loads(out)["nodes"] == 2


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No hub can be reached, and the user has no models."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3.6-35b-a3b-nvfp4", "tiny-llama-cpu"])
def test_a_bundled_playbook_is_answered_without_a_hub(offline, capsys, name):
    assert guarded(["fit", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", document)
    assert (document["verdict"], document["kv_cache"]["tokens"] > 0) == ("fits", True)
    assert document["recorded"]
    assert "computed from what is recorded of the model" in document["not_counted"][0]


def test_a_model_that_is_not_recorded_is_said_to_be_so_with_what_would_fill_it(offline, capsys):
    assert guarded(["fit", "gemma-4-12b-coder"]) == 0
    said = capsys.readouterr()
    assert "not recorded" in said.out
    assert "not recorded: cannot query http://127.0.0.1:1" in said.err
    assert "scripts/record-model sakamakismile/gemma-4-12B" in said.err
    assert guarded(["fit", "gemma-4-12b-coder", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", document)
    assert (document["fits"], document["verdict"], "memory" in document) == (None, "not recorded", False)


def test_what_is_recorded_of_another_commit_is_not_taken_for_it(offline, capsys):
    assert guarded(["fit", "qwen3.6-27b-nvfp4", "--set", f"model.revision={'a' * 40}"]) == 1
    assert "cannot query" in capsys.readouterr().err


def test_no_hub_is_asked_where_that_is_forbidden(offline, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert guarded(["fit", "gpt-oss-20b"]) == 0
    assert "HF_HUB_OFFLINE is set: computed from" in capsys.readouterr().err


MEASURED = {"load_gib": 7.61, "kv_gib": 76.49, "kv_tokens": 4_843_965.0, "graphs_gib": 0.83}


def test_what_was_measured_on_the_cluster_is_shown_beside_the_prediction(world, monkeypatch, capsys, tmp_path):
    one = world(playbook={"args": {"gpu-memory-utilization": 0.85, "max-model-len": 4096}})
    documents = [one.document(one.plan(number), number) for number in (6, 7)]
    documents[1]["groups"]["default"]["measured"] |= MEASURED
    hosts = {name: FakeHost(name).program("records", {"records": documents}) for name in one.facts}
    monkeypatch.setattr("sparkcluster.cli.common.connect_fleet", lambda _: Fleet(hosts))
    monkeypatch.setattr("sparkcluster.spec.load.load", lambda *_, **__: one.spec)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    flags = ["x", "--inventory", str(one.spec.inventory_path), "--config", str(tmp_path / "config.json")]
    assert guarded(["fit", *flags]) == 0
    out = capsys.readouterr().out
    assert "measured here in release 7: 4,843,965 tokens of KV cache, weights 7.61 GiB, KV" in out
    assert max(map(len, out.splitlines()[1:])) <= 80  # behind the path of the model
    guarded(["fit", *flags, "--json"])
    found = json.loads(capsys.readouterr().out)
    json_schemas.validate("fit", found)
    args = {"gpu-memory-utilization": 0.85, "max-model-len": 4096}
    assert found["measured"] == {"release": 7, "group": "default", "nodes": 2, "args": args, **MEASURED}
    for args in (["max-model-len"], {"max-model-len": "9" * 5000, "max-num-seqs": {"a": []}}):
        documents[1]["groups"]["default"]["playbook"]["args"] = args
        guarded(["fit", *flags, "--json"])
        assert json.loads(capsys.readouterr().out)["measured"]["args"] == {}
    documents[1]["groups"]["default"]["measured"] = {}
    guarded(["fit", *flags, "--json"])
    assert json.loads(capsys.readouterr().out)["measured"] is None
    hosts.clear()
    hosts["alpha"] = FakeHost("alpha")
    assert guarded(["fit", *flags]) == 0
    assert "what was measured on atlas is unknown" in capsys.readouterr().err
