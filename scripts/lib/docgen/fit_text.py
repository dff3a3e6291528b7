"""docs/internals/fit.md: its text, with the tables from the other modules."""

# ruff: noqa: E501 - a row of a Markdown table is one line

from docgen import fit_families, fit_page, fit_ranges, fit_weights

PAGE = """\
# fit: how it is computed, and compared with measurements

[fit.md](../fit.md) is the user's page.

| part | how |
|---|---|
| weights of a rank | from the tensors: tensors that vLLM shards are divided by the number of ranks; norms, routers and latent projections are on each rank; KV heads are replicated if there are fewer than ranks; the vocabulary is padded to a multiple of 64 |
| KV cache | the same arithmetic as in vLLM: pages, groups of layers, state blocks per request, the reserved block (`fit/kv.py`) |
| a step, driver, CUDA graphs, loader | estimated from the largest batch and the model's widths; the constants come from measurements, marked below |
| the engine's processes, the system | 3 GiB and 5 GiB, from measurements below |

vLLM's versions differ:

| since | change |
|---|---|
| 0.20 | `gpu-memory-utilization` defaults to 0.92 (before: 0.9); CUDA graphs are profiled |
| 0.21 | `GPU KV cache size` is concurrency times context (before: blocks divided by groups, which is less for hybrid models) |
| 0.26 | sliding windows keep two batches in flight |
| 0.28 | hybrid models cache prefixes by default, which takes more state blocks per request |

A node that has the image reports its version; otherwise the image's tag gives it. If the tag does not say (`nightly`), `fit`
computes every possible version, uses the largest result and reports the range (`engines/vllm/versions.py`, `fit/defaults.py`).

## KV cache by model family

| family | per token and rank |
|---|---|
| DeepSeek V2, V3, R1, Kimi K2, GLM-4.7-Flash | a latent (MLA): 576 numbers per layer |
| DeepSeek V3.2, GLM-5, 5.1 and 5.2 | 656 bytes per layer for sparse attention on SM12x, with any `--kv-cache-dtype`, and 132 bytes in each layer that selects tokens: all layers of DeepSeek and GLM-5, 21 of 78 in GLM-5.2 |
| DeepSeek V4 | the last 128 tokens of each layer, an entry for each 4 or 128 tokens, their keys, and tokens that are not yet compressed; pages of six sizes share a block. With the default `--max-num-batched-tokens` a request takes another 6.7 GB |
| MiniMax M3 | keys and values, and 256 bytes in each layer that selects tokens |
| MiniMax M2, GLM-4.5 to 4.7, Qwen3, gpt-oss, Llama | keys and values |
| Qwen3-Next, Qwen3.5, Qwen3.6, Qwen3.8-27B, Nemotron 3 | keys and values in some layers, states in the others |

Source: the code of vLLM 0.32.0, for DeepSeek V4 also of 0.26 and 0.28 (`fit/kv_packed.py`). Compared with published logs:

{families}

Not supported; `fit` refuses these and says why:

{unknown}

Not counted: the KV cache of draft models with their own layers (DFlash, Eagle), and layouts that pack layers of different page sizes.

## Recorded models

If the hub cannot be reached, `fit` uses these records, for the same commit only. `./scripts/record-model REPOSITORY` writes one.

{recorded}

## Weights from config.json alone

The sum of all matrices of the model's family, with the bits per weight from its `quantization_config` (`fit/modules.py`,
`fit/quantization.py`). If the quantization method is unknown, so is the size. Compared with published sizes:

{weights}

## Compared with vLLM

`tests/lab/test_fit.py` writes small checkpoints, predicts the size of their KV cache, and starts vLLM 0.32.0 for CPU with 1 GiB of KV
cache per rank and context 1,100. They may differ by 2 %.

{agreement}

## The range of the verdict

With memory that CPU and GPU share, vLLM's profiling differs between starts: three starts of one recipe had 16.93, 17.59 and 18.13 GiB of
KV cache. So the KV cache is a range (`bytes_least`, `bytes_most`): a step takes between 0.4 times the estimate and 1.35 times the estimate
plus 1 GiB; estimated weights may be 5 % off. "Fits" means that the lower bound suffices, "does not fit" that the upper bound does not.
`safe_gpu_memory_utilization` fits with the lower bound.

Counted in addition to the batch: CUDA graphs since 0.20 (0.05 GiB each: up to 102 with 1,024 sequences, seven with four), the loader
(`--load-format instanttensor`: 4.4 GiB), and residual streams (DeepSeek V4: 5.0 GiB in a step of 8,224 tokens, logged: 5.30; 1.25 GiB in
a step of 2,048 tokens, logged: 1.39; a constant was fitted to this value).

{ranges}

DeepSeek-V4-Flash: the source says "24 to 25 GiB", with a custom image and a drafter; vLLM's default batch is assumed. MiniMax-M2.7:
groups of 32 are assumed (60.8 GiB per rank; with 128 it is 55.8 GiB, also inside the range). The RTX 5090 cards have 31.4 GiB; their
weights come from the log.

## Compared with measurements on Sparks

They may differ by 10 %. Values that the source marks with ≈ are not judged. "A constant was set by it": a constant was fitted to this
value, so it is not evidence.

### Qwen3.6-35B-A3B-NVFP4, vLLM 0.23, fp8 KV cache, 3 drafted tokens ({guide})

{qwen}

The author rounded the values for 0.5 and 0.4.

### Nemotron-3-Nano-30B-A3B-NVFP4, vLLM 0.18.1, fp8 KV cache, context 8,192, one sequence ({nvfp4})

The guide's GB are GiB: 24.3 is 0.2 times 121.6 GiB, and its 292K tokens take 4.2 GiB.

{nemotron}

| utilization | vLLM | `fit` says |
|---|---|---|
{starts}

"Memory in use" is from `/proc/meminfo`: the budget, 5 GiB of the system and the engine's processes. The exact size of the tensors of both
checkpoints was not published: `fit` uses 19 GB from the guide and 21.94 GiB from the log.
"""

