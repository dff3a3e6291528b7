"""Headers of safetensors files, from directories and from a local HTTP server that imitates a hub."""

from __future__ import annotations

import json
import struct
import tracemalloc

import pytest

from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.fit import headers, safetensors
from sparkcluster.fit.safetensors import Tensor

CONFIG = {"model_type": "llama", "num_hidden_layers": 1}


def shard(**tensors):
    """A safetensors file with bfloat16 tensors of the given shapes."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(offset)


def write(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return directory


SHARDED = {
    "config.json": CONFIG,
    "model.safetensors.index.json": {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}},
    "one.safetensors": shard(a=(4, 8)),
    "two.safetensors": shard(b=(16,), c=()),
}
TENSORS = (Tensor("a", "BF16", (4, 8), 64), Tensor("b", "BF16", (16,), 32), Tensor("c", "BF16", (), 2))


def test_a_directory_is_read_through_its_index(tmp_path):
    found = headers.from_path(write(tmp_path / "m", SHARDED))
    assert (found.config, found.tensors) == (CONFIG, TENSORS)


def test_a_config_alone_has_no_tensors(tmp_path):
    path = write(tmp_path / "m", {"config.json": CONFIG}) / "config.json"
    assert headers.from_path(path).tensors is None
    assert headers.from_path(path.parent).tensors is None


def test_duplicate_weights_are_counted_once(tmp_path):
    twice = {name: SHARDED[name] for name in ("config.json", "one.safetensors")}
    twice["consolidated.safetensors"] = SHARDED["one.safetensors"]
    path = write(tmp_path / "m", twice)
    write(path / "original", {"two.safetensors": SHARDED["two.safetensors"]})
    assert headers.from_path(path).tensors == TENSORS[:1]
    named = ["original/a.safetensors", "a.safetensors", "consolidated.safetensors", "a.bin"]
    assert safetensors.of_checkpoint(named) == ["a.safetensors"]
    assert safetensors.of_checkpoint(["consolidated.safetensors"]) == ["consolidated.safetensors"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<Q", 1 << 63), "9,223,372,036,854,775,808 bytes; at most"),
        (struct.pack("<Q", 5000) + b"{}", "is truncated"),
        (shard(a=(4, 8))[:-1], "1 bytes of its tensors are missing"),
        (struct.pack("<Q", 2) + b"[]", "not a mapping"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_file_is_a_single_clear_error_without_using_much_memory(tmp_path, content, message):
    path = write(tmp_path / "m", {"config.json": CONFIG, "model.safetensors": content})
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=message) as caught:
            headers.from_path(path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert str(path / "model.safetensors") in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "BF16", "shape": [-1], "data_offsets": [0, 2]},
        {"dtype": "BF16", "shape": [2**64], "data_offsets": [0, 2]},
        {"dtype": "BF16", "shape": [1], "data_offsets": [2, 0]},
        {"dtype": "BF16", "shape": [1], "data_offsets": [0]},
        {"dtype": "BF16", "data_offsets": [0, 2]},
        [1],
    ],
)
def test_an_invalid_tensor_is_refused(tensor):
    with pytest.raises(UsageError, match="has a tensor 'x'"):
        safetensors.header(bytes(8) + json.dumps({"x": tensor}).encode(), None, "file")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd.safetensors", "x.bin", None])
def test_an_index_lists_only_files_in_its_directory(name):
    with pytest.raises(UsageError, match="not a file in its directory"):
        safetensors.index({"weight_map": {"a": name}}, "index")


def test_only_the_beginning_of_a_file_is_fetched(hub):
    large = shard(**{f"layer.{at}": (1024, 1024) for at in range(4)})
    made = hub({"config.json": CONFIG, "model.safetensors": large})
    found = headers.from_hub("some/model")
    assert (found.config, len(found.tensors)) == (CONFIG, 4)
    assert [ranges for path, ranges, _ in made.requests if path.endswith("model.safetensors")] == ["bytes=0-1048575"]


def test_a_header_longer_than_the_first_request_is_fetched_completely(hub, monkeypatch):
    monkeypatch.setattr(headers, "FIRST_BYTES", 64)
    hub(SHARDED)
    assert headers.from_hub("some/model").tensors == TENSORS


def test_an_adapter_is_read_without_a_config(hub):
    hub({"adapter_model.safetensors": shard(lora=(16, 1024))})
    assert headers.from_hub("some/model", whole=False).tensors[0].shape == (16, 1024)
    with pytest.raises(UsageError, match=r"no config\.json"):
        headers.from_hub("some/model")
    hub({"config.json": CONFIG, "model.safetensors": shard(a=(4, 8)), "adapter_model.safetensors": shard(b=(16,))})
    assert headers.from_hub("some/model", whole=False).tensors == TENSORS[:1]


def test_a_header_truncated_by_the_network_is_not_reported_as_a_broken_file(hub):
    hub({"config.json": CONFIG, "model.safetensors": SHARDED["one.safetensors"]}, cut=60)
    with pytest.raises(SparkclusterError, match="incomplete download") as caught:
        headers.from_hub("some/model")
    assert (type(caught.value), caught.value.hint) == (SparkclusterError, "retry")


@pytest.mark.parametrize(("said", "commit"), [("ab" * 20, "ab" * 20), ("main", None), ("x" * 5000, None)])
def test_an_invalid_commit_is_not_used(hub, said, commit):
    hub(SHARDED, commit=said)
    assert headers.from_hub("some/model").revision == commit


def test_a_hub_without_range_requests_works(hub):
    hub(SHARDED, ranges=False)
    assert headers.from_hub("some/model").tensors == TENSORS


def test_the_token_is_sent_only_to_the_hub(hub, monkeypatch):
    storage = hub(SHARDED)
    made = hub(SHARDED, token="hf-secret", storage=storage.address.replace("127.0.0.1", "localhost"))
    with pytest.raises(SparkclusterError, match="without a token") as caught:
        headers.from_hub("some/model")
    assert "HF_TOKEN" in caught.value.hint
    monkeypatch.setenv("HF_TOKEN", "hf-secret")
    assert headers.from_hub("some/model").tensors == TENSORS
    assert {token for path, _, token in made.requests if "safetensors" in path} >= {"Bearer hf-secret"}
    assert {token for path, _, token in storage.requests if path.startswith("/stored/")} == {None}


def test_a_logged_in_user_needs_no_variable(hub, tmp_path):
    """``hf auth login`` writes this file."""
    hub(SHARDED, token="hf-secret")
    write(tmp_path / "hf", {"token": b"hf-secret\n"})
    assert headers.from_hub("some/model").tensors == TENSORS


@pytest.mark.parametrize(
    ("files", "behaviour", "message"),
    [
        ({}, {}, r"some/model at main has no config\.json"),
        (SHARDED, {"status": 503}, "answered 503"),
        ({**SHARDED, "config.json": b"<html>"}, {}, "is not JSON"),
        ({**SHARDED, "one.safetensors": struct.pack("<Q", 1 << 63)}, {}, "at most"),
        (
            {**SHARDED, "model.safetensors.index.json": {"weight_map": {"a": "../x.safetensors"}}},
            {},
            "not a file in its directory",
        ),
    ],
)
def test_a_problem_of_the_hub_is_a_single_clear_error(hub, files, behaviour, message):
    hub(files, **behaviour)
    with pytest.raises(SparkclusterError, match=message) as caught:
        headers.from_hub("some/model")
    assert caught.value.hint
    assert caught.value.exit_code == (1 if "status" in behaviour else 2)


def test_the_number_of_files_in_an_index_is_limited():
    weights = {str(at): f"{at}.safetensors" for at in range(safetensors.FILES_LIMIT + 1)}
    with pytest.raises(UsageError, match="lists more than 4096 files"):
        safetensors.index({"weight_map": weights}, "index")


def test_the_total_header_size_of_a_model_is_limited(hub, tmp_path, monkeypatch):
    """Each is far below the limit for one; 4096 of them would exhaust memory."""
    lengths = [int.from_bytes(SHARDED[name][:8], "little") for name in ("one.safetensors", "two.safetensors")]
    assert max(lengths) < 200 < sum(lengths)
    monkeypatch.setattr(headers, "LIMIT", 200)
    hub(SHARDED)
    for read, model in (
        (headers.from_path, write(tmp_path / "m", SHARDED)),
        (headers.from_hub, "some/model"),
    ):
        with pytest.raises(UsageError, match="and the files before it have headers of more than 200 bytes"):
            read(model)


def test_a_single_file_may_have_most_of_the_tensors(tmp_path, monkeypatch):
    dense = shard(**{f"layer.{at}": (2,) for at in range(20)})
    monkeypatch.setattr(headers, "LIMIT", len(dense) + 200)
    assert len(headers.from_path(write(tmp_path / "m", {**SHARDED, "two.safetensors": dense})).tensors) == 21


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_a_config_has_a_separate_size_limit(tmp_path, name):
    with pytest.raises(UsageError, match=f"{name} is larger than 16,000,000 bytes"):
        headers.from_path(write(tmp_path / "m", {**SHARDED, name: b" " * 16_000_001}))


def test_a_hub_without_a_scheme_is_a_single_clear_error(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    with pytest.raises(UsageError, match=r"HF_ENDPOINT is hub\.example, which is not an http address"):
        headers.from_hub("some/model")


def test_a_token_with_line_breaks_is_not_sent(hub, monkeypatch):
    made = hub({"config.json": CONFIG})
    monkeypatch.setenv("HF_TOKEN", "two\nlines")
    headers.from_hub("some/model")
    assert {token for _, _, token in made.requests} == {None}


QUANTIZED = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}


def test_the_quantization_file_of_modelopt_is_read_with_config_json(hub, tmp_path):
    files = {**SHARDED, "hf_quant_config.json": QUANTIZED}
    hub(files)
    expected = {**CONFIG, "quantization_config": {"quant_method": "modelopt", **QUANTIZED}}
    assert headers.from_hub("some/model").config == expected
    assert headers.from_path(write(tmp_path / "m", files)).config == expected
    own = {**CONFIG, "quantization_config": {"quant_method": "fp8"}}
    made = hub({**files, "config.json": own})
    assert headers.from_hub("some/model").config == own
    assert not [path for path, *_ in made.requests if "hf_quant" in path]
    assert headers.from_path(write(tmp_path / "o", {**files, "config.json": own})).config == own
