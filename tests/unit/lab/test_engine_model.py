"""The tiny model: made without torch, the same bytes everywhere, readable by anything that reads checkpoints."""

import hashlib
import json
import math
import struct
from pathlib import Path

from sparkcluster.lab.engine import model


def header(content: bytes) -> tuple[dict[str, dict[str, object]], int]:
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), 8 + length


def test_the_bytes_never_change() -> None:
    # A greedy answer compared across machines is worth nothing when their weights differ.
    weights = model.tiny_model_files()["model.safetensors"]
    assert hashlib.sha256(weights).hexdigest() == ("6cefb2a619e376df08d81083da0da7ab31768d36cf9c698f73e2ced05db55ec1")


def test_the_safetensors_file_is_well_formed() -> None:
    content = model.tiny_model_files()["model.safetensors"]
    tensors, data = header(content)
    assert data % 8 == 0
    assert tensors.pop("__metadata__") == {"format": "pt"}
    end = 0
    for tensor in tensors.values():
        start, stop = tensor["data_offsets"]  # type: ignore[misc]
        assert start == end
        assert stop - start == 2 * math.prod(tensor["shape"])  # type: ignore[arg-type]
        assert tensor["dtype"] == "BF16"
        end = stop
    assert data + end == len(content)


def test_tensor_parallel_two_and_four_divide_it() -> None:
    config = json.loads(model.tiny_model_files()["config.json"])
    tensors, _ = header(model.tiny_model_files()["model.safetensors"])
    for parts in (2, 4):
        for size in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size"):
            assert config[size] % parts == 0
    assert tensors["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    assert tensors["lm_head.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]


def test_every_byte_can_be_read_and_only_words_are_answered() -> None:
    files = model.tiny_model_files()
    tokenizer = json.loads(files["tokenizer.json"])
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len([token for token in vocabulary if len(token) == 1]) == 256
    tensors, data = header(files["model.safetensors"])
    start, stop = tensors["lm_head.weight"]["data_offsets"]  # type: ignore[misc]
    rows = files["model.safetensors"][data + start : data + stop]
    width = 2 * model.HIDDEN
    answerable = {token for token, number in vocabulary.items() if any(rows[number * width : (number + 1) * width])}
    assert answerable == {f"\u0120{word}" for word in model.WORDS}


def test_writing_again_changes_nothing_and_mends_what_is_broken(tmp_path: Path) -> None:
    place = model.write_tiny_model(tmp_path / "models" / "tiny")
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    assert set(before) == set(model.tiny_model_files())
    (place / "config.json").write_text("{}")
    model.write_tiny_model(place)
    assert json.loads((place / "config.json").read_text())["model_type"] == "llama"
    after = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"config.json"}
