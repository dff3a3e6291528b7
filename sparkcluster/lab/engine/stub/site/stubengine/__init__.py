"""The stub engine: plays vLLM and Ray on the standard library alone, Python 3.8 and later."""

import os

VLLM_VERSION = os.environ.get("STUB_VLLM_VERSION") or "0.32.0+stub"
RAY_VERSION = os.environ.get("STUB_RAY_VERSION") or "2.52.0+stub"
