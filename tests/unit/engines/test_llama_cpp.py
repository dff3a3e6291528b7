"""llama.cpp: one GGUF is chosen, checked by its header, and served by one command."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster import engines
from sparkcluster.engines import phase
from sparkcluster.engines.base import Rank
from sparkcluster.engines.llama_cpp import node
from sparkcluster.engines.signature import plain
from sparkcluster.errors import PlanError, UsageError
from sparkcluster.fit import shipped
from sparkcluster.fit.headers import from_path
from sparkcluster.fit.known import known
from sparkcluster.fit.source import Source, spark
from sparkcluster.importer import convert
from sparkcluster.lab.engine.tiny_gguf import tiny_gguf
from sparkcluster.linting import lint
from sparkcluster.node import gguf, prepare, storage
from sparkcluster.node.machine import Machine
from sparkcluster.runtime import secrets
from sparkcluster.spec.check_playbook import check
from sparkcluster.spec.document import parse
from sparkcluster.spec.load import load
from sparkcluster.spec.playbook import Playbook
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group

ROOT = Path(__file__).parents[3]
ENGINE = engines.engine("llama.cpp")
FILE = "Q4/m-Q4_K_M-00001-of-00003.gguf"


def playbook(**changes) -> Playbook:
    model = {"id": "org/m-GGUF", "file": FILE}
    return Playbook.model_validate({"name": "m", "engine": "llama.cpp", "model": model, "image": "i:1", **changes})


def llama(**changes) -> Source:
    """A model like Llama 3.1 8B: 32 layers, 8 heads of 128 for keys and values."""
    keys = {
        "block_count": 32, "embedding_length": 4096, "feed_forward_length": 14336, "context_length": 131072,
        "attention.head_count": 32, "attention.head_count_kv": 8,
    }  # fmt: skip
    config = {f"llama.{key}": value for key, value in {**keys, **changes}.items()}
    config |= {"general.architecture": "llama", "tokenizer.ggml.tokens": 128256}
    return Source("m", config, size_bytes=5_000_000_000)


def test_the_command_has_the_file_the_api_and_the_arguments():
    args = {"ctx-size": 8192, "flash-attn": True, "jinja": True, "ui": False, "tensor-split": [1, 2]}
    args |= {"samplers": ["top_k", "temperature"], "swa-full": False, "no-host": True}
    group = Group.__new__(Group)
    object.__setattr__(group, "api_host", "10.0.0.1")
    object.__setattr__(group, "api_port", 8000)
    rank = Rank(playbook(args=args, served_name="m", aliases=["n"]), group, None, 1, "org/m-GGUF", "none", None)
    assert ENGINE.serve(rank) == [
        "llama-server", "--model", f"/sparkcluster/model/{FILE}", "--alias", "m,n", "--host", "10.0.0.1",
        "--port", "8000", "--metrics", "--offline", "--ctx-size", "8192", "--flash-attn", "on", "--jinja", "--no-ui",
        "--tensor-split", "1,2", "--samplers", "top_k;temperature", "--no-host",
    ]  # fmt: skip


def test_a_process_uses_the_file_and_a_container_the_link(tmp_path):
    words = ["llama-server", "--model", f"/sparkcluster/model/{FILE}", "--alias", "m"]
    document = {"engine": words, "runtime": "process", "model": {"path": str(tmp_path)}}
    assert prepare.located(document, {}) == [*words[:2], f"{tmp_path}/{FILE}", *words[3:]]
    assert prepare.located({**document, "runtime": "docker"}, {}) == words


def linted(text: str) -> list[str]:
    document = parse(text, "m.yaml")
    return [f"{each}; {each.hint}" for each in check(playbook(**document.data), document)]


def test_an_argument_is_refused_only_if_another_key_sets_the_same():
    assert not linted("args: {mmproj: /sparkcluster/model/mmproj-m.gguf, no-host: true, no-mmproj: true}")
    problems = linted("args: {mmproj-url: u, host: 0.0.0.0, no-model: true, nkvo: true}")
    assert len(problems) == 4
    assert "kv-offload: false" in problems[3]


def test_arguments_of_another_engine_are_errors_with_the_replacement(tmp_path):
    path = tmp_path / "m.yaml"
    args = (
        "{max-model-len: 8192, gpu-memory-utilization: 0.8, max-num-seqs: 4, served-model-name: n, threads: 2, new: 1}"
    )
    text = "name: m\nengine: llama.cpp\nimage: i:1\nmodel: {id: org/m, file: m.gguf}\n"
    path.write_text(f"{text}args: {args}\n")
    found = {each.seen: each.remedy[0] for each in lint([path]).findings if each.code == "SPEC-013"}
    assert found == {
        "args.max-model-len": "write ctx-size", "args.max-num-seqs": "write parallel",
        "args.gpu-memory-utilization": "remove it: llama.cpp has none", "args.served-model-name": "write served_name",
    }  # fmt: skip
    path.write_text(f"{text}tensor_parallel: 2\n")
    (problem,) = lint([path]).findings
    assert "llama.cpp serves on one Spark: its rpc-server has no authentication" in problem.summary


def test_a_key_with_a_comma_is_refused(tmp_path, monkeypatch):
    """llama-server would read it as two keys, each of which opens the API."""
    (tmp_path / "m.yaml").write_text("name: m\nengine: llama.cpp\nimage: i:1\nmodel: {id: org/m, file: m.gguf}\n")
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("cluster: m\nnodes: [{host: spark}]\nplaybook: ./m.yaml\napi: {key: {env: LAB_KEY}}\n")
    monkeypatch.setenv("LAB_KEY", "a,b")
    with pytest.raises(UsageError, match="the API key has ','"):
        secrets.api_key(load(inventory))


def test_only_the_first_part_of_a_split_file_is_accepted():
    (problem,) = linted("model:\n  id: org/m\n  file: m-00002-of-00003.gguf")
    assert problem.startswith("m.yaml:3:")
    assert "m-00001-of-00003.gguf" in problem


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("version: 0.5.0-dev (build 11347, commit 5fc4f3c8c)", "11347"),
        ("version: 5478 (f5cd27b7)", "5478"),
        ("version: 0.5.0-dev (build 1, commit 5fc4f3c8c)", "11549"),  # of a shallow clone
    ],
)
def test_the_version_is_the_number_of_the_build(tmp_path, printed, version):
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    program.chmod(0o755)
    code = f"import os, re, shutil, sys\n{node.INSPECTION}\nprint(ENGINE['version'])"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LLAMA_CPP_VERSION": "11549"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == version


def test_two_sparks_are_refused_with_a_reason():
    with pytest.raises(PlanError, match="no authentication"):
        parallel.executor(playbook(), None, nodes=2, bring_ray=True)
    with pytest.raises(UsageError, match="one Spark"):
        ENGINE.forecast(playbook(), llama(), spark(), nodes=2)


def test_all_parts_of_the_file_are_chosen_and_nothing_else():
    assert playbook().choice == {"include": ["Q4/m-Q4_K_M-*-of-00003.gguf"], "exclude": [], "format": "gguf"}
    assert gguf.series(FILE) == [f"Q4/m-Q4_K_M-0000{part}-of-00003.gguf" for part in (1, 2, 3)]


def test_the_header_describes_the_model_and_the_length_of_the_file(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_gguf())
    config, size = gguf.read(io.BytesIO(path.read_bytes()))
    assert size == path.stat().st_size
    assert (config["llama.block_count"], config["tokenizer.ggml.tokens"]) == (2, 330)
    assert from_path(path).weights_bytes == from_path(tmp_path, "m.gguf").weights_bytes == size


@pytest.mark.parametrize("cut", [0, 3, 20, 900, 6000])
def test_a_truncated_or_invalid_header_is_not_a_model(tmp_path, cut):
    (tmp_path / "m.gguf").write_bytes(tiny_gguf()[:cut])
    with pytest.raises(UsageError, match=r"m\.gguf"):
        from_path(tmp_path, "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\xff" * 64)
    with pytest.raises(UsageError, match=r"m\.gguf"):
        from_path(tmp_path, "m.gguf")


def header(keys: bytes, count: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, count) + keys


def test_an_oversized_header_is_not_cached():
    """Each list alone is accepted; together they exceed the limit of a node's answer."""
    keys = [struct.pack("<Q4sIIQ", 4, b"%04d" % at, 9, 0, 1024) + bytes(1024) for at in range(1024)]
    config, _ = gguf.read(io.BytesIO(header(b"".join(keys), 1024)))
    assert sum(len(each) for each in config.values() if isinstance(each, list)) == 65536
    with pytest.raises(ValueError, match="1025 keys"):
        gguf.read(io.BytesIO(header(b"", 1025)))


