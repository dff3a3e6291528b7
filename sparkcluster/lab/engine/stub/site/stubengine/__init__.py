"""The stub engine: imitates vLLM, Ray and SGLang with only the standard library, on Python 3.8 and later."""

VLLM_VERSION = "0.32.0+stub"
RAY_VERSION = "2.52.0+stub"
SGLANG_VERSION = "0.5.23+stub"
