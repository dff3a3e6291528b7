"""docs/fit.md: its words, and the tables of the other modules in them."""

# ruff: noqa: E501 - a row of a Markdown table is one line

from docgen import fit_families, fit_page, fit_ranges, fit_weights

PAGE = """\
# fit: will it fit, and how much context

`sparkcluster fit PLAYBOOK` shows how much memory a playbook needs before anything is downloaded. It reads the model's
`config.json` and the headers of its safetensors files (a few hundred KB by range requests, `HF_TOKEN` for gated models,
`HF_ENDPOINT` for another hub), or a local directory with `--config DIR`, or a `config.json` alone with `--config FILE`,
in which case the weights are estimated.

It shows: whether it fits; how many requests of full context at once; what takes how much; with `-v` its sources, and the tokens
of KV cache that vLLM will log (older versions count them otherwise where layers have windows); the smallest `--gpu-memory-utilization` for `--context` and `--concurrency`; what is left for the system; what to
change if it does not fit. It exits with 1 if it does not fit, and with 0 if it does or is too close to say. `--json` has all of it in
bytes.

```
sparkcluster fit qwen3.6-35b-a3b-nvfp4
sparkcluster fit qwen3.6-35b-a3b-nvfp4 --context 262144 --concurrency 2
sparkcluster fit my-playbook.yaml --config ~/models/mine --nodes 2
```

A Spark's 128 GB are GiB: Linux and CUDA see 121.6 GiB (130.6 GB) of them. Figures are in GB (10⁹).

With `kv-cache-memory-bytes` these bytes decide, and `fit` answers in bytes: `gpu-memory-utilization` sets only what has to be free at
the start (vllm#21489, #39852).

`gpu-memory-utilization: auto` in a playbook takes the smallest utilization that holds `max-num-seqs` (4 if not set)
requests of `max-model-len` even if a step takes the most that was measured, and nothing above 0.90. It is computed from the model, the
arguments and the installed memory, never from free memory, so that the plan stays the same. It needs the model's config on
every node: without it `plan` fails and names `sparkcluster stage`.

Before a launch, check FIT-001 computes the same from the model on each node and that node's memory: "does not fit" is an error, "too
close to say" a warning. FIT-003 checks that
the least it needs is free. Nodes without the model are skipped; FIT-002 reports a model whose memory cannot be computed.

## Several models on one Spark

`sparkcluster fit INVENTORY`, or `fit A B …` with several playbooks as if they shared one Spark, adds up what each model takes of each Spark: weights, KV cache, a
step, and 5.6 GiB for the processes of each engine, as owners of several measured it. 10 GB stay free beside the 5 GiB that the system takes, since three models
that left 9.9 GiB froze a Spark at a large prompt (gb10-services). Below the bars it says which may run together. Exit code 1: they do not fit, even with the 3 GiB
of processes that single engines were measured with; else it is "may not fit", as where

- a model is not known: its engine may take `gpu-memory-utilization` of the memory; where that is `auto`, nothing is known,
- while it starts, a model may take more than is free by then: up to 0.4 of its weights more for a moment (vllm#46307). Models start one after the other, the
  biggest first.

An engine takes its `gpu-memory-utilization` whatever its model needs, and the 0.82 of most playbooks is for a model alone. So beside another one a model gets
what `auto` computes: a KV cache of `max-num-seqs` requests of full context in bytes, `kv-cache-memory-bytes`, and the utilization that holds it, by which vLLM
first looks whether so much is free. Both follow from that entry alone: a further model restarts none, but the first one that is added to a model alone changes
that one's arguments, and `upgrade` restarts it. What the inventory sets (`set: {{args.gpu-memory-utilization: 0.5}}`) stays, and so does a playbook's own
utilization beside its own `kv-cache-memory-bytes`. `up` refuses models that certainly do not fit, before anything starts.
What releases measured here corrects this answer (weights, what the processes take, the peak of the start), and never an
argument.

## Without the hub

Where the hub cannot be reached, or `HF_HUB_OFFLINE` is set, `fit` answers from what is recorded of the models of the bundled playbooks in
`sparkcluster/fit/recorded`: config.json as far as `fit` reads it, sizes of the weights where they were published, and
where each was found. It says so, with the source, and `--json` has it under `recorded`. A record of another commit than the playbook's is not used.
What has no record is "not recorded" (exit code 0): nothing is invented. `./scripts/record-model REPOSITORY` in a checkout fills it from
the hub, with the sizes of all tensors; such a record needs no hub any more.

{recorded}

## Measured here

When `up`, `upgrade` or `rollback` has verified a group, its release also records what the engine logged of its memory: GiB of weights
that a rank loaded, GiB and tokens of KV cache, GiB of CUDA graphs, each of the rank with the least room. With `--inventory`, `fit` asks the nodes for it and shows it beside the prediction:

```
measured here in release 7: 4,843,965 tokens of KV cache, weights 21.94 GiB, KV
             cache 76.49 GiB, CUDA graphs 0.83 GiB; on one Spark,
             gpu-memory-utilization 0.85, max-model-len 65536
```

It is of the newest release of the same model, on as many nodes if there is any; `measured` in `--json`. Figures that a log lacks are left out, as in releases
of an older version.

## What is counted, and what is estimated

| part | how |
|---|---|
| weights of a rank | counted from the tensors: what vLLM shards is shared by the ranks, norms, routers and latent projections are on each; KV heads are replicated where there are fewer than ranks; the vocabulary is padded to 64 |
| KV cache | vLLM's own bookkeeping, exactly: pages, groups of layers, state blocks of each request, the reserved block (`fit/kv.py`) |
| a step, driver, CUDA graphs, loader | estimated from the largest batch and the model's widths; constants set by measurements, marked below |
| the engine's processes, the system | 3 GiB and 5 GiB, from measurements below |

vLLM's bookkeeping differs by version. Four things to know: `gpu-memory-utilization` is 0.92 by default since 0.20, and 0.9
before; `GPU KV cache size` is concurrency times context since 0.21 (before it was blocks over groups, which is less for hybrid
models); sliding windows keep two batches in flight since 0.26; hybrid models cache prefixes by default since 0.28, which takes
further state blocks of each request. A node that has the image reports its version; otherwise it is read from the image's tag.
Where the tag leaves it open, as `nightly` does, every version that is possible is computed: the one that needs the most memory
is the answer, and `fit` reports the range (`engines/vllm/versions.py`, `fit/defaults.py`).

### Families with caches of their own

| family | what a token takes on each rank |
|---|---|
| DeepSeek V2, V3, R1, Kimi K2, GLM-4.7-Flash | a latent (MLA): 576 numbers a layer |
| DeepSeek V3.2, GLM-5, 5.1 and 5.2 | 656 bytes a layer in the format of sparse attention on SM12x, whatever `--kv-cache-dtype` says, and 132 bytes in each layer that selects tokens for itself: all of DeepSeek and GLM-5, 21 of 78 in GLM-5.2 |
| DeepSeek V4 | the last 128 tokens of each layer, an entry for each 4 or 128 tokens, keys that select entries, and what is still to be compressed; pages of six sizes share a block. With the default `--max-num-batched-tokens` a request holds 6.7 GB beside what its length needs |
| MiniMax M3 | keys and values, and 256 bytes in each layer that selects tokens |
| MiniMax M2, GLM-4.5 to 4.7, Qwen3, gpt-oss, Llama | keys and values |
| Qwen3-Next, Qwen3.5, Qwen3.6, Qwen3.8-27B, Nemotron 3 | keys and values in some layers, states in the others |

Read in vLLM 0.32.0, and for DeepSeek V4 in 0.26 and 0.28 too (`fit/kv_packed.py`). What others logged beside it:

{families}

These are refused by name, with what is missing:

{unknown}

So is any other model with layers that are not known. The KV cache of draft models with layers of their own (DFlash, Eagle), and
other layouts that pack layers of different page sizes side by side, are not counted. The weights of draft models are where `sparkcluster fit` reads the hub, and not in the checks.

## Weights, estimated from config.json alone

Without the tensors, weights are the sum of every matrix that the model's family has, in the bits in which its
`quantization_config` says that each is stored (`fit/modules.py`, `fit/quantization.py`). Published sizes beside it:

{weights}

The configurations are those of `sparkcluster/fit/recorded`; the one of Intel's INT4 and those of NVIDIA's NVFP4 and the FP8 of 27B are
written from the descriptions in their sources (`scripts/lib/docgen/fit_weights.py`). Where a checkpoint's method is not known, its size
is unknown, and `fit` says so instead of taking 16 bits.

## Against real vLLM

`tests/lab/test_fit.py` makes small checkpoints (real config, real safetensors, random weights), predicts, then starts vLLM 0.32.0
for CPU with 1 GiB of KV cache for each rank (`VLLM_CPU_KVCACHE_SPACE=1`), context 1,100, and compares with what it logs. It repeats
two of these rows in each full run of the tests.

{agreement}

The limit is 2 %; changing a model's `num_key_value_heads`, or the block size inside `fit`, breaks it
(`tests/unit/fit/test_kv.py`).

## The verdict, and its range

`fit` says "fits", "does not fit" or "too close to say" (`verdict` in `--json`; exit code 1 for "does not fit" alone). What a step
takes is an estimate, and vLLM's own profiling on memory that CPU and GPU share differs from one start to the next: three starts
of one recipe had 16.93, 17.59 and 18.13 GiB of KV cache. So KV cache has a range (`bytes_least`, `bytes_most`): a step may take 0.4
of the estimate, or 1.35 of it and 1 GiB, and weights that are estimated from config.json may be 5 % off. It fits if the least is enough, it does
not if the most is not. `safe_gpu_memory_utilization` is what fits with the least, and what `auto` takes.

Three terms are counted beside the batch: CUDA graphs from vLLM 0.20 on (0.05 GiB each: up to 102 with the default of 1,024 sequences, seven
with four), the loader (`--load-format instanttensor`: 4.4 GiB), and the residual streams of models that have several (DeepSeek V4: 5.0 GiB in a
step of 8,224 tokens, where 5.30 GiB were logged, and 1.25 in one of 2,048, where 1.39 were; a constant was set by it).

{ranges}

DeepSeek-V4-Flash: "24 to 25 GiB" by its source, whose image and drafter are its own; the batch is not told there, and vLLM's default is taken.
The size of MiniMax-M2.7's checkpoint was not published with the log: groups of 32 are assumed, for which the estimate is 60.8 GiB a
rank. With groups of 128 it is 55.8, and both figures are inside the range too. The cards of the RTX 5090 rows have 31.4 GiB; their
weights are those of the log.

## Against measurements on Sparks

The limit is 10 %. Cells that their source marks ≈ are shown only. "A constant was set by it" means that the cell is no evidence,
since a constant of `fit` was chosen to match it.

### Qwen3.6-35B-A3B-NVFP4, vLLM 0.23, fp8 KV cache, 3 drafted tokens ({guide})

{qwen}

The guide's table of 0.5 and 0.4 is rounded by its author: from 0.85 to 0.5 are 42.6 GiB of 121.6, and 76 less 42.6 is 33, not 39.

### Nemotron-3-Nano-30B-A3B-NVFP4, vLLM 0.18.1, fp8 KV cache, context 8,192, one sequence ({nvfp4})

The guide writes GB and means GiB: its 24.3 is 0.2 of 121.6 GiB, and 4.2 GiB (not GB) are its 292K tokens.

{nemotron}

| utilization | it | `fit` says |
|---|---|---|
{starts}

"Memory in use" is what `/proc/meminfo` says: the system's 5 GiB and the engine's processes beside the budget.

Missing: the exact size of either checkpoint's tensors, which was not published with the measurements; the guide's 19 GB and the
log's 21.94 GiB are taken for the weights.
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
    """The text of docs/fit.md."""
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
