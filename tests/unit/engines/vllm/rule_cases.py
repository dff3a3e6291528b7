"""Cases of the rules: what makes each fire, and what is near and must not."""

from __future__ import annotations

from typing import Any

NGC = "nvcr.io/nvidia/vllm:26.04-py3"
NGC_OLD = "nvcr.io/nvidia/vllm:25.12.post1-py3"
NIGHTLY = "vllm/vllm-openai:nightly"
QWEN = "nvidia/Qwen3.6-35B-A3B-NVFP4"
QWEN_DENSE = "unsloth/Qwen3.6-27B-NVFP4"
NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"
OMNI = "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4"
GEMMA_MOE = "bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4"
GEMMA = "nvidia/Gemma-4-31B-IT-NVFP4"
GPT_OSS = "openai/gpt-oss-120b"
CODER = "Qwen/Qwen3-Coder-Next-FP8"
SUPER = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
LIGHTNING = "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"
EUGR = "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest"
RELEASE_23 = "vllm/vllm-openai:v0.23.0"
LOADER = "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py"


def case(code: str, severity: str, fires: dict[str, Any], *misses: dict[str, Any]) -> dict[str, Any]:
    return {"code": code, "severity": severity, "fires": fires, "misses": list(misses)}


def args(**values: Any) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in values.items()}


def draft(method: str, **more: Any) -> dict[str, Any]:
    return {"speculative-config": {"method": method, **more}}


def draft_of(name: str, **more: Any) -> dict[str, Any]:
    return draft("draft_model", model=name, num_speculative_tokens=3, **more)


PINNED = {"id": "org/model", "revision": "a" * 40}

# eugr/spark-vllm-docker, recipes/qwen3.6-35b-a3b-fp8-dflash.yaml
DFLASH_EUGR = {"model": "Qwen/Qwen3.6-35B-A3B-FP8", "image": "vllm-node"}

DFLASH = {
    "model": "Qwen/Qwen3.6-27B",
    "image": NIGHTLY,
    "env": {"VLLM_USE_DEEP_GEMM": "0"},
    "args": {
        **draft("dflash", model="z-lab/Qwen3.6-27B-DFlash", num_speculative_tokens=15),
        "attention-backend": "triton_attn",
    },
}


def dflash(**changes: Any) -> dict[str, Any]:
    return {**DFLASH, **changes, "args": {**DFLASH["args"], **changes.get("args", {})}}


