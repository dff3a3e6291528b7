"""Rules on defects of certain releases: each from a public thread, for what it was seen with."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.engines.vllm.rules.speculative import CONFIG
from sparkcluster.findings import Severity

# MTP was seen to crash with five drafted tokens, and to run with three (vllm#40756).
FEW = 3
# One Spark has 121.63 GiB; on Marlin this model did not fit (vllm#50925).
TOO_LARGE_ON_MARLIN = "laguna-s-2.1-nvfp4"


@rule(
    "SM121-136",
    "MTP survives an FP8 KV cache",
    source="https://github.com/eugr/spark-vllm-docker/issues/308 (two reporters, one with a reproducer on one GB10)",
)
def mtp_fp8_cache(served: Served) -> Iterator[Seen]:
    """On vLLM 0.26 MTP with an FP8 KV cache ended with Xid 31 and `illegal memory access` in `_prepare_inputs`.

    Qwen3.6-35B-A3B-NVFP4 on a GB10, with five drafted tokens within minutes of six parallel conversations of 12K to 21K
    tokens, with three about once in ten minutes of such load. On two Sparks as well; DFlash passed there.
    """
    if served.spark and served.mtp and served.hybrid and served.fp8_cache and served.between((0, 26), (0, 27)):
        summary = "MTP with an FP8 KV cache has ended this vLLM under load (Xid 31)"
        yield served.say("kv-cache-dtype", summary, f"remove kv-cache-dtype or {CONFIG}, or use a newer image")


@rule(
    "SM121-137",
    "MTP drafts few tokens for long answers of Qwen3.6",
    source="https://github.com/vllm-project/vllm/issues/40756 (open; 0.19.1 and 0.20.2, not on a GB10)",
)
def mtp_long(served: Served) -> Iterator[Seen]:
    """On vLLM 0.19 and 0.20 MTP with five drafted tokens ended with `illegal memory access` after about 26,000 tokens.

    Seen with Qwen3.6-27B in FP8 and BF16, just after every draft was accepted. Another reporter serves the FP8 one on a
    GB10 with 0.20 and three tokens.
    """
    tokens = served.draft.get("num_speculative_tokens")
    many = isinstance(tokens, int) and tokens > FEW
    if served.mtp and served.named("Qwen3.5", "Qwen3.6") and many and served.between((0, 19), (0, 21)):
        summary = f"MTP with {tokens} drafted tokens has ended this vLLM in long answers"
        yield served.say(CONFIG, summary, f"write num_speculative_tokens: {FEW}, or use a newer image")


@rule(
    "SM121-138",
    "Nemotron caches prefixes beside MTP",
    severity="error",
    source="https://github.com/vllm-project/vllm/issues/39809 (closed; on 0.19.0, 4 and 8 GPUs)",
)
def nemotron_prefixes(served: Served) -> Iterator[Seen]:
    """On vLLM 0.19 prefix caching and MTP crash a Nemotron-H model at startup: its Mamba states are cached too.

    `--mamba-cache-mode align`, which keeps the attention's KV cache alone, ran on the nightly of 14 April 2026, as did
    prefix caching without MTP on 0.19.
    """
    mamba = served.model is not None and served.model.mamba
    together = mamba and served.mtp and served.on("enable-prefix-caching")
    if together and served.text("mamba-cache-mode") != "align" and served.between((0, 19), (0, 20)):
        summary = "prefix caching with MTP crashes this vLLM at startup"
        yield served.say(
            "enable-prefix-caching", summary, f"remove it or {CONFIG}, or use an image with vLLM 0.20 or newer"
        )


@rule(
    "SM121-139",
    "Gemma 4 does not run on FlashInfer's attention",
    severity="error",
    source="https://github.com/vllm-project/vllm/issues/40677 (open; 0.19.1 on SM120), "
    "https://github.com/flashinfer-ai/flashinfer/issues/4546 (heads of 512 from August 2026 on)",
)
def gemma_flashinfer(served: Served) -> Iterator[Seen]:
    """Gemma 4 has heads of 512, for which FlashInfer had no kernels on SM12x: it fails with `head_size not supported`.

    vLLM selects Triton by itself. An error on 0.19 to 0.28, a warning where the version is unknown: FlashInfer's main
    branch has had such kernels since August 2026.
    """
    newer = served.since(0, 29)
    if served.spark and served.gemma_4 and served.text("attention-backend") == "flashinfer" and not newer:
        severity: Severity | None = None if newer is False else "warning"
        remedy = "remove attention-backend: vLLM selects TRITON_ATTN"
        yield served.say(
            "attention-backend", "Gemma 4 has heads that FlashInfer has no kernels for", remedy, severity=severity
        )


@rule(
    "SM121-140",
    "FlashInfer's b12x experts of Qwen3.6 are on one GPU",
    source="https://github.com/vllm-project/vllm/issues/47365 (open; two GPUs of SM120; right on 0.23.1rc1.dev552); "
    "DeepSeek V4 is served so on two Sparks: https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark",
)
def b12x(served: Served) -> Iterator[Seen]:
    """With `--moe-backend flashinfer_b12x` over two GPUs answers are empty, or one token again and again.

    Since the nightly of 30 June 2026, with tensor or pipeline parallel 2, for Qwen3.6-35B-A3B-NVFP4; one GPU is right.
    So it is reported for that family in NVFP4: owners serve DeepSeek V4 with it on two Sparks every day. The backend
    `b12x`, which is another one, supports tensor parallelism (vllm#52018).
    """
    split = served.ranks * served.playbook.pipeline_parallel > 1
    reported = served.named("Qwen3.6") and served.weights == "nvfp4"
    if served.text("moe-backend") == "flashinfer_b12x" and split and reported and served.since(0, 24) is not False:
        summary = "flashinfer_b12x returns garbage over more than one GPU"
        yield served.say("moe-backend", summary, "write moe-backend: marlin, or tensor_parallel: 1")


@rule(
    "SM121-141",
    "The experts fit into memory on the kernels of this image",
    source="https://github.com/vllm-project/vllm/issues/50925 (open; published nightly of August 2026 against a build "
    "for SM121: 67.11 GiB)",
)
def published_marlin(served: Served) -> Iterator[Seen]:
    """Published builds have no FP4 kernels for SM121: on Marlin the experts of Laguna-S-2.1-NVFP4 did not fit.

    A build of vLLM from source for SM121 loads 67.11 GiB and serves. For other checkpoints this was not reported.
    """
    large = TOO_LARGE_ON_MARLIN in served.playbook.model.label.lower()
    if served.spark and served.released and large and served.ranks == 1:
        summary = "this model did not fit on one Spark on Marlin, which published builds fall back to"
        yield served.say(("image",), summary, "use an image built for SM121, or tensor_parallel: 2")


@rule(
    "SM121-143",
    "Gemma 4 starts on this vLLM",
    severity="error",
    source="https://github.com/vllm-project/vllm/issues/53836 (a Spark, 0.27.1), "
    "https://github.com/vllm-project/vllm/issues/51744 (0.27.0); fixed in 0.28 by "
    "https://github.com/vllm-project/vllm/pull/49797; an older Transformers instead: "
    "https://github.com/0xBakeer/inference-atlas/pull/14",
)
def gemma_transformers(served: Served) -> Iterator[Seen]:
    """On vLLM 0.27.0 and 0.27.1 the engine ends with `AmbiguousGlobalPerLayerAttributeError` at startup.

    Their images have Transformers 5.15, which gives `head_dim` for each layer alone. Reported for E2B, 26B-A4B and 31B.
    """
    pinned = any("transformers" in line for line in served.playbook.setup)
    if served.gemma_4 and served.between((0, 27), (0, 28)) and not pinned:
        remedy = "use an image with vLLM 0.28 or newer, or pip install transformers==5.8.1 under setup"
        yield served.say(("image",), "this vLLM cannot read Gemma 4's config.json", remedy)


@rule(
    "SM121-144",
    "A DSpark drafter has a BF16 KV cache",
    source="https://github.com/NVIDIA/dgx-spark-playbooks/issues/107, "
    "https://github.com/vllm-project/recipes/issues/836 (nightly of 23 August 2026), "
    "https://github.com/vllm-project/vllm/issues/41559 (Qwen3.6-27B); both together: "
    "https://github.com/vllm-project/recipes/blob/main/models/nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16.yaml, "
    f"{sources.EUGR} (recipes)",
)
def dspark_cache(served: Served) -> Iterator[Seen]:
    """On a GB10 an FP8 KV cache beside a DSpark drafter ends the engine at startup: `err 715`, `cudnnSetStream failed`.

    Reported for Nemotron 3.5 Lightning by NVIDIA's own command, and for Qwen3.6-27B as `illegal memory access`. Sources
    disagree: vLLM's recipe measured Lightning with both on 0.28.1rc1.dev130 of 31 August 2026, and a community's has
    both. So it is a warning on vLLM's and NVIDIA's images, info elsewhere, and not reported from 0.29 on. DeepSeek V4
    drafts by layers of its own, and is served with an FP8 KV cache.
    """
    drafter = served.dspark and "model" in served.draft and served.named("Nemotron 3.5 Lightning", "Qwen3.6")
    if served.spark and drafter and served.fp8_cache and served.since(0, 29) is not True:
        summary = "an FP8 KV cache beside a DSpark drafter has ended the engine at startup"
        severity: Severity | None = None if served.released else "info"
        yield served.say("kv-cache-dtype", summary, f"remove kv-cache-dtype, or {CONFIG}", severity=severity)
