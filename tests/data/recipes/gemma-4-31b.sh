# Command line as printed at https://vlaicu.io/posts/dgx-vllm-playbook/
export HF_TOKEN=hf_xxx
docker run -d --name gemma4-31b --ipc=host --restart unless-stopped \
--gpus all -p 8000:8000 \
-e HF_HOME=/models -v ~/vllm:/models -e HF_TOKEN="$HF_TOKEN" \
vllm/vllm-openai:gemma4-cu130 \
nvidia/Gemma-4-31B-IT-NVFP4 \
--quantization modelopt --tensor-parallel-size 1 \
--gpu-memory-utilization 0.85 --max-model-len 65536 --max-num-seqs 4
