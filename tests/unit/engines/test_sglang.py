"""SGLang: its command on one Spark and on several, the key file, its memory, and its log."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparkcluster import checks, engines, plan, topology
from sparkcluster.checks.check import Context
from sparkcluster.engines import phase
from sparkcluster.engines.sglang import node
from sparkcluster.engines.signature import plain
from sparkcluster.errors import PlanError, UsageError
from sparkcluster.facts.network import Listener
from sparkcluster.facts.running import Observation, RankSeen, Running
from sparkcluster.facts.weights import WeightFile, Weights
from sparkcluster.fit import shipped
from sparkcluster.fit.source import Source, spark
from sparkcluster.importer import convert
from sparkcluster.linting import lint
from sparkcluster.node import engine_api
from sparkcluster.plan.image import without_ray
from sparkcluster.spec.check_playbook import check
from sparkcluster.spec.document import parse
from sparkcluster.spec.playbook import Playbook

ENGINE = engines.engine("sglang")


def playbook(**changes) -> Playbook:
    model = {"id": "Qwen/Qwen3-8B"}
    return Playbook.model_validate({"name": "m", "engine": "sglang", "model": model, "image": "i:1", **changes})


SERVED = {"engine": "sglang", "image": "lmsysorg/sglang:latest-cu130"}


def build(world, names="alpha beta", *, key=None, **changes):
    made = world(
        names,
        playbook={**SERVED, **changes},
        **({"api": {"host": "192.168.86.11", "key": {"env": key}}} if key else {}),
    )
    return plan.build(made.spec, made.facts, topology.build(made.spec, made.facts), release=1)


def engine_of(made, name: str) -> list[str]:
    return made.nodes[name].containers[0].launcher["engine"]


def test_every_rank_has_the_same_command_except_for_its_number_and_listening_address(world):
    args = {"mem-fraction-static": 0.7, "trust-remote-code": True, "disable-radix-cache": False}
    args |= {"lora-strict-loading": False, "cuda-graph-bs-decode": [1, 2], "default-chat-template-kwargs": {"a": 1}}
    made = build(world, args=args, served_name="q", aliases=["r"], ready_timeout_s=1800, key="K")
    head, worker = engine_of(made, "alpha"), engine_of(made, "beta")
    assert head == [
        "python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B", "--served-model-name", "q",
        "--host", "192.168.86.11", "--port", "8000", "--tp-size", "2", "--pp-size", "1",
        "--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "192.168.177.11:29501",
        "--enable-metrics", "--watchdog-timeout", "1800", "--mem-fraction-static", "0.7", "--trust-remote-code",
        "--no-lora-strict-loading", "--cuda-graph-bs-decode", "1", "2", "--default-chat-template-kwargs", '{"a":1}',
    ]  # fmt: skip
    swapped = {"192.168.86.11": "127.0.0.1"}
    expected = [swapped.get(word, word) for word in head]
    expected[expected.index("--node-rank") + 1] = "1"
    assert worker == expected


def test_the_queue_of_the_ranks_uses_the_interconnect_and_time_limits_are_at_least_the_playbooks(world):
    made = build(world, ready_timeout_s=1800)
    assert {name: each.env["SGLANG_HOST_IP"] for name, each in made.nodes.items()} == {
        "alpha": "192.168.177.11",
        "beta": "192.168.177.12",
    }
    assert made.nodes["alpha"].env["SGLANG_WARMUP_TIMEOUT"] == "1800"
    alone = engine_of(build(world, "alpha", ready_timeout_s=100), "alpha")
    assert alone[alone.index("--watchdog-timeout") + 1] == "300"
    assert "--nnodes" not in alone


def test_ray_is_neither_copied_nor_mentioned(world):
    made = world(playbook=SERVED)
    listener = Listener(address="0.0.0.0", port=29501)
    facts = {}
    for name, each in made.facts.items():
        inside = each.image.inside.model_copy(update={"ray_version": None})
        image = each.image.model_copy(update={"inside": inside})
        facts[name] = each.model_copy(update={"image": image, "listeners": (listener,)})
    built = topology.build(made.spec, facts)
    assert not without_ray(made.spec, facts, built)
    found = checks.run_stage(Context(made.spec, facts, built), ("facts",))
    assert not [each for each in found if each.code == "IMG-006"]
    (port,) = [each for each in found if each.code == "HOST-004"]
    assert "executor" not in str(port.remedy)


def test_the_key_is_in_a_private_file_and_not_in_command_or_environment(world, tmp_path):
    made = build(world, key="K")
    assert made.nodes["alpha"].secrets == ("SGLANG_API_KEY",)
    assert not made.nodes["beta"].secrets
    env = {"SGLANG_API_KEY": "123:#{", "PATH": "/bin"}
    words = node.command(["python3", "-m", "sglang.launch_server"], env, str(tmp_path))
    path = Path(words[-1])
    assert words[-2:-1] == ["--config"]
    assert path.suffix == ".yaml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml.safe_load(path.read_text()) == {"api-key": "123:#{"}
    assert env == {"PATH": "/bin"}
    assert node.command(["python3"], {}, str(tmp_path)) == ["python3"]
    with pytest.raises(ValueError, match="dash"):
        node.command(["python3"], {"SGLANG_API_KEY": "-k"}, str(tmp_path))


def test_a_custom_command_with_a_key_is_refused_since_the_api_would_be_open(world):
    with pytest.raises(PlanError, match="no place"):
        build(world, key="K", command=["python3", "-m", "sglang.launch_server"])


def linted(text: str) -> list[str]:
    document = parse(text, "m.yaml")
    return [f"{each}; {each.hint}" for each in check(playbook(**document.data), document)]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("tp: 2", "tensor_parallel"),
        ("tensor-parallel-size: 2", "tensor_parallel"),
        ("host: 0.0.0.0", "api.host"),
        ("port: 30000", "api.port"),
        ("api-key: x", "api.key"),
        ("dist-init-addr: a", "groups"),
        ("config: f.yaml", "args"),
        ("data-parallel-size: 2", "dp-size"),
        ("context: 4096", "context-length"),
    ],
)
def test_an_argument_set_by_another_key_or_abbreviated_is_refused(argument, said):
    (problem,) = linted(f"args: {{{argument}}}")
    assert said in problem


def test_arguments_of_older_releases_are_not_mistaken_for_abbreviations():
    assert not linted("args: {cuda-graph-max-bs: 8, mem-fraction-static: 0.7, enable-metrics: true}")


def test_one_file_of_a_repository_is_refused():
    (problem,) = linted("model: {id: org/m-GGUF, file: m-Q4_K_M.gguf}")
    assert "complete models, not single files" in problem


FIELDS = """
class Serving(msgspec.Struct):
    host: A[str, "The host."] = "127.0.0.1"
    tp_size: A[int, Arg(help="", aliases=["--tensor-parallel-size"])] = 1
    context_length: A[
        Optional[int],
        "Of a request.",
    ] = None
    reasoning_parser: Optional[str] = None
