"""Sources that several rules cite."""

GUIDE = "https://vlaicu.io/posts/dgx-vllm-playbook/"
TWO_SPARKS = "https://conselara.dev/tags/vllm/ (two Sparks, NGC 26.04)"
MEMORY_NOTES = "https://github.com/Sggin1/DGX-SPARK/tree/main/nvfp4-guide"
FREE_AT_START = "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47"
EUGR = "https://github.com/eugr/spark-vllm-docker"
VLLM_BLOG = "https://vllm.ai/blog/2026-06-01-vllm-dgx-spark"
