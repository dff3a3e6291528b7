"""``playbooks new`` of a model on the hub."""

from __future__ import annotations

import json

from sparkcluster.cli.main import guarded
from tests.unit.fit.llama import LLAMA_8B
from tests.unit.fit.test_safetensors import shard

COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


def test_a_new_playbook_of_a_model_on_the_hub_names_its_commit_and_counts_its_tensors(hub, capsys):
    config = LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}, "num_nextn_predict_layers": 1}
    hub({"config.json": config, "model.safetensors": shard(**{"lm_head.weight": (128256, 4096)})}, commit=COMMIT)
    assert guarded(["playbooks", "new", "some/model", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["playbook"]["model"]["revision"] == COMMIT
    assert made["playbook"]["model"]["checkpoint"] == "fp8"
    assert made["left"][-1] == "fit, on 1 Spark: fits"