AGREEMENT = {
    ("multi-head", 1): ("llama", 667_455),
    ("multi-head", 2): ("llama", 1_334_911),
    ("grouped", 1): ("qwen3, one KV head", 2_669_944),
    ("grouped", 2): ("qwen3, one KV head, replicated on both ranks", 2_669_944),
    ("sliding", 1): ("gemma3, 12 of 14 layers", 462_112),
    ("sliding and full by turns", 1): ("gemma2", 1_060_141),
    ("heads that differ by layer", 1): ("gemma4", 600_746),
    ("sliding alone", 1): ("mistral", 1_716_314),
    ("latent", 1): ("deepseek_v2", 309_562),
    ("latent", 2): ("deepseek_v2, replicated on both ranks", 309_562),
    ("delta net", 1): ("qwen3_next", 151_328),
    ("delta net", 2): ("qwen3_next", 302_814),
    ("Mamba 2", 1): ("falcon_h1, with attention in each layer", 667_333),
    ("Mamba 1", 1): ("jamba", 1_201_493),
}
"""By case of tests/lab/test_fit.py and number of ranks: the family, and the tokens that ``fit`` predicted and vLLM 0.32.0 logged."""


def agreement() -> str:
    """The table of checkpoints that tests/lab/test_fit.py writes, as Markdown."""
    lines = [
        "| kind of layers | family | ranks | tokens that vLLM logged | `fit` was off by |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {case} | {family} | {ranks} | {tokens:,} | 0 |" for (case, ranks), (family, tokens) in AGREEMENT.items()
    ]
    return "\n".join(lines)


def page() -> str:
    """The text of docs/internals/fit.md."""
    began = "\n".join(
        f"| {utilization} | {'started' if started else 'failed'} | {says} |"
        for utilization, started, says in fit_page.starts()
    )
    return PAGE.format(
        agreement=agreement(),
        weights=fit_weights.table(),
        guide=fit_weights.GUIDE,
        nvfp4=fit_weights.NVFP4_GUIDE,
        qwen=fit_page.table(fit_page.qwen_cells),
        nemotron=fit_page.table(fit_page.nemotron_cells),
        starts=began,
        ranges=fit_ranges.table(),
        recorded=fit_weights.recorded_table(),
        families=fit_families.table(),
        unknown=fit_families.unknown(),
    )
