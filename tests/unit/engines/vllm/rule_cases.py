"""Cases of the rules: facts that make each rule fire, and near misses."""

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


MIXED = {
    "path": "/w",
    "config": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}},
}
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
    ),
    case(
        "SM121-003", "warning",
        {"model": QWEN, "image": NGC},
        {"model": QWEN, "image": NGC, "args": args(moe_backend="marlin")},
        {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "softer": "info"},
        # vLLM's blog; NVIDIA's recipe of the Omni model
        {"model": SUPER, "image": "vllm/vllm-openai:cu130-nightly", "softer": "info"},
        {"model": OMNI, "image": "vllm/vllm-openai:v0.20.0", "softer": "info"},
    ),
    case(
        "SM121-003", "warning",
        {"model": "RedHatAI/Qwen3.5-122B-A10B-NVFP4", "image": "vllm/vllm-openai:nightly-aarch64"},
        {"model": "RedHatAI/Qwen3.5-122B-A10B-NVFP4", "image": NIGHTLY, "args": args(moe_backend="marlin")},
    ),
    case(
        "SM121-003", "error",
        {"model": GEMMA_MOE, "image": "vllm/vllm-openai:gemma4-cu130"},
        {"model": GEMMA, "image": "vllm/vllm-openai:gemma4-cu130"},
        # vllm-project/recipes, gemma-4-26B-A4B-it on a GB10
        {"model": "nvidia/Gemma-4-26B-A4B-NVFP4", "image": "eugr/spark-vllm:nightly-20260704"},
    ),
    case(
        "SM121-004", "warning",
        {"model": QWEN, "image": NIGHTLY, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
        {"model": QWEN, "image": NGC, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
    ),
    case(
        "SM121-005", "warning",
        {"model": QWEN, "image": NIGHTLY, "env": {"VLLM_FP8_MOE_BACKEND": "flashinfer_cutlass"}},
        {"model": QWEN, "image": "christopher/spark-vllm-mxfp4", "env": {"VLLM_MXFP4_BACKEND": "marlin"}},
    ),
    case(
        "SM121-006", "error",
        {"model": QWEN, "image": NGC, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "1"}},
        {"model": NANO, "image": NGC_OLD, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "1"}},
    ),
    case(
        "SM121-007", "error",
        {"model": QWEN, "image": NGC, "env": {"VLLM_MARLIN_USE_ATOMIC_ADD": "0"}},
        {"model": QWEN, "image": NGC, "env": {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"}},
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
        "SM121-009", "warning",
        {"model": "Qwen/Qwen3-32B-FP8", "image": NGC, "args": args(attention_backend="FLASHINFER")},
        {"model": CODER, "image": NIGHTLY, "args": args(attention_backend="flashinfer"), "softer": "info"},
        {"model": "Qwen/Qwen3-32B", "image": NGC, "args": args(attention_backend="FLASHINFER")},
    ),
    case(
        "SM121-010", "info",
        {"model": "openai/gpt-oss-120b", "image": NGC},
        {"model": QWEN, "image": NGC},
    ),
    case(
        "SM121-011", "warning",
        {"model": NANO, "image": NIGHTLY, "args": args(enable_chunked_prefill=True)},
        {"model": QWEN, "image": NIGHTLY, "args": args(enable_chunked_prefill=True)},
    ),
    case(
        "SM121-020", "warning",
        {"image": "vllm/vllm-openai:v0.18.0"},
        {"image": "vllm/vllm-openai:v0.18.0-cu130"},
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
    ),
    case(
        "SM121-022", "error",
        {"model": "unsloth/Qwen3.6-27B-NVFP4", "image": "nvcr.io/nvidia/vllm:26.02-py3"},
        {"model": "unsloth/Qwen3.6-27B-NVFP4", "image": "nvcr.io/nvidia/vllm:26.03-py3"},
    ),
    case(
        "SM121-023", "warning",
        {"model": OMNI, "image": NGC},
        {"model": OMNI, "image": "vllm/vllm-openai:v0.20.0"},
    ),
    case(
        "IMG-010", "info",
        {"image": NIGHTLY},
        {"image": f"{NIGHTLY}@sha256:{'0' * 64}"},
    ),
    case(
        "SM121-025", "warning",
        {"image": "vllm/vllm-openai:cu130-nightly"},
        {"image": NIGHTLY},
    ),
    case(
        "SM121-027", "warning",
        {"model": NANO, "image": NGC_OLD, "facts": {"driver": "575.57.08"}},
        {"model": NANO, "image": NGC_OLD, "facts": {"driver": "580.95.05"}, "softer": "info"},
        {"model": NANO, "image": NGC_OLD, "facts": {"driver": "590.44.01"}},
    ),
    case(
        "SM121-028", "error",
        {"image": "nvcr.io/nvidia/vllm:26.02-py3", "facts": {"weights": MIXED}},
        {"image": "nvcr.io/nvidia/vllm:26.03-py3", "facts": {"weights": MIXED}},
    ),
    case(
        "SM121-029", "error",
        {"model": GEMMA_MOE, "image": "vllm/vllm-openai:gemma4-cu130"},
        {"model": GEMMA_MOE, "image": "vllm/vllm-openai:gemma4-cu130",
         "mounts": [{"source": "~/gemma4_patched.py", "target": LOADER}]},
    ),
    case(
        "SM121-030", "info",
        {"image": NGC, "executor": "ray", "nodes": 2},
        {"image": NGC, "executor": "native", "nodes": 2},
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
        # NVIDIA/dgx-spark-playbooks, nvidia/nemotron
        {"model": SUPER, "image": "vllm/vllm-openai:cu130-nightly", "args": args(quantization="fp4"), "softer": "info"},
    ),
    case(
        "SM121-042", "info",
        {"model": QWEN, "image": NGC},
        {"model": QWEN, "image": NIGHTLY},
    ),
    case(
        "SM121-043", "error",
        {"image": NGC, "args": args(load_format="fastsafetensors")},
        {"image": NIGHTLY, "args": args(load_format="fastsafetensors")},
    ),
    case(
        "SM121-032", "error",
        {"model": QWEN, "image": "rocm/vllm:rocm7.14.0_cdna_ubuntu24.04_py3.14_pytorch_2.11.0_vllm_0.23.0"},
        {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0"},
    ),
    case(
        "SM121-044", "info",
        {"image": NIGHTLY, "args": args(load_format="fastsafetensors", gpu_memory_utilization=0.85)},
        {"image": NIGHTLY, "args": args(load_format="fastsafetensors", gpu_memory_utilization=0.7)},
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
    ),
    case(
        "SM121-065", "warning",
        {"model": "meta-llama/Llama-3.3-70B-Instruct", "image": NGC, "args": args(cpu_offload_gb=20)},
        {"model": "meta-llama/Llama-3.1-8B-Instruct", "image": NGC, "args": args(cpu_offload_gb=0)},
    ),
    case(
        "SM121-063", "error",
        {"model": QWEN_DENSE, "args": args(max_model_len=1010000)},
        {"model": QWEN_DENSE, "args": args(max_model_len=262144)},
        {"model": QWEN_DENSE, "args": {"max-model-len": 1010000, "hf-overrides": {"text_config": {}}},
         "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "softer": "info"},
        {"model": NANO, "args": args(max_model_len=1000000), "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
    ),
    case(
        "SM121-064", "warning",
        {"model": CODER},
        {"model": CODER, "args": args(enable_prefix_caching=True)},
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
    ),
    case(
        "SM121-082", "warning",
        {"model": QWEN, "args": args(enable_auto_tool_choice=True, tool_call_parser="hermes")},
        {"model": QWEN, "args": args(enable_auto_tool_choice=True, tool_call_parser="qwen3_xml")},
    ),
    case(
        "SM121-083", "warning",
        {"model": QWEN, "args": args(reasoning_parser="deepseek_r1")},
        {"model": QWEN, "args": args(reasoning_parser="qwen3")},
        {"model": QWEN, "softer": "info"},
    ),
    case(
        "SM121-084", "error",
        {"model": NANO, "args": args(reasoning_parser="nano_v3")},
        {"model": NANO, "args": args(reasoning_parser="nano_v3", reasoning_parser_plugin="/m/p.py")},
    ),
    case(
        "SM121-085", "warning",
        {"model": QWEN, "verify": {"max_tokens": 64}},
        {"model": QWEN, "verify": {"max_tokens": 512}},
    ),
    case(
        "SM121-086", "error",
        {"model": QWEN, "verify": {"tools": True}, "args": args(tool_call_parser="qwen3_xml")},
        {"model": QWEN, "verify": {"tools": True},
         "args": args(enable_auto_tool_choice=True, tool_call_parser="qwen3_xml")},
    ),
    case("SM121-100", "error", dflash(args=args(kv_cache_dtype="fp8")), dflash(),
         {"model": LIGHTNING, "image": "vllm/vllm-openai:v0.27.1", "softer": "warning",
          "args": {"kv-cache-dtype": "fp8", **draft("dflash", attention_backend="FLASHINFER")}}),
    case("SM121-101", "error", dflash(image=NGC), dflash()),
    case("SM121-102", "warning", dflash(env={}), dflash(),
         {**dflash(env={}, **DFLASH_EUGR), "softer": "info"}),
    case("SM121-103", "error", dflash(image="vllm/vllm-openai:v0.26.0", args=args(attention_backend="flash_attn")), dflash(),
         {**dflash(image="vllm/vllm-openai:v0.26.0", args=args(attention_backend="flash_attn"),
                   env={"VLLM_USE_V2_MODEL_RUNNER": "1"}), "softer": "warning"}),
    case("SM121-104", "warning", dflash(model=QWEN), dflash(),
         {**dflash(**DFLASH_EUGR), "softer": "info"}),
    case("SM121-105", "warning", dflash(model="Qwen/Qwen3.6-35B-A3B"), dflash()),
    case("SM121-106", "warning", dflash(model="google/gemma-4-31B-it"),
         dflash(model="google/gemma-4-31B-it", image="ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130")),
    case(
        "SM121-107", "error",
        {"model": "~/vllm/gemma4-coder", "args": draft("mtp", model="/model/assistant", num_speculative_tokens=3)},
        {"model": "~/vllm/gemma4-coder", "args": {
            **draft("mtp", model="/model/assistant", num_speculative_tokens=3), "kv-cache-dtype": "fp8"}},
    ),
    case("SM121-108", "warning", {"model": QWEN, "args": draft("mtp", num_speculative_tokens=8)},
         {"model": QWEN, "args": draft("mtp", num_speculative_tokens=3)}),
    case("SM121-109", "warning", {"model": NANO, "args": draft("mtp", num_speculative_tokens=1)},
         {"model": NANO, "args": draft("ngram", num_speculative_tokens=4)}),
    case("SM121-110", "info", {"args": {**draft("ngram"), "max-num-seqs": 64}},
         {"args": {**draft("ngram"), "max-num-seqs": 4}}),
    case(
        "SM121-111", "error",
        {"model": QWEN, "image": NIGHTLY, "args": {**draft("ngram"), "async-scheduling": True}},
        {"model": QWEN, "image": NIGHTLY, "args": {**draft("mtp"), "async-scheduling": True}},
    ),
    case(
        "SM121-112", "warning",
        {"model": QWEN, "image": NIGHTLY, "args": draft("suffix")},
        {"model": QWEN, "image": NIGHTLY, "args": draft("suffix"), "setup": ["pip install arctic-inference==0.1.1"]},
    ),
    case(
        "SM121-120", "error",
        {"command": ["vllm", "serve", "vllm", "serve", "org/model"]},
        {"command": ["vllm", "serve", "org/model"]},
    ),
    case("SM121-121", "error", {"command": ["org/model", "--port", "8000"]},
         {"command": ["vllm", "serve", "org/model"]}),
    case(
        "SM121-122", "error",
        {"model": GEMMA_MOE, "nodes": 2},
        {"model": GEMMA_MOE, "nodes": 1},
    ),
    case("SM121-123", "error", {"setup": ["export NCCL_SOCKET_IFNAME=enp1s0f1np1"]},
         {"setup": ["export NCCL_DEBUG=INFO"]}),
    case(
        "SM121-124", "info",
        {"facts": {"image": {"reference": "x", "id": "sha256:1", "env_names": ["PATH", "NCCL_SOCKET_IFNAME"]}}},
        {"facts": {"image": {"reference": "x", "id": "sha256:1", "env_names": ["PATH", "NCCL_VERSION"]}}},
    ),
    case("SM121-125", "warning", {"env": {"RAY_memory_monitor_refresh_ms": "250"}},
         {"env": {"RAY_memory_monitor_refresh_ms": "0"}}),
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
         {"model": QWEN, "args": args(gpu_memory_utilization=0.82)}),
    case("SM121-132", "warning", {"model": GPT_OSS, "image": "vllm/vllm-openai:v0.20.0", "args": args(moe_backend="marlin")},
         {"model": GPT_OSS, "image": "vllm/vllm-openai:v0.28.0", "args": args(moe_backend="marlin")},
         # https://conselara.dev/notes/dgx-spark-benchmarks/
         {"model": GPT_OSS, "image": NGC, "args": args(moe_backend="marlin"), "softer": "info"}),
    case("SM121-136", "warning",
         {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0",
          "args": {**draft("mtp", num_speculative_tokens=3), "kv-cache-dtype": "fp8", "attention-backend": "flashinfer"}},
         # vllm-project/recipes, Qwen3.6-35B-A3B on 0.28; eugr/spark-vllm-docker, recipes/qwen3.6-35b-a3b-nvfp4.yaml
         {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": {**draft("mtp"), "kv-cache-dtype": "fp8"}}),
    case("SM121-137", "warning",
         {"model": "Qwen/Qwen3.6-27B-FP8", "image": "vllm/vllm-openai:v0.20.2", "args": draft("mtp", num_speculative_tokens=5)},
         # a reply in the thread, on a GB10
         {"model": "Qwen/Qwen3.6-27B-FP8", "image": "vllm/vllm-openai:v0.20.0", "args": draft("mtp", num_speculative_tokens=3)}),
    case("SM121-138", "error",
         {"model": SUPER, "image": NGC, "args": {**draft("nemotron_h_mtp", num_speculative_tokens=5), "enable-prefix-caching": True}},
         # NVIDIA/dgx-spark-playbooks, nvidia/nemotron; vllm-project/recipes, Nemotron 3.5 Lightning; Qwen3.6 is no Mamba
         {"model": SUPER, "image": "vllm/vllm-openai:cu130-nightly", "args": {**draft("mtp"), "enable-prefix-caching": True}}),
    case("SM121-139", "error",
         {"model": GEMMA, "image": "vllm/vllm-openai:v0.20.0", "args": args(attention_backend="FLASHINFER")},
         {"model": "nvidia/diffusiongemma-26B-A4B-it-NVFP4", "image": "vllm/vllm-openai:gemma",
          "args": args(attention_backend="TRITON_ATTN")},
         {"model": "google/gemma-4-31B-it", "image": EUGR, "args": args(attention_backend="flashinfer"), "softer": "warning"}),
    case("SM121-140", "warning",
         {"model": QWEN, "image": "vllm/vllm-openai:v0.25.0", "nodes": 2, "args": args(moe_backend="flashinfer_b12x")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.25.0", "args": args(moe_backend="flashinfer_b12x")},
         # MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark
         {"model": "deepseek-ai/DeepSeek-V4-Flash", "image": "ghcr.io/anemll/dspark-vllm-gx10:0.2.0", "nodes": 2,
          "args": args(moe_backend="flashinfer_b12x", max_num_seqs=6)},
         {"model": "deepseek-ai/DeepSeek-V4-Flash-0731", "image": "vllm/vllm-openai:nightly", "nodes": 2,
          "args": args(moe_backend="flashinfer_b12x")}),
    case("SM121-145", "warning", {"image": "vllm/vllm-openai:v0.14.0"}, {"image": "vllm/vllm-openai:v0.17.1"},
         {"image": NGC_OLD}, {"image": "nvcr.io/nvidia/vllm:26.02-py3"}, {"image": NIGHTLY}, {"image": "ghcr.io/me/vllm:1"}),
    case("SM121-143", "error",
         {"model": "RedHatAI/gemma-4-31B-it-FP8-block", "image": "vllm/vllm-openai:v0.27.0-aarch64"},
         {"model": "RedHatAI/gemma-4-31B-it-FP8-block", "image": "vllm/vllm-openai:v0.28.0"},
         {"model": "google/gemma-4-E2B-it", "image": "vllm/vllm-openai:v0.27.1",
          "setup": ["pip install transformers==5.8.1"]}),
    case("SM121-144", "warning",
         {"model": LIGHTNING, "image": "vllm/vllm-openai:v0.28.0",
          "args": {"kv-cache-dtype": "fp8_e4m3", **draft("dspark", model="nvidia/Own-DSpark", num_speculative_tokens=7)}},
         {"model": LIGHTNING, "image": "vllm/vllm-openai:v0.29.0",
          "args": {"kv-cache-dtype": "fp8", **draft("dspark", model="nvidia/Own-DSpark")}},
         {"model": LIGHTNING, "image": "vllm/vllm-openai:v0.28.0", "args": {"kv-cache-dtype": "fp8", **draft("mtp")}},
         {"model": LIGHTNING, "image": "vllm-node", "softer": "info",
          "args": {"kv-cache-dtype": "fp8", "speculative-config": {"model": "nvidia/Lightning-DSpark"}}}),
    case("SM121-141", "warning",
         {"model": "poolside/Laguna-S-2.1-NVFP4", "image": "vllm/vllm-openai:nightly-aarch64"},
         {"model": "poolside/Laguna-S-2.1-NVFP4", "image": "vllm-node"}),
    case("SM121-127", "error", {"env": {"CUDA_VISIBLE_DEVICES": "1"}}, {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
         {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}, "softer": "warning"}),
    case("SM121-142", "warning",
         {"model": "Qwen/Qwen3.6-35B-A3B-FP8", "image": "vllm-node", "args": args(chat_template="fixed_chat_template.jinja")},
         {"model": "google/gemma-4-26B-A4B-it", "args": args(chat_template="examples/tool_chat_template_gemma4.jinja")}),
    case("SPEC-009", "warning", {"model": "/weights/model", "image": NIGHTLY},
         {"model": "/weights/qwen3.6-35b-a3b-nvfp4", "image": NIGHTLY},
         {"model": {"path": "/weights/model", "architecture": "GptOssForCausalLM"}, "image": NGC},
         {"model": "stepfun-ai/Step-3.7-Flash-FP8", "image": "vllm-node", "softer": "info"}),
    case("SM121-133", "warning", {"model": QWEN_DENSE, "image": "vllm/vllm-openai:v0.26.0", "args": draft("dflash")},
         {"model": QWEN_DENSE, "image": "vllm/vllm-openai:v0.26.0", "args": draft("dflash"),
          "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}),
    case("SM121-134", "info",
         {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0", "args": args(moe_backend="marlin", attention_backend="FLASHINFER")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": args(moe_backend="marlin", attention_backend="FLASHINFER")}),
    case("SM121-135", "warning", {"model": QWEN, "image": "vllm/vllm-openai:v0.26.0", "args": args(kv_cache_dtype="fp8")},
         {"model": QWEN, "image": "vllm/vllm-openai:v0.28.0", "args": args(kv_cache_dtype="fp8")}),
    case("IMG-013", "warning", {"image": "vllm-node:latest", "facts": {}}, {"image": "ghcr.io/me/vllm-node:1"},
         {"image": "vllm-node:latest", "softer": "info"}),
    case("SM121-130", "info", {"model": OMNI}, {"model": OMNI, "args": args(limit_mm_per_prompt={"video": 1})}),
]  # fmt: skip
