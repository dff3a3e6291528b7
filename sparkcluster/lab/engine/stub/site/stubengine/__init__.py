"""The stub engine: plays vLLM, Ray and SGLang on the standard library alone, Python 3.8 and later."""

VLLM_VERSION = "0.32.0+stub"
RAY_VERSION = "2.52.0+stub"
SGLANG_VERSION = "0.5.23+stub"