@pytest.mark.parametrize("layers", [0, 4097, 2**63])
def test_an_impossible_number_of_layers_is_refused(layers):
    with pytest.raises(UsageError, match="number of layers"):
        ENGINE.forecast(playbook(), llama(block_count=layers), spark())


@pytest.mark.parametrize(
    ("size", "file", "missing", "truncated"),
    [
        (None, "m.gguf", [], []),
        (-1, "m.gguf", [], ["m.gguf"]),
        (100, "m.gguf", [], ["m.gguf"]),
        (None, "other.gguf", ["other.gguf"], []),
        (None, "m-00001-of-00002.gguf", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], []),
    ],
)
def test_a_node_reports_a_complete_file_without_config_or_tokenizer(tmp_path, size, file, missing, truncated):
    data = tiny_gguf()
    (tmp_path / "m.gguf").write_bytes(data[:size])
    model = {"path": str(tmp_path), "file": file, "choice": {"include": ["*"], "format": "gguf"}}
    found = storage.weights(Machine(), model, str(tmp_path))
    assert (found["missing"], found["truncated"]) == (missing, truncated)
    if not missing and size is None:
        assert found["config"]["general.architecture"] == "llama"


@pytest.mark.parametrize(
    ("args", "keys", "cache"),
    [
        # 32 layers, keys and values, 8 heads of 128 numbers of two bytes: 131,072 bytes of a token
        ({"ctx-size": 8192}, {}, 8192 * 131072),
        ({"ctx-size": 8192, "cache-type-k": "q8_0", "cache-type-v": "q8_0"}, {}, 8192 * 65536 * 34 // 32),
        # every second layer remembers 4 windows of 128 and a batch of 512
        (
            {"ctx-size": 8192},
            {"attention.sliding_window": 128, "attention.sliding_window_pattern": 2},
            (8192 + 1024) * 65536,
        ),
        # every fourth layer has attention
        ({"ctx-size": 8192}, {"full_attention_interval": 4}, 8192 * 32768),
        # two layers of 32 have heads
        ({"ctx-size": 8192}, {"attention.head_count_kv": [8, 8, *[0] * 30]}, 8192 * 8192),
    ],
)
def test_the_kv_cache_covers_all_concurrent_requests(args, keys, cache):
    found = ENGINE.forecast(playbook(args=args), llama(**keys), spark())
    assert found["kv_cache"]["bytes"] == cache
    assert found["memory"]["weights_bytes"] == 5_000_000_000
    assert found["fits"]


def test_the_kv_cache_matches_a_servers_log():
    """gpt-oss 120B, with and without a window (https://github.com/ollama/ollama/issues/16480)."""
    served = playbook(args={"ctx-size": 262144, "parallel": 2, "ubatch-size": 1024})
    found = ENGINE.forecast(served, shipped.recorded("ggml-org/gpt-oss-120b-GGUF"), spark())
    assert found["kv_cache"]["bytes"] == (9216 + 90) << 20
    assert found["context"] == 131072


def test_concurrent_requests_may_together_exceed_the_trained_context():
    """llama-server's limit for each request."""
    found = ENGINE.forecast(playbook(args={"ctx-size": 262144}), llama(), spark())
    assert (found["fits"], found["context"], found["kv_cache"]["tokens"]) == (True, 131072, 262144)


@pytest.mark.parametrize(
    ("args", "keys", "grown", "part"),
    [
        # a copy of 640 tokens in 16 layers per 8,192 tokens, and another per each of 4 requests
        ({}, {"attention.sliding_window": 128}, 20 * 640 * 65536, "engine_host_bytes"),
        ({"ctx-checkpoints": 0}, {"attention.sliding_window": 128}, 0, "engine_host_bytes"),
        # 32 heads' scores of 512 tokens
        ({"flash-attn": False}, {}, 4 * 32 * 512 * 131072, "runtime_bytes"),
    ],
)
def test_buffers_that_grow_with_the_context_are_counted(args, keys, grown, part):
    keys |= {"attention.sliding_window_pattern": 2}
    plain_one = ENGINE.forecast(playbook(args={"ctx-size": 131072}), llama(), spark())
    found = ENGINE.forecast(playbook(args={"ctx-size": 131072, **args}), llama(**keys), spark())
    assert found["memory"][part] - plain_one["memory"][part] == grown


def test_a_file_without_context_limit_or_with_too_little_memory_does_not_fit():
    assert ENGINE.forecast(playbook(args={"ctx-size": 8192, "cache-ram": -1}), llama(), spark())["fits"] is None
    args = {"ctx-size": 8192, "cache-type-v": "q8_0", "flash-attn": False}
    assert ENGINE.forecast(playbook(args=args), llama(), spark())["problems"] == [
        "cache-type-v q8_0 needs flash-attn: true"
    ]


def test_a_staged_projector_is_counted(tmp_path):
    (tmp_path / "m.gguf").write_bytes(tiny_gguf())
    (tmp_path / "mmproj-m.gguf").write_bytes(bytes(1_000_000))
    model = {"path": str(tmp_path), "file": "m.gguf"}
    args = {"mmproj": "/sparkcluster/model/mmproj-m.gguf"}
    plain, listed = (playbook(model={**model, **more}, args=args) for more in ({}, {"files": ["mmproj-m.gguf"]}))
    found = [
        ENGINE.forecast(each, source := known(each.model), spark(), beside=source.beside) for each in (plain, listed)
    ]
    assert found[1]["memory"]["weights_bytes"] - found[0]["memory"]["weights_bytes"] == 1_000_000
    assert [len(each["not_counted"]) for each in found] == [1, 0]


def test_a_model_that_does_not_fit_names_the_setting_to_change():
    model = llama(context_length=2_000_000)
    found = ENGINE.forecast(playbook(args={"ctx-size": 1_000_000}), model, spark())
    assert found["fits"] is False
    assert any("cache-type-k" in advice for advice in found["advice"])
    shorter = next(int(advice.split()[-1]) for advice in found["advice"] if advice.startswith("set ctx-size"))
    assert ENGINE.forecast(playbook(args={"ctx-size": shorter}), model, spark())["fits"] is not False


def test_requests_share_the_context():
    assert ENGINE.api_features(playbook(args={"ctx-size": 8192, "parallel": 4})).context == 2048
    assert ENGINE.api_features(playbook(args={"ctx-size": 8192, "parallel": 4, "kv-unified": True})).context == 8192
    assert ENGINE.api_features(playbook(args={"ctx-size": 8192})).context == 8192


def test_a_request_is_limited_to_the_trained_context_of_a_recorded_model():
    model = {"id": "ggml-org/gpt-oss-120b-GGUF", "file": "m.gguf"}
    assert ENGINE.api_features(playbook(model=model, args={"ctx-size": 262144})).context == 131072


LOG = """
0.00.001.848 I srv          init: build_info: b0-unknown
0.00.003.708 I srv          init: loading model
0.00.010.823 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 512, kv_unified = 'false'
0.00.012.263 I srv          init: listening on http://127.0.0.1:8099
""".strip().splitlines()


def test_llama_cpp_logs_show_progress():
    """Measured with b11549; older builds log that the server is listening."""
    found = [phase.phase(line, ENGINE) for line in LOG]
    assert [each.kind for each in found] == ["engine", "weights", "kv-cache", "api-ready"]
    assert phase.phase("main: server is listening on http://0.0.0.0:8008 - starting the main loop", ENGINE) == found[3]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("E llama_model_load: tensor 'b' data is not within the file bounds, model is corrupted or incomplete",
         "shorter than its header"),
        ("E gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'", "not a GGUF"),
        ("E gguf_init_from_file: failed to open GGUF file '/m/n.gguf' (No such file or directory)", "/m/n.gguf"),
        ("E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8097", "8097"),
        ("error: invalid argument: --no-such", "--no-such"),
        ("E llama_model_load: error loading model: error loading model vocabulary: no merges", "vocabulary: no merges"),
    ],
)  # fmt: skip
def test_llama_cpp_errors_have_a_cause(line, said):
    """Measured with b11549."""
    lines = plain([line, "E srv          init: exiting due to model loading error"])
    cause = next(filter(None, (signature.match(lines) for signature in ENGINE.signatures)))
    assert said in cause.summary


