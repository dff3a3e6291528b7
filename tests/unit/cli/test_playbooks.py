"""``playbooks``: the list, and the page of a single playbook."""

from __future__ import annotations

import json

import pytest
import yaml
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.linting import lint
from tests.unit.fit.llama import LLAMA_8B


@pytest.fixture
def printed(capsys):
    """``printed(*words)``: stdout and stderr of `playbooks`."""

    def run(*words):
        assert guarded(["playbooks", *words]) == 0
        return capsys.readouterr()

    return run


def test_a_single_playbook_shows_its_contents_and_the_command_to_type(printed):
    shown = printed("openai/gpt-oss-120b")
    assert "weights   65 GB\n" in shown.out
    assert "weights   ~141 GB\n" in printed("llama-3.3-70b-instruct").out
    assert shown.err.endswith("next: sparkcluster up INVENTORY --playbook openai/gpt-oss-120b\n")


def test_an_empty_list_is_explained(printed):
    assert "docs/models.md" in printed("--sparks", "3").err
    assert "docs/models.md" not in printed("--sparks", "2").err


def test_the_list_has_one_line_per_playbook(printed):
    for words in ((), ("--all",)):
        shown = printed(*words)
        assert "gpt-oss-120b" in shown.out
        assert max(map(len, shown.out.splitlines())) <= 80
    assert "tiny-llama-cpu" in shown.out


def test_a_purpose_without_a_playbook_lists_the_available_purposes(printed, capsys):
    assert "laguna-xs.2 " in (coding := printed("--for", "coding").out)
    assert "gpt-oss-20b" not in coding
    assert "qwen3.6-27b-nvfp4-1m " in printed("--for", "long-context").out
    assert guarded(["playbooks", "--for", "poetry"]) == 2
    hint = capsys.readouterr().err
    assert "chat, coding, embeddings, long-context, multimodal, quality, reasoning, reranking" in hint


def test_sorted_by_speed_the_fastest_is_first_and_unmeasured_ones_last(printed):
    found = json.loads(printed("--sort", "speed", "--json").out)["playbooks"]
    names = [each["name"] for each in found]
    assert names[0].startswith("qwen3.6-35b-a3b")
    assert names.index("gpt-oss-120b") < names.index("qwen3.5-122b-a10b-nvfp4") < names.index("gpt-oss-20b")


MOE = {
    **LLAMA_8B,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8192,
    "max_position_embeddings": 40960,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}


@pytest.mark.parametrize(
    ("config", "keys", "args"),
    [
        (
            MOE,
            {"checkpoint": "modelopt", "tensor_parallel": 1},
            {"quantization": "modelopt", "moe-backend": "marlin", "max-model-len": 40960, "reasoning-parser": "qwen3"},
        ),
        (
            LLAMA_8B | {"num_hidden_layers": 300, "max_position_embeddings": 131072},
            {"checkpoint": "bf16", "tensor_parallel": 2},
            {"max-model-len": 65536, "gpu-memory-utilization": 0.82, "max-num-seqs": 4},
        ),
    ],
    ids=["experts", "two-sparks"],
)
def test_a_new_playbook_uses_config_json_and_lints_clean(printed, tmp_path, config, keys, args):
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "mine.yaml"
    printed("new", "some/Model-NVFP4", "--config", str(tmp_path), "-o", str(file))
    made = yaml.safe_load(file.read_text())
    assert (made["name"], made["model"]["id"]) == ("mine", "some/Model-NVFP4")
    assert {"checkpoint": made["model"]["checkpoint"], "tensor_parallel": made["tensor_parallel"]} == keys
    assert args.items() <= made["args"].items()
    assert ("moe-backend" in made["args"]) == (config is MOE)
    assert [each.code for each in lint([file]).findings if each.severity != "info"] == []
    assert guarded(["playbooks", "new", "some/Model-NVFP4", "--config", str(tmp_path), "-o", str(file)]) == 2


def test_an_unsupported_architecture_is_an_error_of_the_model(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"architectures": ["../x y"]}))
    assert guarded(["playbooks", "new", "some/model", "--config", str(tmp_path)]) == 2
    assert "internal" not in capsys.readouterr().err


def test_a_new_playbook_of_a_recorded_model_names_its_commit(printed, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shown = printed("new", "unsloth/Qwen3.6-27B-NVFP4", "--json").out
    made = json.loads(shown)
    json_schemas.validate("playbooks", made)
    assert made["playbook"]["model"]["revision"] == "890bdef7a42feba6d83b6e17a03315c694112f2a"
    assert any("the bundled playbook qwen3.6-27b-nvfp4" in line for line in made["left"])


@pytest.mark.parametrize("words", [["new"], ["new", "name-alone"], ["new", "~nobody"], ["gpt-oss-20b", "--force"]])
def test_new_requires_a_model_and_its_options_require_new(capsys, words):
    assert guarded(["playbooks", *words]) == 2
    assert "hint: " in capsys.readouterr().err
