# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
# 1) download the target into ~/vllm
pip install -U "huggingface_hub[cli]"; export HF_TOKEN=hf_xxx
hf download AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4 \
--local-dir ~/vllm/DFlash-Qwen3.5-27B-Uncensored-NVFP4
# 2) make a PERSISTENT API key — save it; you need the SAME value for every request
export VLLM_API_KEY=$(openssl rand -hex 32); echo "VLLM_API_KEY=$VLLM_API_KEY" >> ~/.bashrc
docker run -d --name vllm-dflash --runtime nvidia --network host --ipc host \
--restart unless-stopped --ulimit memlock=-1:-1 \
-v ~/vllm/DFlash-Qwen3.5-27B-Uncensored-NVFP4:/models/target:ro \
-v ~/vllm/drafter-cache:/models/drafter-cache \
-e MODEL_PATH=/models/target \
-e SERVED_MODEL_NAME=dflash-qwen3.5-27b \
-e DFLASH_DRAFTER=z-lab/Qwen3.5-27B-DFlash \
-e DFLASH_NUM_SPEC_TOKENS=15 \
-e MAX_MODEL_LEN=65536 -e MAX_NUM_SEQS=16 \
-e GPU_MEMORY_UTILIZATION=0.85 -e MAX_NUM_BATCHED_TOKENS=32768 \
-e VLLM_API_KEY="$VLLM_API_KEY" -e HF_TOKEN="$HF_TOKEN" \
ghcr.io/aeon-7/vllm-dflash:latest