"""
PARSER = 'parser.add_argument(\n    "--reasoning-parser", type=str)\nparser.add_argument("--config", type=str)\n'
PARSERS = 'class P:\n    ToolCallParserEnum: Dict[str, Type[B]] = {\n        "glm": A,\n        "gpt-oss": G,\n    }\n'
OLD = "".join(f'parser.add_argument("--{each}")\n' for each in ("host", "tp-size", "context-length"))


@pytest.mark.parametrize("new", [True, False])
def test_the_arguments_of_an_image_are_parsed_from_its_source(tmp_path, new):
    srt = tmp_path / "sglang/srt"
    (srt / "arg_groups/fields").mkdir(parents=True)
    (srt / "function_call").mkdir()
    (srt / "function_call/function_call_parser.py").write_text(PARSERS)
    (tmp_path / "sglang/__init__.py").touch()
    (srt / "server_args.py").write_text(PARSER if new else OLD)
    if new:
        (srt / "arg_groups/fields/serving.py").write_text(FIELDS)
    program = f"import glob, json, os, re\nfolder = lambda name: {str(tmp_path / 'sglang')!r}\n"
    program += "text = lambda *parts: open(os.path.join(*parts)).read()\ninstalled = lambda name: '0.5.23'\n"
    done = subprocess.run(
        [sys.executable, "-c", program + node.INSPECTION + "\nprint(json.dumps(ENGINE))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    more = ["config", "reasoning-parser", "tensor-parallel-size"] if new else []
    assert found["flags"] == sorted(["host", "tp-size", "context-length", *more])
    assert found["tool_parsers"] == ["glm", "gpt-oss", "auto"]
    assert found["reasoning_parsers"] is None


def qwen(**args) -> tuple[Playbook, Source]:
    """As measured in numbers.md: Qwen 3.6 35B A3B, 24.5 GB on the GPU, FP8 KV cache, states in bfloat16."""
    args = {"kv-cache-dtype": "fp8_e4m3", "mamba-ssm-dtype": "bfloat16", "context-length": 262144, **args}
    config = shipped.recorded("nvidia/Qwen3.6-35B-A3B-NVFP4").config
    return playbook(args=args), Source("q", config, size_bytes=int(24.5 * 2**30))


@pytest.mark.parametrize(
    ("share", "slots", "tokens"),
    [(0.90, 28, 7_544_800), (0.93, 30, 7_881_624), (0.95, 31, 8_209_240)],
)
def test_the_kv_cache_matches_a_measurement_on_a_spark(share, slots, tokens):
    args = {"mem-fraction-static": share, "max-mamba-cache-size": 4 * slots, "max-running-requests": slots}
    found = ENGINE.forecast(*qwen(**args), spark())
    assert found["kv_cache"]["bytes_per_token"] == 10_240
    assert found["kv_cache"]["tokens"] == pytest.approx(tokens, rel=0.03)
    assert "0.80 or less" in " ".join(found["advice"])


def test_with_a_token_limit_the_share_has_no_effect():
    args = {"mem-fraction-static": 0.5, "max-total-tokens": 524_288, "max-mamba-cache-size": 8}
    found = ENGINE.forecast(*qwen(**args), spark())
    assert found["kv_cache"]["tokens"] == 524_288
    assert found["kv_cache"]["bytes"] == 5 * 2**30
    # numbers.md: about 70 GB of Linux's available memory are free
    left = found["memory"]["left_for_system_bytes"] - found["memory"]["system_needs_bytes"]
    assert left / 2**30 == pytest.approx(70, abs=12)
    assert not ENGINE.takes_share(qwen(**args)[0])


def test_a_sliding_window_keeps_four_fifths_of_the_tokens():
    model = shipped.recorded("openai/gpt-oss-20b")
    found = ENGINE.forecast(playbook(args={"context-length": 131072}), model, spark())
    # 12 layers of 24 have a window; 8 heads of 64 for keys and values, in 16 bits
    assert found["kv_cache"]["bytes_per_token"] == 12 * (1 + 0.8) * 8 * 2 * 64 * 2


def test_a_model_that_does_not_fit_names_the_share_that_would():
    args = {"mem-fraction-static": 0.3}
    found = ENGINE.forecast(*qwen(**args), spark(), requests=8)
    assert found["fits"] is False
    (advice,) = found["advice"]
    share = float(re.search(r"mem-fraction-static to ([\d.]+)", advice)[1])
    assert ENGINE.forecast(*qwen(**{"mem-fraction-static": share}), spark(), requests=8)["fits"] is not False


def test_two_sparks_halve_the_memory_of_each():
    model = shipped.recorded("openai/gpt-oss-120b")
    one, two = (ENGINE.forecast(playbook(), model, spark(), nodes=nodes)["memory"] for nodes in (1, 2))
    assert two["weights_bytes"] == pytest.approx(one["weights_bytes"] / 2, rel=0.01)
    with pytest.raises(UsageError, match="not for 3 ranks"):
        ENGINE.forecast(playbook(), model, spark(), nodes=3)


def test_layers_with_compressed_tokens_are_not_estimated():
    with pytest.raises(UsageError, match="compressed"):
        ENGINE.forecast(playbook(), shipped.recorded("deepseek-ai/DeepSeek-V4-Flash"), spark(), nodes=2)


def test_the_share_is_relative_to_free_memory(world):
    facts = world("alpha").facts["alpha"]
    memory = facts.memory.model_copy(update={"available_bytes": facts.memory.total_bytes // 2})
    assert ENGINE.memory_share(
        playbook(args={"mem-fraction-static": 0.8}), facts.model_copy(update={"memory": memory})
    ) == (pytest.approx(0.4, rel=0.01))


def test_with_other_models_the_engine_gets_the_tokens_that_its_requests_need():
    beside = ENGINE.beside_others(playbook(args={"mem-fraction-static": 0.5, "context-length": 8192}))
    assert beside.args == {
        "mem-fraction-static": 0.9,
        "context-length": 8192,
        "max-total-tokens": "auto",
        "max-running-requests": 4,
    }
    model = shipped.recorded("Qwen/Qwen3-8B")
    assert ENGINE.forecast(beside, model, spark(), requests=None)["kv_cache"]["tokens"] == 4 * 8192
    limited = ENGINE.beside_others(playbook(args={"mem-fraction-static": 0.5, "max-total-tokens": 1000}))
    assert limited.args == {"mem-fraction-static": 0.9, "max-total-tokens": 1000}, "not a share of the remaining memory"
    kept = playbook(args={"mem-fraction-static": 0.5})
    assert ENGINE.beside_others(kept, {"args.mem_fraction_static"}) is kept


def found_at(world, code: str, *, free: int, args: dict[str, object]) -> list[str]:
    """Findings about Qwen 3.6 35B A3B, with the weights of a test of the KV cache, on a Spark with ``free`` GiB."""
    _, model = qwen()
    held = Weights(path="/m", config=model.config, files=(WeightFile(name="model.safetensors", size_bytes=25 << 30),))
    made = world("alpha", playbook={**SERVED, "args": {"context-length": 32768, **args}})
    memory = made.facts["alpha"].memory.model_copy(update={"available_bytes": free << 30, "free_bytes": free << 30})
    facts = {"alpha": made.facts["alpha"].model_copy(update={"weights": held, "memory": memory})}
    context = Context(made.spec, facts, topology.build(made.spec, facts))
    stages = ("written", "facts")
    return [f"{each.severity} {each}" for each in checks.run_stage(context, stages) if each.code == code]


@pytest.mark.parametrize(
    ("share", "said"), [(0.95, "takes 0.95"), (None, "not set"), ("0.9", "takes 0.90"), (0.8, None), (".8", None)]
)
def test_a_share_known_to_freeze_sparks_is_a_warning(world, share, said):
    args = {} if share is None else {"mem-fraction-static": share}
    found = found_at(world, "FIT-008", free=116, args=args)
    assert [said in each and "warning" in each for each in found] == ([True] if said else [])
    assert not found_at(world, "FIT-008", free=116, args={**args, "max-total-tokens": 65536})


def test_a_limited_cache_fits_into_the_memory_left_by_other_models_and_one_that_leaves_nothing_is_a_warning(world):
    limited = {"mem-fraction-static": 0.9, "max-total-tokens": 65536, "max-mamba-cache-size": 8}
    assert not found_at(world, "FIT-007", free=60, args=limited)
    assert not found_at(world, "HOST-022", free=60, args=limited)
    (found,) = found_at(world, "FIT-007", free=60, args={**limited, "max-total-tokens": 2_500_000})
    assert "warning" in found
    assert "stay free" in found
    (found,) = found_at(world, "FIT-007", free=60, args={"mem-fraction-static": 0.4})
    assert "error" in found


def test_an_automatic_number_of_tokens_is_planned_from_the_model_on_the_nodes(world):
    args = {"max-total-tokens": "auto", "max-running-requests": 2, "context-length": 4096}
    with pytest.raises(PlanError, match=r"config\.json"):
        build(world, "alpha", args=args)
    made = world("alpha", playbook={**SERVED, "args": args})
    weights = Weights(path="/m", config=shipped.recorded("Qwen/Qwen3-8B").config)
    facts = {"alpha": made.facts["alpha"].model_copy(update={"weights": weights})}
    planned = ENGINE.planned(made.spec, facts, topology.build(made.spec, facts)).playbook
    assert planned.args["max-total-tokens"] == 8192


def test_clients_can_rely_on_the_configured_parsers():
    served = playbook(args={"tool-call-parser": "gpt-oss", "context-length": 4096, "max-running-requests": 8})
    found = ENGINE.api_features(served)
    assert (found.tools, found.reasoning, found.context, found.requests) == (True, None, 4096, 8)
    assert "reasoning-parser: NAME" in found.remedies["reasoning"]
    assert ENGINE.api_features(playbook()).tools is False


def test_a_drafter_and_adapters_are_staged_with_the_model():
    args = {"speculative-draft-model-path": "o/draft", "speculative-draft-model-revision": "v1"}
    args["lora-paths"] = ["a=o/adapter", "/data/b"]
    assert ENGINE.repositories(playbook(args=args)) == {"o/draft": "v1", "o/adapter": "main"}
    assert ENGINE.weights_format(playbook(args={"load-format": "mistral"})) == "mistral"


def test_commands_from_guides_become_playbooks():
    """From field-inputs, from a guide for one Spark, and from newer documentation."""
    docker = "docker run --gpus all --ipc=host lmsysorg/sglang:spark"
    command = "python3 -m sglang.launch_server --model-path openai/gpt-oss-20b"
    ranks = "--host 0.0.0.0 --port 30000 --tp 2 --nnodes 2 --node-rank 0 --dist-init-addr 192.168.100.1:20000"
    made = convert(f"{docker} {command} {ranks} --enable-metrics", "x.sh").document
    expected = {"engine": "sglang", "model": {"id": "openai/gpt-oss-20b"}, "image": "lmsysorg/sglang:spark"}
    assert {key: made[key] for key in expected} == expected
    assert made["tensor_parallel"] == 2
    assert "args" not in made
    text = "sglang serve openai/gpt-oss-20b --context-length=4096 --ep 2 --cuda-graph-bs-decode 1 2 --api-key secret-of-mine"
    text += (
        " --max-model-len 8 --trust-remote-code --no-lora-strict-loading --default-chat-template-kwargs '{\"a\": 1}'"
    )
    found = convert(text, "x.sh")
    assert found.document["args"] == {
        "context-length": 4096, "ep-size": 2, "cuda-graph-bs-decode": [1, 2], "max-model-len": 8,
        "trust-remote-code": True, "lora-strict-loading": False, "default-chat-template-kwargs": {"a": 1},
    }  # fmt: skip
    assert "secret-of-mine" not in found.text
    shared = convert("sglang serve openai/gpt-oss-20b --mem-fraction-static=.8", "x.sh").document
    assert shared["args"] == {"mem-fraction-static": 0.8}
    assert "write context-length" in found.text


JOINING = (
    ["[2026-12-01 08:00:05 TP0] Init torch distributed begin."],
    ["[2026-12-01 08:00:05 TP0] Init parallel begin.", "[Gloo] Rank 0 is connected to 1 peer ranks.",
     "CustomAllreduce is disabled because this process group spans across nodes."],
)  # fmt: skip


def test_names_of_another_engines_arguments(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("name: m\nengine: sglang\nimage: i:1\nmodel: {id: org/m}\n"
                    "args: {enforce-eager: true, kv-cache-memory-bytes: 1, max-num-seqs: 4}\n")  # fmt: skip
    found = {each.seen: each.remedy[0] for each in lint([path]).findings if each.code == "SPEC-013"}
    assert found["args.enforce-eager"] == "write disable-cuda-graph: true"
    assert "write max-total-tokens" in found["args.kv-cache-memory-bytes"]
    assert found["args.max-num-seqs"] == "write max-running-requests"


@pytest.mark.parametrize("lines", JOINING)
def test_ranks_that_do_not_connect_are_reported_whatever_their_last_line_is(world, lines):
    """MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#9 has the second last line."""
    made = world(playbook=SERVED)

    def found(*more: str) -> list[str]:
        labels = {"io.sparkcluster.group": "default"}
        ranks = {name: RankSeen(name=name, state="running", labels=labels, log=(*lines, *more)) for name in made.facts}
        seen = Running({name: Observation(ranks=(rank,)) for name, rank in ranks.items()})
        context = Context(made.spec, made.facts, topology.build(made.spec, made.facts), running=seen)
        return [each.seen for each in checks.run_stage(context, ("running",)) if each.code == "RUN-030"]

    (seen,) = found()
    assert lines[-1][:60] in seen
    assert not found("[2026-12-01 08:00:09 TP0] Init torch distributed ends. elapsed=4.00 s, mem usage=0.10 GB")


