"""The KV cache that ``fit`` predicts, compared with vLLM's log: real configs, real safetensors, random weights.

Every prediction is written to a file before the engine is started.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from pathlib import Path

import pytest
import yaml
from docgen import fit_text

from sparkcluster.fit.config import parse
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.headers import from_path
from sparkcluster.fit.kv import layout

pytestmark = [pytest.mark.engine, pytest.mark.full]

HERE = Path(__file__).parent
POOL = 1 << 30
WITHIN = 0.02
# Not a multiple of any block size, so that a wrong block size is detected.
CONTEXT, BATCHED, SEQUENCES = 1100, 256, 4

BASE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "latent": {
        "model_type": "deepseek_v2",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "q_lora_rank": None,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "delta net": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
CASES = [("latent", 2), ("delta net", 1)]

ENV = {
    "VLLM_CPU_KVCACHE_SPACE": str(POOL >> 30),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
LOGGED = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for 1,100 tokens per request: ([\d.]+)x")


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Tokens and requests of full context."""

    tokens: int
    concurrency: float

    def near(self, other):
        return abs(self.tokens - other.tokens) / other.tokens <= WITHIN


@pytest.fixture(scope="module")
def engine(make_lab):
    """``engine(what, document)``: run fit_engine.py in a container of the real engine; returns its output."""
    lab = make_lab(1, engine="vllm")
    image = yaml.safe_load(lab.playbook.read_text())["image"]
    # The Spark's disk, as seen by its first process.
    folder = Path(f"/proc/{lab.sparks[0].pid}/root/root/fit")
    folder.mkdir()
    shutil.copy(HERE / "fit_engine.py", folder)

    def run(task, document):
        (folder / f"{task}.json").write_text(json.dumps(document))
        env = [word for name, value in ENV.items() for word in ("--env", f"{name}={value}")]
        argv = ["docker", "run", "--rm", "--network", "host", "--shm-size", "1g", "--cap-add", "SYS_NICE", *env]
        argv += ["--volume", "/root/fit:/made", "--workdir", "/made", "--entrypoint", "nice", image]
        argv += ["-n", "10", "python3", "fit_engine.py", task, f"{task}.json"]
        done = lab.sparks[0].run(argv, check=False, timeout_s=400)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-6000:]
        return done.stdout + done.stderr

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def made(engine):
    """Directory of each family's checkpoint."""
    engine("make", {f"/made/{family}": {**BASE, **config} for family, config in FAMILIES.items()})
    return {family: engine.folder / family for family in FAMILIES}


def predicted(path, ranks, **changed):
    """The prediction of ``fit``, from the files only; ``changed`` are keys of config.json to change."""
    read = from_path(path)
    config = parse({**read.config, **changed}, str(path))
    started = EngineSettings(
        CONTEXT,
        version=(0, 32, 0),
        device="cpu",
        ranks=ranks,
        sequences=SEQUENCES,
        batched_tokens=BATCHED,
        dtype="bfloat16",
        state_dtype="float32",
    )
    found = layout(config, started)
    return Capacity(found.tokens(POOL), found.concurrency(POOL))


@pytest.mark.parametrize(("family", "ranks"), CASES)
def test_vllm_logs_the_predicted_sizes(engine, made, family, ranks):
    path = made[family]
    prediction = predicted(path, ranks)
    note = path / f"predicted-{ranks}.json"
    note.write_text(json.dumps(dataclasses.asdict(prediction)))
    before = time.time()

    log = engine(
        "start",
        {
            "model": f"/made/{family}",
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "bfloat16",
            "max_model_len": CONTEXT,
            "max_num_seqs": SEQUENCES,
            "max_num_batched_tokens": BATCHED,
            "tensor_parallel_size": ranks,
            # The defaults depend on the processor: with AMX, latent blocks are 128 tokens in place of 16.
            "mamba_ssm_cache_dtype": "float32",
            **({"attention_backend": "CPU_MLA"} if family == "latent" else {}),
        },
    )
    found = LOGGED.search(log)
    assert found, log[-6000:]
    logged = Capacity(int(found[1].replace(",", "")), float(found[2]))

    assert note.stat().st_mtime <= before
    assert prediction.near(logged), f"{family}, {ranks} ranks: predicted {prediction}, logged {logged}"
    assert prediction.concurrency == pytest.approx(logged.concurrency, rel=WITHIN)
    print(f"{family}, {ranks} ranks: predicted {prediction.tokens:,}, logged {logged.tokens:,}")
    assert fit_text.AGREEMENT[family, ranks][1] == logged.tokens, "docs/internals/fit.md says otherwise"
    # A wrong number of heads in fit would fail here.
    if family != "latent":
        heads = parse(from_path(path).config, family).kv_heads
        assert not predicted(path, ranks, num_key_value_heads=heads * 4).near(logged)
