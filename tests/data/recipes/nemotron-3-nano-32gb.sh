# Command line as printed at https://github.com/Sggin1/DGX-SPARK/tree/main/nvfp4-guide
docker run -d --runtime=nvidia \
--name nemotron-nvfp4 \
-v /path/to/hf-cache:/root/.cache/huggingface \
-p 8000:8000 \
-e VLLM_USE_FLASHINFER_MOE_FP4=0 \
-e VLLM_NVFP4_GEMM_BACKEND=marlin \
-e VLLM_TEST_FORCE_FP8_MARLIN=1 \
vllm-node:latest \
python3 -m vllm.entrypoints.openai.api_server \
--host 0.0.0.0 --port 8000 \
--model nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 \
--enforce-eager \
--max-num-seqs 1 \
--max-model-len 8192 \
--gpu-memory-utilization 0.2 \
--kv-cache-dtype fp8 \
--trust-remote-code
