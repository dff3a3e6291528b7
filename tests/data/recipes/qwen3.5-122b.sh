# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
docker run -d --name qwen35-122b --ipc=host --restart unless-stopped \
--gpus all --shm-size 32gb -p 8000:8000 \
-e HF_HOME=/models -v ~/vllm:/models \
vllm/vllm-openai:cu130-nightly \
RedHatAI/Qwen3.5-122B-A10B-NVFP4 \
--served-model-name qwen3.5-122b --host 0.0.0.0 --port 8000 \
--trust-remote-code --moe-backend marlin \
--reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder \
--enable-prefix-caching \
--gpu-memory-utilization 0.85 --max-model-len 65536 \
--max-num-seqs 4 --max-num-batched-tokens 8192
