"""Rules on defects of certain releases: each from a public thread, for what it was seen with."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
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
    "FlashInfer's b12x experts are on one GPU",
    source="https://github.com/vllm-project/vllm/issues/47365 (open; two GPUs of SM120; right on 0.23.1rc1.dev552)",
)
def b12x(served: Served) -> Iterator[Seen]:
    """With `--moe-backend flashinfer_b12x` over two GPUs answers are empty, or one token again and again.

    Since the nightly of 30 June 2026, with tensor or pipeline parallel 2, for Qwen3.6-35B-A3B-NVFP4; one GPU is right.
    The backend `b12x`, which is another one, supports tensor parallelism (vllm#52018).
    """
    split = served.ranks * served.playbook.pipeline_parallel > 1
    if served.text("moe-backend") == "flashinfer_b12x" and split and served.since(0, 24) is not False:
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
