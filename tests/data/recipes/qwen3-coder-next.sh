# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
docker run -d --name qwen3-coder-next --ipc=host --restart unless-stopped \
--gpus all --shm-size 32gb -p 8000:8000 \
-e HF_HOME=/models -v ~/vllm:/models \
vllm/vllm-openai:cu130-nightly \
Qwen/Qwen3-Coder-Next-FP8 \
--served-model-name qwen3-coder-next --host 0.0.0.0 --port 8000 \
--attention-backend flashinfer \
--enable-prefix-caching \
--enable-auto-tool-choice --tool-call-parser qwen3_coder \
--gpu-memory-utilization 0.85 --max-model-len 170000 \
--max-num-seqs 4 --max-num-batched-tokens 32768
