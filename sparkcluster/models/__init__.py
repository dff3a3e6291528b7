"""What a model needs: its config.json and tensors as data, its KV cache as vLLM keeps it, and whether it fits."""
