# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
# 1. Download the community NVFP4 checkpoint — it bundles gemma4_patched.py,
# which fixes vLLM's expert scale-key mapping bug (#38912). The official
# nvidia/Gemma-4-26B-A4B-NVFP4 does NOT ship this patch.
hf download bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4 \
--local-dir ~/vllm/gemma4-26b-a4b-nvfp4
# 2. Serve, mounting the patched loader OVER the image's gemma4.py
docker run -d --name gemma4-26b --ipc=host --restart unless-stopped \
--gpus all -p 8000:8000 \
-v ~/vllm/gemma4-26b-a4b-nvfp4:/models/gemma4 \
-v ~/vllm/gemma4-26b-a4b-nvfp4/gemma4_patched.py:/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py \
vllm/vllm-openai:gemma4-cu130 \
--model /models/gemma4 --served-model-name gemma-4-26b \
--quantization modelopt --moe-backend marlin --trust-remote-code \
--kv-cache-dtype fp8 --max-model-len 65536 \
--gpu-memory-utilization 0.85 --max-num-seqs 4 \
--reasoning-parser gemma4 \
--enable-auto-tool-choice --tool-call-parser pythonic