# While the first request after the warm-up decodes; 0.5.5 has no realtime_tokens_total.
METRICS = """
sglang:realtime_tokens_total{model_name="m",tp_rank="0",mode="prefill_compute"} 2000.0
sglang:realtime_tokens_total{model_name="m",tp_rank="0",mode="decode"} 47.0
sglang:generation_tokens_total{model_name="m"} 8.0
"""


def test_generated_tokens_are_counted_during_a_request():
    assert engine_api.metrics(METRICS, ENGINE.counters)["generated"] == 47
    older = "".join(line for line in METRICS.splitlines(keepends=True) if "realtime" not in line)
    assert engine_api.metrics(older, ENGINE.counters)["generated"] == 8


# As 0.5.23 prints them, and where they differ as 0.5.5 did.
LOG = """
[2026-12-01 08:00:00] server_args={'model_path': 'm', 'api_key': None}
[2026-12-01 08:00:05 TP0] Init torch distributed begin.
[2026-12-01 08:00:09 TP0] Load weight begin. avail mem=110.00 GB
Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00it/s]
[2026-12-01 08:00:20 TP0] Load weight end. elapsed=11.00 s, type=Q, avail mem=85.50 GB, mem usage=24.46 GB.
[2026-12-01 08:00:21 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 524288, K size: 2.50 GB, V size: 2.50 GB
[2026-12-01 08:00:22 TP0] Capture target decode CUDA graph begin. backend=full, avail mem=80.00 GB
Capturing batches (bs=4 avail_mem=79.00 GB):  50%|#####     | 2/4 [00:01<00:01,  1.00it/s]
[2026-12-01 08:00:30 TP0] Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=8.00 s, mem usage=0.57 GB, avail mem=79.00 GB.
[2026-12-01 08:00:30 TP0] max_total_num_tokens=524288, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=4
[2026-12-01 08:00:31] INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)
[2026-12-01 08:00:33] The server is fired up and ready to roll!
""".strip().splitlines()


