"""Arguments and variables of vLLM that only set how it computes, parses or schedules: ``up`` does not ask about them.

An argument belongs here if no plain value of it (a number, a word) makes vLLM load code, read a file, connect, listen,
or write down what users ask.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

_NAMES = """
    aggregate-engine-logging all2all-backend allow-deprecated-quantization async-scheduling attention-backend
    block-size calculate-kv-scales chat-template-content-format convert cp-kv-cache-interleave-size cpu-offload-gb
    cudagraph-capture-sizes cudagraph-metrics data-parallel-size dbo-decode-token-threshold
    dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size dcp-q-replicate
    decode-context-parallel-size disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce
    disable-fastapi-docs disable-frontend-multiprocessing disable-hybrid-kv-cache-manager disable-log-requests
    disable-log-stats disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
    distributed-timeout-seconds dtype enable-auto-tool-choice enable-batch-sharded-sampling enable-bf16x3-router-gemm
    enable-chunked-prefill enable-cumem-allocator enable-dbo enable-ep-weight-filter enable-eplb
    enable-expert-parallel enable-flashinfer-autotune enable-force-include-usage enable-lora
    enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
    enable-per-request-metrics enable-prefix-caching enable-prompt-tokens-details enable-request-id-headers
    enforce-eager exclude-tools-when-tool-choice-none expert-placement-strategy fully-sharded-loras
    gdn-prefill-backend generation-config gpu-memory-utilization interleave-mm-strings kda-decode-backend
    kda-prefill-backend kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes kv-cache-metrics
    kv-cache-metrics-sample kv-offloading-size kv-sharing-fast-prefill language-model-only linear-backend load-format
    log-level logprobs-mode long-prefill-token-threshold lora-dtype mamba-backend mamba-block-size mamba-cache-dtype
    mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm max-cpu-loras
    max-cudagraph-capture-size max-logprobs max-long-partial-prefills max-lora-rank max-loras max-model-len
    max-num-active-seqs max-num-batched-tokens max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens
    max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers max-seq-len-to-capture mm-encoder-attn-backend
    mm-encoder-attn-dtype mm-encoder-only mm-encoder-tp-mode mm-processor-cache-gb mm-processor-cache-type model-impl
    moe-backend num-gpu-blocks-override numa-bind offload-backend offload-group-size offload-num-in-group
    offload-prefetch-step optimization-level performance-mode prefill-context-parallel-size prefill-schedule-interval
    prefix-caching-hash-algo quantization reasoning-parser renderer-num-workers return-tokens-as-token-ids runner
    safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
    scheduler-reserve-full-isl scheduling-policy seed shutdown-timeout skip-mm-profiling spec-method spec-tokens
    stream-interval swap-space tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-strict-level
    ubatch-size use-fp64-gumbel use-tqdm-on-load uvicorn-log-level video-pruning-method video-pruning-rate