def test_a_command_becomes_a_playbook_with_its_file():
    """As owners type it, with the file that ``-hf`` does not name."""
    text = (
        "llama-server -hf ggml-org/gpt-oss-120b-GGUF -hff m.gguf --port 9931 -c 131072 -ngl 99 --jinja -fa on --no-mmap"
    )
    made = convert(text, "x.sh").document
    assert (made["engine"], made["model"]) == ("llama.cpp", {"id": "ggml-org/gpt-oss-120b-GGUF", "file": "m.gguf"})
    args = {"ctx-size": 131072, "n-gpu-layers": 99, "jinja": True, "flash-attn": True, "load-mode": "none"}
    assert made["args"] == args
    assert "--port" not in convert(text, "x.sh").text
    image = "ghcr.io/ggml-org/llama.cpp:server-cuda"
    made = convert(f"docker run -v ~/m:/m {image} -m /m/x/a.gguf -a one,two --api-key secret-of-mine", "x.sh")
    assert "python3" in made.text
    assert made.document["model"] == {"path": "~/m/x", "file": "a.gguf"}
    assert (made.document["served_name"], made.document["aliases"]) == ("one", ["two"])
    assert "secret-of-mine" not in made.text


def test_short_options_become_supported_arguments():
    text = "llama-server -m ~/m/a.gguf -mm ~/m/mmproj-a.gguf -sm none -kvu -cram 0 -nkvo -nocb -tb 8 --mlock --no-host"
    made = convert(text, "x.sh").document
    assert made["model"]["files"] == ["mmproj-a.gguf"]
    assert made["args"] == {
        "mmproj": "/sparkcluster/model/mmproj-a.gguf", "split-mode": "none", "kv-unified": True, "cache-ram": 0,
        "kv-offload": False, "cont-batching": False, "threads-batch": 8, "load-mode": "mlock", "no-host": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "kind"),
    [({}, "chat"), ({"embeddings": True}, "embeddings"), ({"reranking": True, "embeddings": True}, "rerank")],
)
def test_a_model_is_verified_according_to_its_arguments(args, kind):
    assert playbook(args=args).verifying.kind == kind
