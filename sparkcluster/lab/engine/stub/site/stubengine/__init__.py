"""The stub engine: plays vLLM and Ray on the standard library alone, Python 3.8 and later."""

VLLM_VERSION = "0.32.0+stub"
RAY_VERSION = "2.52.0+stub"
