# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
docker run -d --name qwen36-27b --ipc=host --restart unless-stopped \
--gpus all -p 8000:8000 \
-e HF_HOME=/models -v ~/vllm:/models \
vllm/vllm-openai:nightly \
unsloth/Qwen3.6-27B-NVFP4 \
--trust-remote-code --dtype bfloat16 \
--gpu-memory-utilization 0.85 --max-model-len 65536 \
--max-num-seqs 4 --reasoning-parser qwen3
