# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
# Laguna XS.2 (coding; up to 7 tokens/step, ~70% acceptance on code)
docker run -d --name laguna --ipc=host --restart unless-stopped \
--gpus all -p 8000:8000 \
-e HF_TOKEN="$HF_TOKEN" -e HF_HOME=/models -e VLLM_USE_DEEP_GEMM=0 -v ~/vllm:/models \
vllm/vllm-openai:nightly \
poolside/Laguna-XS.2 --trust-remote-code \
--enable-auto-tool-choice --tool-call-parser poolside_v1 --reasoning-parser poolside_v1 \
--speculative-config '{"model":"poolside/Laguna-XS.2-speculator.dflash","num_speculative_tokens":7,"method":"dflash"}'