def test_sglang_logs_show_progress_and_memory():
    progress = phase.Progress(ENGINE)
    seen = [found.text for line in LOG if (found := progress.feed(line))]
    assert seen == [
        "reading arguments", "waiting for all ranks", "loading weights 0 %", "loading weights 50 %",
        "loading weights 100 %", "KV cache, 524288", "capturing CUDA graphs", "capturing CUDA graphs 2/4", "warming up",
        "API ready",
    ]  # fmt: skip
    assert progress.ready
    assert progress.footprint == {"load_gib": 24.46, "graphs_gib": 0.57, "kv_tokens": 524288}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("launch_server.py: error: unrecognized arguments: --gpu-memory-utilization 0.8", "write mem-fraction-static"),
        ("sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, …",
         "cuda-graph-max-bs-decode"),
        ("sglang serve: error: argument --tool-call-parser: invalid choice: 'openai' (choose from 'auto', 'glm')",
         "invalid choice: 'openai'"),
        ("ValueError: Loaded weights leave no GPU memory …. Raise --mem-fraction-static above 0.412 (minimum …", "0.412"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no memory for the KV cache"),
        ("RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
         "nine tenths"),
        ("[2026-12-01 08:00:00 TP0] Watchdog timeout (self.watchdog_timeout=300)", "300 s"),
        ("Scheduler watchdog timeout (self.watchdog_timeout=1800.0, self.soft=False)", "1800.0 s"),
        ("OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.", "101376"),
        ("Warning: User-specified context_length (262144) is greater than the derived context_length (131072). This",
         "131072"),
    ],
)  # fmt: skip
def test_sglang_errors_have_a_cause(line, said):
    assert not re.search(ENGINE.dead, "Scheduler watchdog timeout (self.watchdog_timeout=1800.0, self.soft=True)")
    lines = plain([line, "Received sigquit from a child process. It usually means the child failed."])
    cause = next(filter(None, (signature.match(lines) for signature in ENGINE.signatures)))
    assert said in f"{cause.summary}; {cause.hint}"
