"""TensorRT-LLM: one command and one options file, memory by its own rules, and no API key."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from sparkcluster import engines
from sparkcluster.engines import phase
from sparkcluster.engines.base import Rank
from sparkcluster.engines.signature import plain
from sparkcluster.engines.tensorrt_llm import node
from sparkcluster.errors import PlanError, SpecError
from sparkcluster.fit import shipped
from sparkcluster.fit.source import GIB, spark
from sparkcluster.importer import convert
from sparkcluster.spec.check_playbook import check
from sparkcluster.spec.document import parse
from sparkcluster.spec.load import load
from sparkcluster.spec.playbook import Playbook
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group

ENGINE = engines.engine("tensorrt-llm")
MODEL = "openai/gpt-oss-120b"


def playbook(**changes) -> Playbook:
    given = {"name": "m", "engine": "tensorrt-llm", "model": {"id": MODEL}, "image": "i:1", **changes}
    return Playbook.model_validate(given)


def forecast(args, **more):
    return ENGINE.forecast(playbook(args=args), shipped.recorded(MODEL), spark(), **more)


def command(**changes) -> list[str]:
    group = Group.__new__(Group)
    object.__setattr__(group, "api_host", "10.0.0.1")
    object.__setattr__(group, "api_port", 8355)
    return ENGINE.serve(Rank(playbook(**changes), group, None, 1, MODEL, "none", None))


def test_the_command_has_the_playbooks_options_as_a_file():
    cache = {"kv_cache_config": {"free_gpu_memory_fraction": 0.4}}
    args = {"max-batch-size": 32, "trust-remote-code": True, "enable-chunked-prefill": False}
    assert command(args={**args, "extra-llm-api-options": cache}, served_name="brain") == [
        "trtllm-serve", "/sparkcluster/model/", "--served_model_name", "brain", "--host", "10.0.0.1", "--port", "8355",
        "--max_batch_size", "32", "--trust_remote_code",
        "--extra_llm_api_options", '{"kv_cache_config":{"free_gpu_memory_fraction":0.4}}',
    ]  # fmt: skip


def test_the_options_file_is_readable_by_its_owner_only(tmp_path):
    words = command(args={"extra-llm-api-options": {"moe_config": {"backend": "CUTLASS"}}, "max-seq-len": 64})
    run = node.command(words, {}, str(tmp_path))
    at = run.index("--extra_llm_api_options") + 1
    assert [*run[:at], *run[at + 1 :]] == [*words[:at], *words[at + 1 :]]
    file = Path(run[at])
    assert yaml.safe_load(file.read_text()) == {"moe_config": {"backend": "CUTLASS"}}
    assert (file.parent, stat.S_IMODE(file.stat().st_mode)) == (tmp_path, 0o600)
    own = ["trtllm-serve", "m", "--extra_llm_api_options", "/mine.yaml"]
    assert node.command(own, {}, str(tmp_path)) == own


def test_two_sparks_aliases_and_arguments_of_other_keys_are_refused():
    with pytest.raises(PlanError, match="private keys"):
        parallel.executor(playbook(), None, nodes=2, bring_ray=True)
    document = parse("args: {tp-size: 2, config: /c.yaml, host: 0.0.0.0, max-seq-len: 64}", "m.yaml")
    assert len(list(check(playbook(**document.data), document))) == 3


def test_an_api_key_without_a_gateway_is_refused_at_its_line(tmp_path):
    written = {
        "cluster": "one", "nodes": [{"host": "192.168.1.11", "name": "spark-1"}],
        "api": {"host": "management", "key": {"env": "SPARK_KEY"}},
    }  # fmt: skip
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump({**written, "playbook": "gpt-oss-20b-trtllm"}))
    with pytest.raises(SpecError, match="TensorRT-LLM takes no API key") as refused:
        load(path)
    assert "gateway" in str(refused.value.problems[0].hint)
    path.write_text(
        yaml.safe_dump({**written, "models": [{"playbook": "gpt-oss-20b-trtllm"}], "gateway": {"port": 80}})
    )
    assert load(path, model="gpt-oss-20b-trtllm").playbook.engine == "tensorrt-llm"


def test_bytes_per_token_match_a_servers_log():
    """ "kv size is 73728" of 1.1.0rc3 on a Spark with 5.95 GiB left: 86,711 tokens."""
    found = forecast({"max-seq-len": 131072, "max-batch-size": 64})
    assert found["kv_cache"]["bytes_per_token"] == 73728
    assert abs(found["kv_cache"]["bytes_least"] - 5.95 * GIB) < 0.2 * GIB
    assert found["verdict"] == "too close to call"
    assert forecast({"max-seq-len": 65536, "max-batch-size": 64})["verdict"] == "fits"
    assert forecast({"kv-cache-dtype": "fp8"})["kv_cache"]["bytes_per_token"] == 73728 / 2


def test_memory_without_space_for_a_request_does_not_fit():
    found = forecast({"max-seq-len": 131072, "max-batch-size": 32, "free-gpu-memory-fraction": 0.1})
    assert (found["fits"], found["advice"]) == (False, ["set max-seq-len to 9216"])


def test_with_other_models_on_the_node_the_cache_holds_one_request_of_full_context():
    options = {"kv_cache_config": {"free_gpu_memory_fraction": 0.4}}
    written = playbook(args={"max-seq-len": 65536, "extra-llm-api-options": options})
    served = ENGINE.beside_others(written)
    found = ENGINE.forecast(served, shipped.recorded(MODEL), spark(), requests=None)
    assert found["kv_cache"]["bytes"] == 65536 * 73728
    assert served.args["extra-llm-api-options"]["kv_cache_config"]["free_gpu_memory_fraction"] == 0.4
    assert ENGINE.beside_others(served) == served
    assert "max_tokens" not in options["kv_cache_config"]


def test_gpt_oss_has_tools_and_reasoning_for_clients_and_its_vocabulary_is_staged():
    features = ENGINE.api_features(playbook(args={"max-seq-len": 65536, "max-batch-size": 32}))
    assert (features.context, features.tools, features.reasoning, features.requests) == (65536, True, True, 32)
    other = playbook(model={"id": "nvidia/Qwen3-8B-FP4"}, args={"tool-parser": "qwen3"})
    assert (ENGINE.api_features(other).tools, ENGINE.api_features(other).reasoning) == (True, None)
    assert [each.name for each in ENGINE.vocabularies(playbook())] == ["o200k_base.tiktoken"]
    assert not ENGINE.vocabularies(other)


LOG = """
[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3
[12/20/2025-04:20:21] [TRT-LLM] [I] Use 63.32 GB for model weights.
Loading weights: 100%|██████████| 801/801 [00:46<00:00, 17.29it/s]
Model init total -- 49.14s
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).
[12/20/2025-04:21:10] [TRT-LLM] [I] [Autotuner] Autotuning process starts ...
[12/20/2025-04:21:37] [TRT-LLM] [I] Run generation only CUDA graph warmup for batch size=64, draft_len=0
INFO:     Application startup complete.
""".strip().splitlines()


def test_tensorrt_llm_logs_show_progress_and_memory():
    """Lines of 1.1.0rc3 on a Spark."""
    kinds = [phase.phase(line, ENGINE).kind for line in LOG]
    assert kinds == ["engine", "weights", "weights", "weights", "kv-cache", "autotune", "graphs", "api-ready"]
    footprint = phase.joined(phase.footprint(line, ENGINE) for line in LOG)
    assert footprint == {"load_gib": 63.32, "kv_gib": 5.95, "kv_tokens": 86720}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Error: No such option: --served_model_name", "--served_model_name"),
        ("Error: No such option: --no_such Did you mean --max_batch_size?", "--no_such"),
        ("Error: Invalid value for '--max_batch_size': 'x' is not a valid integer.", "'x' is not a valid integer"),
        ("  Extra inputs are not permitted [type=extra_forbidden, input_value=1]", "extra-llm-api-options"),
        ("RuntimeError: Failed to bind socket to 127.0.0.1:8355: [Errno 98] Address already in use", "port 8355"),
        ("RuntimeError: Executor creation failed due to insufficient GPU memory.", "ran out"),
        ("[E] Error in harmony chat completion: %s error downloading or loading vocab file: failed", "vocabulary"),
        ("tensorrt_llm.executor.utils.RequestError: CUDA error: an illegal instruction was encountered", "a kernel"),
        ("ValueError: Unknown architecture for AutoModelForCausalLM: Qwen9ForCausalLM", "does not support the model"),
    ],
)
def test_tensorrt_llm_errors_have_a_cause(line, said):
    lines = plain([line, "[E] Failed to initialize executor on rank 0: the same"])
    cause = next(filter(None, (signature.match(lines) for signature in ENGINE.signatures)))
    assert said in cause.summary


def test_a_command_becomes_a_playbook():
    text = "docker run --gpus all nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc13 trtllm-serve serve "
    text += f"{MODEL} --max_batch_size 64 --trust_remote_code --port 8355 --tp_size 1 --config=/tmp/c.yml"
    made = convert(text, "x.sh")
    assert (made.document["engine"], made.document["model"]) == ("tensorrt-llm", {"id": MODEL})
    assert made.document["args"] == {"max-batch-size": 64, "trust-remote-code": True}
    assert "extra-llm-api-options" in made.text