CASES: list[dict[str, Any]] = [
    case(
        "SM121-001", "warning",
        {"model": NANO, "args": args(enforce_eager=True)},
        {"model": NANO, "args": args(enforce_eager=True), "goal": "memory", "softer": "info"},
        {"model": NANO, "args": args(no_enforce_eager=True)},
    ),
    case(
        "SM121-002", "error",
        {"model": QWEN, "image": NGC, "args": args(moe_backend="cutlass")},
        {"model": QWEN, "image": NGC, "args": args(moe_backend="marlin")},
        {"model": QWEN, "image": NIGHTLY, "args": args(moe_backend="flashinfer_cutlass"), "softer": "info"},
        {"model": QWEN_DENSE, "image": NGC, "args": args(moe_backend="cutlass")},
    ),
    case(
        "SM121-002", "error",
        {"model": QWEN, "image": NIGHTLY, "args": args(moe_backend="flashinfer_trtllm")},
        {"model": "Qwen/Qwen3-30B-A3B", "image": NIGHTLY, "args": args(moe_backend="flashinfer_trtllm")},
    ),
    case(
        "SM121-003", "warning",
        {"model": QWEN, "image": NGC},
        {"model": QWEN, "image": NGC, "args": args(moe_backend="marlin")},
        {"model": QWEN, "image": NGC, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
        {"model": QWEN, "image": NIGHTLY, "softer": "info"},
    ),
    case(
        "SM121-004", "warning",
        {"model": QWEN, "image": NIGHTLY, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
        {"model": QWEN, "image": NGC, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
        {"model": QWEN, "image": "engine:7", "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
    ),
    case(
        "SM121-005", "warning",
        {"model": QWEN, "image": NIGHTLY, "env": {"VLLM_FP8_MOE_BACKEND": "flashinfer_cutlass"}},
        {"model": QWEN, "image": "christopher/spark-vllm-mxfp4", "env": {"VLLM_MXFP4_BACKEND": "marlin"}},
        {"model": QWEN, "image": NIGHTLY, "env": {"VLLM_USE_DEEP_GEMM": "0"}},
    ),
    case(
        "SM121-005", "warning",
        {"model": QWEN, "image": NGC, "env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}},
        {"model": NANO, "image": "nvcr.io/nvidia/vllm:25.12-py3", "env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}},
    ),
    case(
        "SM121-064", "warning",
        {"model": CODER, "image": "vllm/vllm-openai:v0.28.0", "args": args(enable_prefix_caching=False)},
        {"model": CODER, "image": "vllm/vllm-openai:v0.28.0"},
    ),
    case(
        "SM121-006", "error",
        {"model": QWEN, "image": NGC, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "1"}},
        {"model": NANO, "image": NGC_OLD, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "1"}},
        {"model": QWEN, "image": NGC, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
    ),
    case(
        "SM121-007", "error",
        {"model": QWEN, "image": NGC, "env": {"VLLM_MARLIN_USE_ATOMIC_ADD": "0"}},
        {"model": QWEN, "image": NGC, "env": {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"}},
        {"model": QWEN, "image": NGC},
    ),
    case(
        "SM121-008", "warning",
        {"model": QWEN, "image": RELEASE_23, "args": args(attention_backend="flashinfer")},
        {"model": QWEN, "image": RELEASE_23, "args": args(attention_backend="auto")},
        # vllm-project/recipes, Qwen3.6-35B-A3B on 0.28; eugr/spark-vllm-docker and spark-arena/recipe-registry, recipes
        {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": args(attention_backend="flashinfer")},
        {"model": QWEN, "image": NIGHTLY, "args": args(attention_backend="flashinfer"), "softer": "info"},
    ),
    case(
        "SM121-008", "warning",
        {"model": QWEN, "image": "vllm/vllm-openai:cu130-nightly", "args": args(attention_backend="flashinfer")},
        {"model": NANO, "image": NGC, "args": args(attention_backend="TRITON_ATTN")},
    ),
    case(
        "SM121-009", "warning",
        {"model": "Qwen/Qwen3-32B-FP8", "image": NGC, "args": args(attention_backend="FLASHINFER")},
        {"model": CODER, "image": NIGHTLY, "args": args(attention_backend="flashinfer"), "softer": "info"},
        {"model": "Qwen/Qwen3-32B", "image": NGC, "args": args(attention_backend="FLASHINFER")},
    ),
    case(
        "SM121-010", "info",
        {"model": "openai/gpt-oss-120b", "image": NGC},
        {"model": QWEN, "image": NGC},
        {"model": "openai/gpt-oss-120b", "image": NIGHTLY},
    ),
    case(
        "SM121-011", "warning",
        {"model": NANO, "image": NIGHTLY, "args": args(enable_chunked_prefill=True)},
        {"model": QWEN, "image": NIGHTLY, "args": args(enable_chunked_prefill=True)},
        {"model": NANO, "image": NIGHTLY, "args": args(enable_chunked_prefill=False)},
    ),
    case(
        "SM121-020", "warning",
        {"image": "vllm/vllm-openai:v0.18.0"},
        {"image": "vllm/vllm-openai:v0.18.0-cu130"},
        {"image": "vllm/vllm-openai:v0.20.0"},
    ),
    case(
        "SM121-021", "error",
        {"model": GEMMA, "image": "vllm/vllm-openai:gemma4"},
        {"model": GEMMA, "image": "vllm/vllm-openai:gemma4-cu130"},
    ),
    case(
        "SM121-022", "error",
        {"model": GEMMA, "image": "nvcr.io/nvidia/vllm:26.03-py3"},
        {"model": GEMMA, "image": NGC},
        {"model": GEMMA, "image": "vllm/vllm-openai:gemma4-cu130"},
    ),
    case(
        "SM121-023", "warning",
        {"model": OMNI, "image": NGC},
        {"model": OMNI, "image": "vllm/vllm-openai:v0.20.0"},
        {"model": NANO, "image": NGC},
    ),
    case(
        "IMG-010", "info",
        {"image": NIGHTLY},
        {"image": f"{NIGHTLY}@sha256:{'0' * 64}"},
        {"image": f"vllm/vllm-openai@sha256:{'0' * 64}"},
    ),
    case(
        "IMG-010", "info",
        {"image": "vllm/vllm-openai:v0.20.0"},
        {"image": f"vllm/vllm-openai:v0.20.0@sha256:{'0' * 64}"},
    ),
    case(
        "SM121-025", "warning",
        {"image": "vllm/vllm-openai:cu130-nightly"},
        {"image": NIGHTLY},
        {"image": "vllm/vllm-openai:cu130-nightly", "facts": {"image": {
            "reference": "vllm/vllm-openai:cu130-nightly", "id": "sha256:1",
            "inside": {"python": "python3", "python_version": "3.12", "platform": "linux_aarch64",
                       "version": "0.19.1rc1.dev200", "family": "upstream"}}}},
    ),
    case(
        "SM121-027", "warning",
        {"model": NANO, "image": NGC_OLD, "facts": {"driver": "575.57.08"}},
        {"model": NANO, "image": NGC_OLD, "facts": {"driver": "580.95.05"}, "softer": "info"},
        {"model": NANO, "image": NGC_OLD, "facts": {"driver": "590.44.01"}},
    ),
    case(
        "SM121-028", "error",
        {"image": "nvcr.io/nvidia/vllm:26.02-py3", "facts": {
            "weights": {"path": "/w", "files": [{"name": "a", "size_bytes": 1}],
                        "config": {"quantization_config": {"quant_method": "modelopt",
                                                           "quant_algo": "MIXED_PRECISION"}}}}},
        {"image": "nvcr.io/nvidia/vllm:26.03-py3", "facts": {
            "weights": {"path": "/w", "files": [{"name": "a", "size_bytes": 1}],
                        "config": {"quantization_config": {"quant_method": "modelopt",
                                                           "quant_algo": "MIXED_PRECISION"}}}}},
        {"image": "nvcr.io/nvidia/vllm:26.02-py3", "facts": {
            "weights": {"path": "/w", "files": [{"name": "a", "size_bytes": 1}],
                        "config": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}}}},
    ),
    case(
        "SM121-029", "error",
        {"model": GEMMA_MOE, "image": "vllm/vllm-openai:gemma4-cu130"},
        {"model": GEMMA_MOE, "image": "vllm/vllm-openai:gemma4-cu130",
         "mounts": [{"source": "~/gemma4_patched.py", "target": LOADER}]},
        {"model": GEMMA_MOE, "image": NIGHTLY},
    ),
    case(
        "SM121-030", "info",
        {"image": NGC, "executor": "ray", "nodes": 2},
        {"image": NGC, "executor": "native", "nodes": 2},
        {"image": "nvcr.io/nvidia/vllm:26.03-py3", "executor": "ray", "nodes": 2},
    ),
    case(
        "SM121-031", "info",
        {"setup": ["pip install vllm[audio]"]},
        {"setup": ["ldconfig"]},
    ),
    case(
        "SM121-040", "error",
        {"model": "Qwen/Qwen3-30B-A3B", "image": NGC, "args": args(quantization="mxfp4")},
        {"model": "openai/gpt-oss-120b", "image": NGC, "args": args(quantization="mxfp4")},
        {"model": "Qwen/Qwen3-30B-A3B", "image": NIGHTLY, "args": args(quantization="mxfp4"), "softer": "warning"},
    ),
    case(
        "SM121-041", "error",
        {"model": QWEN_DENSE, "image": NIGHTLY, "args": args(quantization="modelopt")},
        {"model": QWEN, "image": NIGHTLY, "args": args(quantization="modelopt")},
        {"model": QWEN_DENSE, "image": NIGHTLY},
        # NVIDIA/dgx-spark-playbooks, nvidia/nemotron
        {"model": SUPER, "image": "vllm/vllm-openai:cu130-nightly", "args": args(quantization="fp4"), "softer": "info"},
    ),
    case(
        "SM121-041", "error",
        {"model": "RedHatAI/Qwen3.5-122B-A10B-NVFP4", "command": [
            "vllm", "serve", "RedHatAI/Qwen3.5-122B-A10B-NVFP4", "--quantization=modelopt"]},
        {"model": "Qwen/Qwen3-32B-GPTQ-Int4", "command": [
            "vllm", "serve", "Qwen/Qwen3-32B-GPTQ-Int4", "--quantization", "gptq_marlin"]},
    ),
    case(
        "SM121-042", "info",
        {"model": QWEN, "image": NGC},
        {"model": QWEN, "image": NIGHTLY},
        {"model": QWEN, "image": NGC, "args": args(quantization="modelopt")},
    ),
    case(
        "SM121-043", "error",
        {"image": NGC, "args": args(load_format="fastsafetensors")},
        {"image": NIGHTLY, "args": args(load_format="fastsafetensors")},
        {"image": "nvcr.io/nvidia/vllm:26.10-py3", "args": args(load_format="fastsafetensors")},
    ),
    case(
        "SM121-032", "error",
        {"model": QWEN, "image": "rocm/vllm:rocm7.14.0_cdna_ubuntu24.04_py3.14_pytorch_2.11.0_vllm_0.23.0"},
        {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0"},
        {"model": NANO, "image": "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest"},
    ),
    case("SM121-032", "error", {"image": "vllm/vllm-openai-xpu:v0.28.0"}, {"image": "lmsysorg/spark:1"}),
    case(
        "SM121-044", "info",
        {"image": NIGHTLY, "args": args(load_format="fastsafetensors", gpu_memory_utilization=0.85)},
        {"image": NIGHTLY, "args": args(load_format="fastsafetensors", gpu_memory_utilization=0.7)},
        {"model": "cyankiwi/MiniMax-M2.7-AWQ-4bit", "image": EUGR,
         "args": args(load_format="safetensors", gpu_memory_utilization=0.85)},
    ),
    case(
        "SM121-047", "error",
        {"model": "google/gemma-4-26B-A4B-it", "image": "vllm/vllm-openai:v0.20.0",
         "args": args(load_format="fastsafetensors", quantization="fp8")},
        # eugr/spark-vllm-docker, recipes/gemma4-26b-a4b.yaml after the report, and NVIDIA's DiffusionGemma
        {"model": "google/gemma-4-26B-A4B-it", "image": "vllm-node", "args": args(load_format="instanttensor")},
        {"model": "cyankiwi/gemma-4-26B-A4B-it-AWQ-4bit", "image": EUGR,
         "args": args(load_format="fastsafetensors"), "softer": "warning"},
    ),
    case(
        "SM121-048", "warning",
        {"model": "Qwen/Qwen3.5-122B-A10B-FP8", "image": "vllm/vllm-openai:v0.21.0",
         "args": {**draft("dflash", model="z-lab/Qwen3.5-122B-A10B-DFlash"), "load-format": "instanttensor"}},
        # eugr/spark-vllm-docker, recipes/qwen3.6-35b-a3b-fp8-dflash.yaml and gemma4-26b-a4b-nvfp4.yaml
        {"model": "Qwen/Qwen3.6-35B-A3B-FP8", "image": "vllm-node",
         "args": {**draft("dflash", model="z-lab/Qwen3.6-35B-A3B-DFlash"), "load-format": "fastsafetensors"}},
        {"model": "Qwen/Qwen3.6-27B-FP8", "image": EUGR, "softer": "info",
         "args": {**draft("dflash", model="z-lab/Qwen3.6-27B-DFlash"), "load-format": "instanttensor"}},
    ),
    case(
        "SM121-045", "warning",
        {"model": "RedHatAI/Qwen3.5-122B-A10B-NVFP4", "args": args(kv_cache_dtype="fp8")},
        {"model": QWEN, "args": args(kv_cache_dtype="fp8")},
        # eugr/spark-vllm-docker, recipes/qwen3.5-35b-a3b-fp8.yaml
        {"model": "Qwen/Qwen3.5-35B-A3B-FP8", "image": "vllm-node", "args": args(kv_cache_dtype="fp8"), "softer": "info"},
    ),
    case(
        "SM121-046", "warning",
        {"model": "poolside/Laguna-XS.2-FP8"},
        {"model": "poolside/Laguna-XS.2"},
        {"model": "poolside/Laguna-XS.2-FP8", "args": args(kv_cache_dtype="bfloat16")},
    ),
    case(
        "SM121-060", "error",
        {"model": QWEN, "args": args(gpu_memory_utilization=0.95)},
        {"model": QWEN, "args": args(gpu_memory_utilization=0.85)},
        {"model": QWEN, "args": args(gpu_memory_utilization=0.9), "softer": "info"},
    ),
    case(
        "SM121-060", "warning",
        {"model": QWEN, "image": NIGHTLY},
        {"model": QWEN, "image": NGC},
    ),
    case(
        "SM121-061", "warning",
        {"nodes": 2, "image": NGC, "args": args(gpu_memory_utilization=0.85, max_model_len=131072)},
        {"nodes": 1, "image": NGC, "args": args(gpu_memory_utilization=0.85, max_model_len=131072)},
        {"nodes": 2, "image": NGC, "args": args(gpu_memory_utilization=0.82, max_model_len=131072)},
        {"nodes": 2, "image": EUGR, "model": "nvidia/MiniMax-M2.7-NVFP4", "softer": "info",
         "args": args(gpu_memory_utilization=0.85, max_model_len=196608)},
    ),
    case(
        "SM121-062", "info",
        {"args": args(max_num_seqs=8)},
        {"args": args(max_num_seqs=4)},
        {},
    ),
    case(
        "SM121-065", "warning",
        {"model": "meta-llama/Llama-3.3-70B-Instruct", "image": NGC, "args": args(cpu_offload_gb=20)},
        {"model": "meta-llama/Llama-3.1-8B-Instruct", "image": NGC, "args": args(cpu_offload_gb=0)},
        {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": args(kv_offloading_size=4)},
    ),
    case(
        "SM121-063", "error",
        {"model": QWEN_DENSE, "args": args(max_model_len=1010000)},
        {"model": QWEN_DENSE, "args": args(max_model_len=262144)},
        {"model": QWEN_DENSE, "args": {"max-model-len": 1010000, "hf-overrides": {"text_config": {}}},
         "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "softer": "info"},
    ),
    case(
        "SM121-063", "error",
        {"model": "Qwen/Qwen3-30B-A3B", "args": args(max_model_len=262144)},
        {"model": "Qwen/Qwen3-30B-A3B-Thinking-2507", "args": args(max_model_len=262144)},
        {"model": {"id": "someone/own-2507", "architecture": "Qwen3MoeForCausalLM"},
         "args": args(max_model_len=262144)},
    ),
    case(
        "SM121-064", "warning",
        {"model": CODER},
        {"model": CODER, "args": args(enable_prefix_caching=True)},
        {"model": CODER, "image": "vllm/vllm-openai:v0.28.0"},
    ),
    case(
        "SM121-080", "error",
        {"args": args(enable_auto_tool_choice=True)},
        {"args": args(enable_auto_tool_choice=True, tool_call_parser="hermes")},
        {"args": args(tool_call_parser="hermes"), "softer": "warning"},
    ),
    case(
        "SM121-081", "info",
        {"model": QWEN},
        {"model": QWEN, "args": args(enable_auto_tool_choice=True, tool_call_parser="qwen3_xml")},
        {"model": "someone/unknown"},
    ),
    case(
        "SM121-082", "warning",
        {"model": QWEN, "args": args(enable_auto_tool_choice=True, tool_call_parser="hermes")},
        {"model": QWEN, "args": args(enable_auto_tool_choice=True, tool_call_parser="qwen3_xml")},
        {"model": "Qwen/Qwen3-8B", "args": args(enable_auto_tool_choice=True, tool_call_parser="hermes")},
    ),
    case(
        "SM121-082", "warning",
        {"model": GEMMA_MOE, "args": args(enable_auto_tool_choice=True, tool_call_parser="hermes")},
        {"model": GEMMA_MOE, "args": args(enable_auto_tool_choice=True, tool_call_parser="pythonic")},
        # eugr/spark-vllm-docker, recipes/gemma4-26b-a4b-nvfp4.yaml
        {"model": "nvidia/Gemma-4-26B-A4B-NVFP4", "args": args(enable_auto_tool_choice=True, tool_call_parser="gemma4")},
    ),
    case(
        "SM121-082", "warning",
        {"model": SUPER, "args": args(enable_auto_tool_choice=True, tool_call_parser="nemotron_json")},
        # vllm-project/recipes, models/nvidia
        {"model": SUPER, "args": args(enable_auto_tool_choice=True, tool_call_parser="qwen3_xml")},
        {"model": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",
         "args": args(enable_auto_tool_choice=True, tool_call_parser="qwen3_xml")},
    ),
    case(
        "SM121-083", "warning",
        {"model": QWEN, "args": args(reasoning_parser="deepseek_r1")},
        {"model": QWEN, "args": args(reasoning_parser="qwen3")},
        {"model": QWEN, "softer": "info"},
    ),
    case(
        "SM121-083", "warning",
        {"model": CODER, "args": args(reasoning_parser="qwen3")},
        {"model": CODER},
    ),
    case(
        "SM121-084", "error",
        {"model": NANO, "args": args(reasoning_parser="nano_v3")},
        {"model": NANO, "args": args(reasoning_parser="nano_v3", reasoning_parser_plugin="/m/p.py")},
        {"model": NANO, "args": args(reasoning_parser="nemotron_v3")},
    ),
    case(
        "SM121-085", "warning",
        {"model": QWEN, "verify": {"max_tokens": 64}},
        {"model": QWEN, "verify": {"max_tokens": 512}},
        {"model": QWEN, "verify": {"max_tokens": 64, "chat_template_kwargs": {"enable_thinking": False}}},
    ),
    case(
        "SM121-086", "error",
        {"model": QWEN, "verify": {"tools": True}, "args": args(tool_call_parser="qwen3_xml")},
        {"model": QWEN, "verify": {"tools": True},
         "args": args(enable_auto_tool_choice=True, tool_call_parser="qwen3_xml")},
        {"model": QWEN},
    ),
    case(
        "SM121-086", "error",
        {"model": QWEN, "verify": {"reasoning": True}},
        {"model": QWEN, "verify": {"reasoning": True}, "args": args(reasoning_parser="qwen3")},
    ),
    case("SM121-100", "error", dflash(args=args(kv_cache_dtype="fp8")), dflash(),
         {"model": LIGHTNING, "image": "vllm/vllm-openai:v0.27.1", "softer": "warning",
          "args": {"kv-cache-dtype": "fp8", **draft("dflash", attention_backend="FLASHINFER")}}),
    case("SM121-101", "error", dflash(image=NGC), dflash(), dflash(image="vllm/vllm-openai:v0.21.0")),
    case("SM121-102", "warning", dflash(env={}), dflash(),
         {**dflash(env={}, **DFLASH_EUGR), "softer": "info"}),
    case("SM121-103", "error", dflash(image="vllm/vllm-openai:v0.26.0", args=args(attention_backend="flash_attn")), dflash(),
         dflash(args=args(attention_backend="flash_attn"), image="ghcr.io/aeon-7/vllm-dflash:latest"),
         {**dflash(image="vllm/vllm-openai:v0.26.0", args=args(attention_backend="flash_attn"),
                   env={"VLLM_USE_V2_MODEL_RUNNER": "1"}), "softer": "warning"}),
    case("SM121-104", "warning", dflash(model=QWEN), dflash(),
         {**dflash(**DFLASH_EUGR), "softer": "info"}),
    case("SM121-105", "warning", dflash(model="Qwen/Qwen3.6-35B-A3B"), dflash(), dflash(model=QWEN_DENSE)),
    case("SM121-106", "warning", dflash(model="google/gemma-4-31B-it"),
         dflash(model="google/gemma-4-31B-it", image="ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130"), dflash()),
    case(
        "SM121-107", "error",
        {"model": "~/vllm/gemma4-coder", "args": draft("mtp", model="/model/assistant", num_speculative_tokens=3)},
        {"model": "~/vllm/gemma4-coder", "args": {
            **draft("mtp", model="/model/assistant", num_speculative_tokens=3), "kv-cache-dtype": "fp8"}},
        {"model": QWEN, "args": draft("mtp", num_speculative_tokens=3)},
    ),
    case("SM121-108", "warning", {"model": QWEN, "args": draft("mtp", num_speculative_tokens=8)},
         {"model": QWEN, "args": draft("mtp", num_speculative_tokens=3)}, dflash()),
    case("SM121-109", "warning", {"model": NANO, "args": draft("mtp", num_speculative_tokens=1)},
         {"model": NANO, "args": draft("ngram", num_speculative_tokens=4)},
         {"model": QWEN, "args": draft("mtp", num_speculative_tokens=1)}),
    case("SM121-110", "info", {"args": {**draft("ngram"), "max-num-seqs": 64}},
         {"args": {**draft("ngram"), "max-num-seqs": 4}}, {"args": args(max_num_seqs=64)}),
    case(
        "SM121-111", "error",
        {"model": QWEN, "image": NIGHTLY, "args": {**draft("ngram"), "async-scheduling": True}},
        {"model": QWEN, "image": NIGHTLY, "args": {**draft("mtp"), "async-scheduling": True}},
        {"model": QWEN, "image": NIGHTLY, "args": {**draft("ngram"), "async-scheduling": False}},
    ),
    case(
        "SM121-112", "warning",
        {"model": QWEN, "image": NIGHTLY, "args": draft("suffix")},
        {"model": QWEN, "image": NIGHTLY, "args": draft("suffix"), "setup": ["pip install arctic-inference==0.1.1"]},
        {"model": QWEN, "image": NIGHTLY, "args": draft("ngram")},
    ),
    case(
        "SM121-120", "error",
        {"command": ["vllm", "serve", "vllm", "serve", "org/model"]},
        {"command": ["vllm", "serve", "org/model"]},
        {"command": ["bash", "-c", "pip install x && vllm serve org/model"]},
    ),
    case("SM121-120", "error", {"command": ["bash", "-c", "vllm serve vllm serve org/model"]},
         {"command": ["bash", "-c", "vllm serve org/vllm-serve"]}),
    case("SM121-121", "error", {"command": ["org/model", "--port", "8000"]},
         {"command": ["vllm", "serve", "org/model"]}, {"command": ["/opt/serve.sh"]}),
    case(
        "SM121-122", "error",
        {"model": GEMMA_MOE, "nodes": 2},
        {"model": GEMMA_MOE, "nodes": 1},
        {"model": GEMMA, "nodes": 2},
    ),
    case("SM121-123", "error", {"setup": ["export NCCL_SOCKET_IFNAME=enp1s0f1np1"]},
         {"setup": ["export NCCL_DEBUG=INFO"]}, {"setup": ["echo $NCCL_SOCKET_IFNAME"]}),
    case(
        "SM121-124", "info",
        {"facts": {"image": {"reference": "x", "id": "sha256:1", "env_names": ["PATH", "NCCL_SOCKET_IFNAME"]}}},
        {"facts": {"image": {"reference": "x", "id": "sha256:1", "env_names": ["PATH", "NCCL_VERSION"]}}},
        {},
    ),
    case("SM121-125", "warning", {"env": {"RAY_memory_monitor_refresh_ms": "250"}},
         {"env": {"RAY_memory_monitor_refresh_ms": "0"}}, {"env": {"NCCL_DEBUG": "INFO"}}),
    case("SM121-126", "error", {"setup": ["ray start --head --dashboard-host=0.0.0.0"]},
         {"setup": ["ray start --head --dashboard-host=127.0.0.1"], "softer": "warning"}, {"setup": ["ray --version"]}),
    case("MDL-004", "warning", {"args": args(trust_remote_code=True)},
         {"model": {"id": "org/model", "revision": "a" * 40}, "args": args(trust_remote_code=True)},
         {"model": "/weights/model", "args": args(trust_remote_code=True)}),
    case("MDL-004", "warning", {"model": PINNED, "args": args(trust_remote_code=True, **draft_of("evil/draft"))},
         {"model": PINNED, "args": args(trust_remote_code=True, **draft_of("evil/draft", revision="b" * 40))},
         {"model": PINNED, "args": args(trust_remote_code=True, lora_modules=["sql=org/adapter"])},
         {"model": PINNED, "args": args(**draft_of("evil/draft")), "softer": "info"}),
    case("MDL-004", "warning", {"model": PINNED, "args": args(trust_remote_code=True, tokenizer="evil/tokenizer")},
         {"model": PINNED, "args": args(trust_remote_code=True, tokenizer="a/b", tokenizer_revision="b" * 40)}),
    case("MDL-004", "warning", {"command": ["vllm", "serve", "org/model", "--trust-remote"]},
         {"model": PINNED, "command": ["vllm", "serve", "org/model", "--trust-remote"]},
         {"command": ["bash", "-c", "vllm serve org/model; grep -t x"], "softer": "info"}),
    case("MDL-004", "warning", {"model": PINNED, "command": ["bash", "-c", "vllm serve x --trust_r --toke=evil/tokenizer"]},
         {"model": PINNED, "command": ["vllm", "serve", "x", "--trust-remote-code"]}),
    case("MDL-004", "info", {"model": {"id": "org/model", "revision": "v1"}},
         {"model": {"id": "org/model", "revision": "a" * 40}}, {"model": "/weights/model"}),
    case("SPEC-008", "warning", {"args": args(allowed_local_media_path="/")},
         {"args": args(allowed_local_media_path="/media")}),
    case("SM121-131", "info", {"model": QWEN, "args": args(gpu_memory_utilization=0.85)},
         {"model": QWEN, "args": args(gpu_memory_utilization=0.82)},
         {"model": QWEN, "args": args(gpu_memory_utilization=0.85), "env": {"VLLM_CPU_KVCACHE_SPACE": "4"}}),
    case("SM121-132", "warning", {"model": GPT_OSS, "image": "vllm/vllm-openai:v0.20.0", "args": args(moe_backend="marlin")},
         {"model": GPT_OSS, "image": "vllm/vllm-openai:v0.28.0", "args": args(moe_backend="marlin")},
         {"model": GPT_OSS, "image": "vllm/vllm-openai:v0.20.0", "args": args(moe_backend="emulation")},
         # https://conselara.dev/notes/dgx-spark-benchmarks/
         {"model": GPT_OSS, "image": NGC, "args": args(moe_backend="marlin"), "softer": "info"}),
    case("SM121-132", "warning", {"model": "openai/gpt-oss-20b", "image": "vllm/vllm-openai:v0.19.0-cu130"},
         {"model": "openai/gpt-oss-20b", "image": "vllm/vllm-openai:v0.23.0"}),
    case("SM121-136", "warning",
         {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0",
          "args": {**draft("mtp", num_speculative_tokens=3), "kv-cache-dtype": "fp8", "attention-backend": "flashinfer"}},
         # vllm-project/recipes, Qwen3.6-35B-A3B on 0.28; eugr/spark-vllm-docker, recipes/qwen3.6-35b-a3b-nvfp4.yaml
         {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": {**draft("mtp"), "kv-cache-dtype": "fp8"}},
         {"model": QWEN, "image": "vllm-node", "args": {**draft("mtp"), "kv-cache-dtype": "fp8"}}),
    case("SM121-137", "warning",
         {"model": "Qwen/Qwen3.6-27B-FP8", "image": "vllm/vllm-openai:v0.20.2", "args": draft("mtp", num_speculative_tokens=5)},
         # a reply in the thread, on a GB10
         {"model": "Qwen/Qwen3.6-27B-FP8", "image": "vllm/vllm-openai:v0.20.0", "args": draft("mtp", num_speculative_tokens=3)},
         {"model": SUPER, "image": "vllm/vllm-openai:v0.20.0", "args": draft("nemotron_h_mtp", num_speculative_tokens=5)}),
    case("SM121-138", "error",
         {"model": SUPER, "image": NGC, "args": {**draft("nemotron_h_mtp", num_speculative_tokens=5), "enable-prefix-caching": True}},
         # NVIDIA/dgx-spark-playbooks, nvidia/nemotron; vllm-project/recipes, Nemotron 3.5 Lightning; Qwen3.6 is no Mamba
         {"model": SUPER, "image": "vllm/vllm-openai:cu130-nightly", "args": {**draft("mtp"), "enable-prefix-caching": True}},
         {"model": SUPER, "image": NGC, "args": draft("mtp", num_speculative_tokens=1)},
         {"model": QWEN, "image": NGC, "args": {**draft("mtp"), "enable-prefix-caching": True}}),
    case("SM121-139", "error",
         {"model": GEMMA, "image": "vllm/vllm-openai:v0.20.0", "args": args(attention_backend="FLASHINFER")},
         {"model": "nvidia/diffusiongemma-26B-A4B-it-NVFP4", "image": "vllm/vllm-openai:gemma",
          "args": args(attention_backend="TRITON_ATTN")},
         {"model": "google/gemma-4-31B-it", "image": EUGR, "args": args(attention_backend="flashinfer"), "softer": "warning"}),
    case("SM121-140", "warning",
         {"model": QWEN, "image": "vllm/vllm-openai:v0.25.0", "nodes": 2, "args": args(moe_backend="flashinfer_b12x")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.25.0", "args": args(moe_backend="flashinfer_b12x")},
         {"model": SUPER, "image": "vllm/vllm-openai:v0.31.0", "nodes": 2, "args": args(moe_backend="b12x")}),
    case("SM121-141", "warning",
         {"model": "poolside/Laguna-S-2.1-NVFP4", "image": "vllm/vllm-openai:nightly-aarch64"},
         {"model": "poolside/Laguna-S-2.1-NVFP4", "image": "vllm-node"},
         {"model": "poolside/Laguna-S-2.1-NVFP4", "image": NIGHTLY, "nodes": 2}),
    case("SM121-127", "error", {"env": {"CUDA_VISIBLE_DEVICES": "1"}}, {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
         {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}, "softer": "warning"},
         {"env": {"CUDA_VISIBLE_DEVICES": "3"}, "facts": {"gpus": [{"name": "H100", "compute_capability": "9.0"}]}}),
    case("SM121-127", "error", {"env": {"CUDA_VISIBLE_DEVICES": ""}}, {}),
    case("SM121-142", "warning",
         {"model": "Qwen/Qwen3.6-35B-A3B-FP8", "image": "vllm-node", "args": args(chat_template="fixed_chat_template.jinja")},
         {"model": "google/gemma-4-26B-A4B-it", "args": args(chat_template="examples/tool_chat_template_gemma4.jinja")},
         {"model": NANO, "args": args(chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")},
         {"model": QWEN, "args": args(chat_template="/root/fixed.jinja"), "setup": ["curl -o /root/fixed.jinja https://x.example/y"]}),
    case("SM121-142", "warning",
         {"model": NANO, "command": ["vllm", "serve", NANO, "--reasoning-parser-plugin", "nano_v3_reasoning_parser.py"]},
         {"model": NANO, "command": ["bash", "-c", "wget https://x.example/own.py && vllm serve x --reasoning-parser-plugin own.py"]}),
    case("SPEC-009", "warning", {"model": "/weights/model", "image": NIGHTLY},
         {"model": "/weights/qwen3.6-35b-a3b-nvfp4", "image": NIGHTLY},
         {"model": {"path": "/weights/model", "architecture": "GptOssForCausalLM"}, "image": NGC},
         {"model": "stepfun-ai/Step-3.7-Flash-FP8", "image": "vllm-node", "softer": "info"}),
    case("SM121-133", "warning", {"model": QWEN_DENSE, "image": "vllm/vllm-openai:v0.26.0", "args": draft("dflash")},
         {"model": QWEN_DENSE, "image": "vllm/vllm-openai:v0.26.0", "args": draft("dflash"),
          "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
         {"model": QWEN_DENSE, "image": "vllm/vllm-openai:v0.28.0", "args": draft("dflash")}),
    case("SM121-134", "info",
         {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0", "args": args(moe_backend="marlin", attention_backend="FLASHINFER")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": args(moe_backend="marlin", attention_backend="FLASHINFER")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0", "args": args(moe_backend="marlin")}),
    case("SM121-135", "warning", {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0", "args": args(kv_cache_dtype="fp8")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": args(kv_cache_dtype="fp8")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0"}),
    case("SM121-135", "warning",
         {"model": "org/model", "image": "vllm/vllm-openai:v0.26.0",
          "args": args(kv_cache_dtype="fp8_e4m3", attention_backend="flashinfer"),
          "facts": {"weights": {"path": "/model", "config": {"text_config": {"head_dim": 256}}}}},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0", "args": args(kv_cache_dtype="fp8"),
          "facts": {"weights": {"path": "/model", "config": {"hidden_size": 4096, "num_attention_heads": 32}}}}),
    case("IMG-013", "warning", {"image": "vllm-node:latest", "facts": {}}, {"image": "ghcr.io/me/vllm-node:1"},
         {"image": "vllm-node:latest", "softer": "info"}),
    case("SM121-130", "info", {"model": OMNI}, {"model": OMNI, "args": args(limit_mm_per_prompt={"video": 1})},
         {"model": NANO}),
]  # fmt: skip
