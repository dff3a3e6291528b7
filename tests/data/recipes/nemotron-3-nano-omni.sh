# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
export HF_TOKEN=hf_xxx
docker run -d --name nemotron-omni --ipc=host --restart unless-stopped \
--gpus all --shm-size 16g -p 8000:8000 \
-e HF_HOME=/models -v ~/vllm:/models -e HF_TOKEN="$HF_TOKEN" \
--entrypoint /bin/bash \
vllm/vllm-openai:v0.20.0 -c \
"pip install vllm[audio] && vllm serve nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4 \
--served-model-name nemotron-omni --host 0.0.0.0 --port 8000 --trust-remote-code \
--gpu-memory-utilization 0.8 --max-model-len 131072 \
--max-num-seqs 8 --max-num-batched-tokens 32768 --enable-prefix-caching \
--limit-mm-per-prompt '{\"video\":1,\"image\":1,\"audio\":1}' \
--media-io-kwargs '{\"video\":{\"fps\":2,\"num_frames\":256}}' \
--allowed-local-media-path=/ \
--reasoning-parser nemotron_v3 \
--enable-auto-tool-choice --tool-call-parser qwen3_coder"