"""
_MEDIA = "audio count fps height image length max_frames max_pixels min_pixels num_frames size video width"
_DOCUMENTS = {
    "attention-config": "backend flash_attn_version use_cudnn_prefill use_trtllm_attention",
    "compilation-config": "compile_sizes cudagraph_capture_sizes cudagraph_mode cudagraph_num_of_warmups custom_ops"
    " full_cuda_graph level max_cudagraph_capture_size mode pass_config use_cudagraph use_inductor"
    " enable_attn_fusion enable_fusion enable_noop eliminate_noops fuse_act_quant fuse_allreduce_rms fuse_attn_quant"
    " fuse_norm_quant",
    "default-chat-template-kwargs": "clear_thinking enable_thinking preserve_thinking reasoning_effort thinking"
    " thinking_budget",
    "eplb-config": "log_balancedness num_redundant_experts step_interval use_async window_size",
    "hf-overrides": "attention_factor beta_fast beta_slow factor high_freq_factor low_freq_factor"
    " max_position_embeddings mrope_interleaved mrope_section original_max_position_embeddings partial_rotary_factor"
    " rope_parameters rope_scaling rope_theta rope_type text_config type",
    "limit-mm-per-prompt": _MEDIA,
    "media-io-kwargs": _MEDIA,
    "mm-processor-kwargs": f"{_MEDIA} longest_edge max_soft_tokens shortest_edge use_audio_in_video",
    "override-generation-config": "frequency_penalty max_new_tokens max_tokens min_p presence_penalty"
    " repetition_penalty temperature top_k top_p",
    "speculative-config": "attention_backend disable_by_batch_size disable_padded_drafter_batch"
    " draft_tensor_parallel_size enforce_eager max_model_len method model moe_backend num_speculative_tokens"
    " prompt_lookup_max prompt_lookup_min quantization rejection_sample_method revision"
    " suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth"
    " suffix_decoding_min_token_prob",
    "structured-outputs-config": "backend disable_additional_properties disable_any_whitespace disable_fallback"
    " enable_in_reasoning reasoning_parser",
}

_VARIABLES = """
    CUTE_DSL_ARCH FLASHINFER_CUDA_ARCH_LIST FLASHINFER_DISABLE_VERSION_CHECK RAY_CGRAPH_get_timeout RAY_DEDUP_LOGS
    RAY_memory_monitor_refresh_ms RAY_memory_usage_threshold VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_ATTENTION_BACKEND
    VLLM_CPU_KVCACHE_SPACE VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_CPU_OMP_THREADS_BIND VLLM_DISABLE_COMPILE_CACHE
    VLLM_DO_NOT_TRACK VLLM_ENABLE_V1_MULTIPROCESSING VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_ENGINE_READY_TIMEOUT_S
    VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_FLASHINFER_ALLREDUCE_BACKEND VLLM_FLASHINFER_MOE_BACKEND
    VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE VLLM_FLASH_ATTN_VERSION VLLM_FUSED_MOE_CHUNK_SIZE
    VLLM_HTTP_TIMEOUT_KEEP_ALIVE VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_KV_CACHE_LAYOUT VLLM_LOGGING_LEVEL
    VLLM_LOG_STATS_INTERVAL VLLM_MARLIN_INPUT_DTYPE VLLM_MARLIN_USE_ATOMIC_ADD
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_MLA_DISABLE VLLM_MOE_DP_CHUNK_SIZE VLLM_MXFP4_BACKEND
    VLLM_MXFP4_USE_MARLIN VLLM_NO_USAGE_STATS VLLM_NVFP4_GEMM_BACKEND VLLM_RPC_TIMEOUT VLLM_SKIP_P2P_CHECK
    VLLM_SLEEP_WHEN_IDLE VLLM_TEST_FORCE_FP8_MARLIN VLLM_USE_CUDNN_PREFILL VLLM_USE_DEEP_GEMM VLLM_USE_DEEP_GEMM_E8M0
    VLLM_USE_FBGEMM VLLM_USE_FLASHINFER_MOE_FP16 VLLM_USE_FLASHINFER_MOE_FP4 VLLM_USE_FLASHINFER_MOE_FP8
    VLLM_USE_FLASHINFER_MOE_INT4 VLLM_USE_FLASHINFER_MOE_MXFP4_BF16 VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8
    VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS VLLM_USE_FLASHINFER_SAMPLER VLLM_USE_RAY_COMPILED_DAG
    VLLM_USE_TRITON_FLASH_ATTN VLLM_USE_TRTLLM_ATTENTION VLLM_USE_V1 VLLM_V1_OUTPUT_PROC_CHUNK_SIZE
    VLLM_WORKER_MULTIPROC_METHOD
"""


@functools.cache
def arguments() -> Mapping[str, frozenset[str]]:
    """Names of arguments, and keys that documents in their values may have."""
    return {name: frozenset(_DOCUMENTS.get(name, "").split()) for name in [*_NAMES.split(), *_DOCUMENTS]}


@functools.cache
def variables() -> frozenset[str]:
    """Names of variables."""
    return frozenset(_VARIABLES.split())
