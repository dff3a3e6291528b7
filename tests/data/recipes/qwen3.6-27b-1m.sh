# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
docker run -d --name qwen36-27b --ipc=host --restart unless-stopped \
--gpus all -p 8000:8000 \
-e VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 -e HF_HOME=/models -v ~/vllm:/models \
vllm/vllm-openai:nightly \
unsloth/Qwen3.6-27B-NVFP4 \
--trust-remote-code --dtype bfloat16 \
--gpu-memory-utilization 0.85 --max-model-len 1010000 \
--max-num-seqs 4 --reasoning-parser qwen3 \
--hf-overrides '{"text_config":{"rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"rope_type":"yarn","rope_theta":10000000,"partial_rotary_factor":0.25,"factor":4.0,"original_max_position_embeddings":262144}}}'
