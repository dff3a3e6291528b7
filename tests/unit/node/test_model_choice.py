"""Which files of a repository are downloaded, copied, verified and counted."""

from __future__ import annotations

import pytest

from sparkcluster.node.model_choice import chosen, series_of

CODE = ["README.md", "chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json"]
INDEX = "model.safetensors.index.json"


def shards(count: int, stem: str = "model", suffix: str = "safetensors") -> list[str]:
    return [f"{stem}-{place:05}-of-{count:05}.{suffix}" for place in range(1, count + 1)]


# By layout: the files, files of the index, the playbook's choice, omitted files.
LAYOUTS = {
    "gpt-oss-120b": (
        [*CODE, INDEX, *shards(15), *(f"original/{name}" for name in ("config.json", "dtypes.json", *shards(7))),
         "metal/model.bin"],
        shards(15), {}, ["metal/model.bin", "original/config.json", "original/dtypes.json",
                         *(f"original/{name}" for name in shards(7))],
    ),
    "Llama-3.3-70B": (
        [*CODE, INDEX, *shards(30), "original/consolidated.00.pth", "original/params.json", "original/tokenizer.model"],
        shards(30), {}, ["original/consolidated.00.pth", "original/params.json", "original/tokenizer.model"],
    ),
    "Kimi-K2": (
        ["config.json", INDEX, *shards(61), "configuration_deepseek.py", "modeling_deepseek.py", "tiktoken.model",
         "tokenization_kimi.py", "tokenizer_config.json"], shards(61), {}, [],
    ),
    "both formats of Mistral": (
        [*CODE, INDEX, "params.json", "tekken.json", *shards(2), "consolidated.safetensors"], shards(2), {},
        ["consolidated.safetensors"],
    ),
    "both formats of Mistral, of which the engine loads the second": (
        [*CODE, INDEX, "params.json", "tekken.json", *shards(2), "consolidated.safetensors"], [],
        {"format": "mistral"}, shards(2),
    ),
    "old formats beside safetensors": (
        [*CODE, "model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot",
         "onnx/model.onnx", "openvino/openvino_model.bin", "coreml/model.mlpackage/Data/weights/weight.bin"], [], {},
        ["coreml/model.mlpackage/Data/weights/weight.bin", "flax_model.msgpack", "onnx/model.onnx",
         "openvino/openvino_model.bin", "pytorch_model.bin", "rust_model.ot", "tf_model.h5"],
    ),
    "a tensor file that the index does not list": (
        [*CODE, INDEX, *shards(2), "model.safetensors"], shards(2), {}, ["model.safetensors"],
    ),
    "code, adapters and shards in folders": (
        [*CODE, INDEX, "modeling_x.py", "gemma4_patched.py", "speech-lora/adapter_model.safetensors", "2_Dense/config.json",
         "2_Dense/model.safetensors", *(f"transformer/{name}" for name in shards(2))],
        [f"transformer/{name}" for name in shards(2)], {}, [],
    ),
    "quantizations of which the playbook names one": (
        ["README.md", "config.json", "x-Q4_K_M.gguf", "x-Q8_0.gguf"], [],
        {"include": ["*.json", "*Q4_K_M.gguf"]}, ["README.md", "x-Q8_0.gguf"],
    ),
    "a folder that the playbook excludes": (
        [*CODE, "model.safetensors", "demo/a.mp4", "demo/b/c.mp4"], [], {"exclude": ["demo/"]},
        ["demo/a.mp4", "demo/b/c.mp4"],
    ),
    "no layout that is known": ([*CODE, "original/consolidated.00.pth"], [], {}, []),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_files_that_the_engine_reads_are_chosen(layout: str) -> None:
    names, listed, choice, left_out = LAYOUTS[layout]
    assert sorted({*names}.difference(chosen(names, listed, {"include": [], "exclude": [], **choice}))) == left_out


def test_by_default_every_file_is_chosen() -> None:
    """Ray's files are copied like weights."""
    assert chosen(["original/x.pth", "a"], [], None) == ["a", "original/x.pth"]


@pytest.mark.parametrize(
    ("names", "choice", "series"),
    [
        (["config.json", "model-00002-of-00003.safetensors"], {}, shards(3)),
        (["q8/m-00001-of-00002.gguf", "q4/m-00001-of-00002.gguf"], {"include": ["q4/*"]},
         ["q4/m-00001-of-00002.gguf", "q4/m-00002-of-00002.gguf"]),
        (["model.safetensors", "model-1-of-3.safetensors", "data-00001-of-00003.json"], {}, []),
    ],
)  # fmt: skip
def test_a_numbered_file_gives_the_number_of_parts(names: list[str], choice: dict, series: list[str]) -> None:
    assert series_of(names, choice) == series


@pytest.mark.parametrize("other", ["pytorch_model-00001-of-00002.bin", "original/m-00001-of-00002.safetensors"])
def test_missing_parts_of_unserved_weights_make_nothing_incomplete(other: str) -> None:
    choice = {"format": "safetensors"}
    assert series_of(chosen(["config.json", "model.safetensors", other], (), choice), choice) == []
    assert series_of(chosen(["config.json", shards(2)[1], other], (), choice), choice) == shards(2)
