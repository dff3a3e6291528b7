"""docs/internals/fit.md: its text, and the tables of the other modules in it."""

# ruff: noqa: E501 - a row of a Markdown table is one line

from docgen import fit_families, fit_page, fit_ranges, fit_weights

PAGE = """\
# fit: how it is computed, and compared with measurements

[fit.md](../fit.md) is the user's page.

| part | how |
|---|---|
| weights of a rank | from the tensors: what vLLM shards is divided by the ranks; norms, routers and latent projections are on each; KV heads are replicated where there are fewer than ranks; the vocabulary is padded to 64 |
| KV cache | vLLM's own arithmetic: pages, groups of layers, state blocks of each request, the reserved block (`fit/kv.py`) |
| a step, driver, CUDA graphs, loader | estimated from the largest batch and the model's widths; constants set by measurements, marked below |
| the engine's processes, the system | 3 GiB and 5 GiB, from measurements below |

vLLM's versions differ:

| since | change |
|---|---|
| 0.20 | `gpu-memory-utilization` is 0.92 by default (before: 0.9); CUDA graphs are profiled |
| 0.21 | `GPU KV cache size` is concurrency times context (before: blocks over groups, which is less for hybrid models) |
| 0.26 | sliding windows keep two batches in flight |
| 0.28 | hybrid models cache prefixes by default, which takes more state blocks of each request |

A node that has the image reports its version; otherwise the image's tag gives it. Where the tag leaves it open (`nightly`), every
possible version is computed. The largest is the answer, and `fit` reports the range (`engines/vllm/versions.py`, `fit/defaults.py`).

## Families with their own caches

| family | per token and rank |
|---|---|
| DeepSeek V2, V3, R1, Kimi K2, GLM-4.7-Flash | a latent (MLA): 576 numbers a layer |
| DeepSeek V3.2, GLM-5, 5.1 and 5.2 | 656 bytes a layer for sparse attention on SM12x, whatever `--kv-cache-dtype` says, and 132 bytes in each layer that selects tokens: all of DeepSeek and GLM-5, 21 of 78 in GLM-5.2 |
| DeepSeek V4 | the last 128 tokens of each layer, an entry for each 4 or 128 tokens, their keys, and what is not yet compressed; pages of six sizes share a block. With the default `--max-num-batched-tokens` a request holds another 6.7 GB |
| MiniMax M3 | keys and values, and 256 bytes in each layer that selects tokens |
| MiniMax M2, GLM-4.5 to 4.7, Qwen3, gpt-oss, Llama | keys and values |
| Qwen3-Next, Qwen3.5, Qwen3.6, Qwen3.8-27B, Nemotron 3 | keys and values in some layers, states in the others |

Read in vLLM 0.32.0, for DeepSeek V4 also in 0.26 and 0.28 (`fit/kv_packed.py`). Logged by others:

{families}

Refused by name, with what is missing:

{unknown}

Not counted: the KV cache of draft models with their own layers (DFlash, Eagle), and layouts that pack layers of different page sizes.

## Recorded models

`fit` uses these records where the hub cannot be reached, for the same commit only. `./scripts/record-model REPOSITORY` writes one.

{recorded}

## Weights from config.json alone

The sum of every matrix of the model's family, in the bits of its `quantization_config` (`fit/modules.py`, `fit/quantization.py`).
The size of an unknown method is unknown. Published sizes:

{weights}

## Against vLLM

`tests/lab/test_fit.py` makes small checkpoints, predicts, and starts vLLM 0.32.0 for CPU with 1 GiB of KV cache per rank and context
1,100. The limit is 2 %.

{agreement}

## The verdict's range

vLLM's profiling on shared memory differs between starts: three starts of one recipe had 16.93, 17.59 and 18.13 GiB of KV cache. So
KV cache has a range (`bytes_least`, `bytes_most`): a step takes 0.4 of the estimate, or 1.35 of it and 1 GiB; estimated weights may be
5 % off. "Fits" needs the least to suffice, "does not fit" the most to fail. `safe_gpu_memory_utilization` fits with the least.

Counted beside the batch: CUDA graphs from 0.20 on (0.05 GiB each: up to 102 with 1,024 sequences, seven with four), the loader
(`--load-format instanttensor`: 4.4 GiB), and residual streams (DeepSeek V4: 5.0 GiB in a step of 8,224 tokens, 5.30 were logged; 1.25 in
one of 2,048, 1.39 were logged; a constant was set by it).

{ranges}

DeepSeek-V4-Flash: "24 to 25 GiB" by its source, with its own image and drafter; vLLM's default batch is assumed. MiniMax-M2.7: groups of
32 are assumed (60.8 GiB a rank; with 128 it is 55.8, also inside the range). The RTX 5090 cards have 31.4 GiB; their weights are those
of the log.

## Against measurements on Sparks

The limit is 10 %. Cells marked ≈ by their source are shown only. "A constant was set by it": the cell is no evidence.

### Qwen3.6-35B-A3B-NVFP4, vLLM 0.23, fp8 KV cache, 3 drafted tokens ({guide})

{qwen}

The author rounded 0.5 and 0.4.

### Nemotron-3-Nano-30B-A3B-NVFP4, vLLM 0.18.1, fp8 KV cache, context 8,192, one sequence ({nvfp4})

The guide writes GB and means GiB: 24.3 is 0.2 of 121.6 GiB, and 4.2 GiB are its 292K tokens.

{nemotron}

| utilization | it | `fit` says |
|---|---|---|
{starts}

"Memory in use" is `/proc/meminfo`: the system's 5 GiB and the engine's processes beside the budget. The exact size of both checkpoints'
tensors was not published: the guide's 19 GB and the log's 21.94 GiB are used.
"""

AGREEMENT = {
    ("multi-head", 1): ("llama", 667_455),
    ("multi-head", 2): ("llama", 1_334_911),
    ("grouped", 1): ("qwen3, one KV head", 2_669_944),
    ("grouped", 2): ("qwen3, one KV head, on both ranks", 2_669_944),
    ("sliding", 1): ("gemma3, 12 of 14 layers", 462_112),
    ("sliding and full by turns", 1): ("gemma2", 1_060_141),
    ("heads that differ by layer", 1): ("gemma4", 600_746),
    ("sliding alone", 1): ("mistral", 1_716_314),
    ("latent", 1): ("deepseek_v2", 309_562),
    ("latent", 2): ("deepseek_v2, whole on both ranks", 309_562),
    ("delta net", 1): ("qwen3_next", 151_328),
    ("delta net", 2): ("qwen3_next", 302_814),
    ("Mamba 2", 1): ("falcon_h1, which has attention in each layer", 667_333),
    ("Mamba 1", 1): ("jamba", 1_201_493),
}
"""Case of tests/lab/test_fit.py and its ranks: the family, and the tokens that vLLM 0.32.0 logged and ``fit`` had said."""


def agreement() -> str:
    """The table of made checkpoints, as Markdown."""
    lines = [
        "| what its layers remember | family | ranks | tokens that vLLM logged | `fit` was off by |",
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
