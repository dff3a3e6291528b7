"""Runs in the engine's container: writes small checkpoints of random weights, and starts vLLM on one of them.

python3 fit_engine.py make CONFIGS.json    # {directory: config, …}
python3 fit_engine.py start OPTIONS.json   # arguments of vllm.LLM
"""

import json
import sys
from pathlib import Path


def make(configs):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for directory, written in configs.items():
        torch.manual_seed(7)
        kind = written.pop("model_type")
        config = AutoConfig.for_model(kind, **written)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)


def start(options):
    from vllm import LLM

    LLM(**options)


if __name__ == "__main__":
    {"make": make, "start": start}[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
