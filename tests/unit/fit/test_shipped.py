"""Recorded models: which ones, their keys, and their format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import record_model

from sparkcluster.errors import NotRecorded
from sparkcluster.fit import shipped
from sparkcluster.fit.config import parse
from sparkcluster.fit.headers import from_path
from sparkcluster.fit.known import known
from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import Source
from sparkcluster.fit.weights import of_tensors
from sparkcluster.lab.engine.tiny_llama import write_tiny_model
from sparkcluster.spec.load import named, read_playbook
from sparkcluster.spec.playbook import Model
from tests.unit.fit.llama import LLAMA_8B
from tests.unit.fit.test_safetensors import shard

PLAYBOOKS = sorted(path.stem for path in (Path(__file__).parents[3] / "playbooks").glob("*.yaml"))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_the_model_of_every_bundled_playbook_is_recorded_or_has_a_reason(name):
    playbook = read_playbook(*named(name))[0]
    model = playbook.model
    found = shipped.recorded(model.label, model.revision)
    assert found is not None, f"./scripts/record-model {model.label} {model.revision}"
    assert bool(found.config) != bool(found.note)
    if found.config is not None:
        assert parse(found.config, name).caches if model.file is None else "general.architecture" in found.config
        assert found.recorded


def test_every_record_file_is_named_after_its_model():
    for path in shipped.DIRECTORY.iterdir():
        document = json.loads(path.read_text())
        assert path.name == shipped.file_name(document["repository"])


def test_demo_and_record_use_the_same_models(tmp_path):
    made = from_path(write_tiny_model(tmp_path))
    found = shipped.recorded("~/.cache/sparkcluster/models/tiny-llama")
    config = parse(made.config, "tiny")
    assert found.config == made.config
    assert of_tensors(found.tensors, config, ranks=2) == of_tensors(made.tensors, config, ranks=2)


@pytest.mark.parametrize(("ranks", "drafts"), [(1, False), (2, False), (2, True)])
def test_equal_tensors_are_recorded_as_one_and_weigh_the_same(ranks, drafts):
    config = parse({**LLAMA_8B, "num_experts": 4, "moe_intermediate_size": 8, "num_nextn_predict_layers": 1}, "m")
    tensors = [
        Tensor(f"model.layers.{layer}.{name}", "BF16", shape, 2 * shape[0] * (shape[1] if len(shape) > 1 else 1))
        for layer in range(33)  # the last is for drafts alone
        for name, shape in {
            "input_layernorm.weight": (4096,),
            "self_attn.k_proj.weight": (1024, 4096),
            **{f"mlp.experts.{at}.up_proj.weight": (8, 4096) for at in range(4)},
        }.items()
    ]
    tensors.append(Tensor("lm_head.weight", "BF16", (128256, 4096), 2 * 128256 * 4096))
    found = record_model.merged(tensors, 32)
    assert len(found) == 7
    whole, recorded = (of_tensors(each, config, ranks=ranks, drafts=drafts) for each in (tensors, found))
    assert whole == recorded


def test_a_model_recorded_from_the_hub_is_read_back_unchanged(hub, tmp_path, capsys):
    layers = {f"model.layers.{at}.mlp.up_proj.weight": (64, 8) for at in range(3)}
    made = hub({"config.json": LLAMA_8B, "model.safetensors": shard(**layers)}, commit=COMMIT)
    assert record_model.main(["some/model"], tmp_path) == 0
    found = shipped.recorded("some/model", COMMIT, tmp_path)
    assert found.tensors == (Tensor("model.layers.0.mlp.up_proj.weight", "BF16", (64, 8), 3 * 1024),)
    assert (found.config, found.revision) == (LLAMA_8B, COMMIT)
    assert found.recorded == (f"https://huggingface.co/some/model/tree/{COMMIT}",)
    assert shipped.recorded("some/model", "main", tmp_path) == found
    assert shipped.recorded("some/model", "f" * 40, tmp_path) is None
    before = (tmp_path / "some--model.json").read_bytes()
    assert record_model.main(["some/model", "main"], tmp_path) == 0
    assert (tmp_path / "some--model.json").read_bytes() == before
    made.status = 503
    capsys.readouterr()
    assert record_model.main(["some/model"], tmp_path) == 1
    assert "answered 503" in capsys.readouterr().err
    assert record_model.main([], tmp_path) == 2


@pytest.mark.parametrize(
    ("behaviour", "note"),
    [
        ({"status": 503}, "it answered 503: from recorded data"),
        ({"cut": 10_000}, "incomplete download: from recorded data"),
        (
            {"token": "hf-secret"},
            "without a token: from recorded data; check model.id, accept the model's terms on its page",
        ),
    ],
)
def test_a_record_used_instead_of_the_hub_says_why(hub, monkeypatch, behaviour, note):
    monkeypatch.setattr(shipped, "recorded", lambda *_: Source("some/model", LLAMA_8B))
    hub(
        {"config.json": LLAMA_8B, "model.safetensors": shard(**{f"layers.{at}": (1,) for at in range(300)})},
        **behaviour,
    )
    found = known(Model(id="some/model"))
    assert (found.config, found.tensors) == (LLAMA_8B, None)
    assert note in found.note


def test_a_missing_directory_recorded_only_by_name_is_not_recorded(tmp_path, monkeypatch):
    path = tmp_path / "gone"
    monkeypatch.setattr(shipped, "recorded", lambda *_: Source(str(path), None, note="nobody has measured it"))
    with pytest.raises(NotRecorded, match=f"no model at {path}, and nobody has measured it"):
        known(Model(path=str(path)))
