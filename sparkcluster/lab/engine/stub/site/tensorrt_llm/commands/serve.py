"""`trtllm-serve`: parse, bind, load, serve, and exit as TensorRT-LLM does.

Made from the source of TensorRT-LLM 1.3 (commands/serve.py, serve/openai_server.py, llmapi/llm_args.py) and a log of
1.1.0rc3 on a Spark; no file of it is here. One process loads and answers.
"""

import json
import os
import signal
import sys
import threading
import time

from stubengine import api, faults, log, model
from stubengine.serve import bind
from tensorrt_llm import __version__

FLAGS = ("--enable_chunked_prefill", "--fail_fast_on_attention_window_too_large", "--trust_remote_code")
NUMBERS = ("--port", "--max_batch_size", "--max_beam_width", "--max_num_tokens", "--max_seq_len", "--tp_size")
OTHERS = ("--backend", "--chat_template", "--custom_tokenizer", "--extra_llm_api_options", "--free_gpu_memory_fraction")
OTHERS += ("--host", "--kv_cache_dtype", "--log_level", "--media_io_kwargs", "--otlp_traces_endpoint", "--revision")
OTHERS += ("--reasoning_parser", "--served_model_name", "--tokenizer", "--tool_parser")
SAME = {"--config": "--extra_llm_api_options", "--kv_cache_free_gpu_memory_fraction": "--free_gpu_memory_fraction"}
KEYS = set(
    "attn_backend cuda_graph_config disable_overlap_scheduler enable_chunked_prefill enable_iter_perf_stats "
    "kv_cache_config max_batch_size max_num_tokens max_seq_len moe_config print_iter_log reasoning_parser "
    "return_perf_metrics scheduler_config speculative_config stream_interval torch_compile_config".split()
)
GARBAGE = {"1": "!", "bytes": "\ufffd", "repeat": "mult"}
USAGE = "Usage: trtllm-serve serve [OPTIONS] MODEL\nTry 'trtllm-serve serve --help' for help.\n\nError: "


class Failed(Exception):
    """The start failed; the message is the last line of the traceback."""


def say(text, level="I"):
    """Logs a line in TensorRT-LLM's format."""
    log.emit(time.strftime("[%m/%d/%Y-%H:%M:%S]") + " [TRT-LLM] [%s] %s" % (level, text))


def parse(argv):
    """Options by name, and the model; on an unknown option exits with click's message."""
    found, rest = {"--host": "localhost", "--port": 8000}, argv[argv[:1] == ["serve"] :]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        name = SAME.get(name, name)
        if not name.startswith("-"):
            found["MODEL"] = name
            continue
        if name not in FLAGS + NUMBERS + OTHERS:
            sys.exit(USAGE + "No such option: " + name)
        if name not in FLAGS and not equals:
            value = rest.pop(0) if rest else sys.exit(USAGE + "Option '%s' requires an argument." % name)
        if name in NUMBERS and not value.isdigit():
            sys.exit(USAGE + "Invalid value for '%s': '%s' is not a valid integer." % (name, value))
        found[name] = int(value) if name in NUMBERS else value or True
    return found if "MODEL" in found else sys.exit(USAGE + "Missing argument 'MODEL'.")


def options_of(args):
    """Options of the command line, overridden by the options file, which must be JSON (a subset of YAML)."""
    found = {name: args["--" + name] for name in KEYS if "--" + name in args}
    if "--extra_llm_api_options" in args:
        with open(args["--extra_llm_api_options"], encoding="utf-8") as f:
            found.update(json.load(f))
    for key in set(found) - KEYS:
        text = "%s\n  Extra inputs are not permitted [type=extra_forbidden, input_value=%r]" % (key, found[key])
        raise Failed("pydantic_core._pydantic_core.ValidationError: 1 validation error for TorchLlmArgs\n" + text)
    return found


class Engine:
    """An engine in this process: reads the weights, and computes words from them."""

    errored, gone, running = False, False, 0

    def __init__(self, path, options):
        active, self.digest, files = faults.active(), "", model.weight_files(path)
        say("Use %.2f GB for model weights." % (sum(map(os.path.getsize, filter(os.path.exists, files))) / 2**30))
        if "oom" in active:
            raise Failed("RuntimeError: Executor creation failed due to insufficient GPU memory.")
        for at, file in enumerate(files, 1):
            self.digest += model.read_weights(file)[1]
            time.sleep(float(active.get("slow-start", 0)) / len(files))
            log.emit("Loading weights: %3d%%|##########| %d/%d" % (100 * at / len(files), at, len(files)), sys.stderr)
            faults.wait_while("hang-load")
        log.emit("Model init total -- 0.01s")
        wanted = options.get("max_seq_len") or model.config(path).get("max_position_embeddings", 2048)
        tokens = int((options.get("kv_cache_config") or {}).get("max_tokens") or 131072)
        self.longest = min(wanted, tokens)
        if tokens < wanted:
            say("Adjusted max_seq_len to %d" % tokens, "W")
        text = "[MemUsageChange] Allocated %.2f GiB for max tokens in paged KV cache (%d)." % (tokens / 2**17, tokens)
        log.emit("[TensorRT-LLM][INFO] " + text)
        say("[Autotuner] Autotuning process starts ...")
        say("Creating CUDA graph instances for 1 batch sizes.")

    def generate(self, prompt, _prompt_tokens, max_tokens, min_tokens, extra, ignore_eos):
        """Yields (word, finish reason or None)."""
        answer, finish = model.Answer(prompt, self.digest), "stop"
        length = max(answer.length + extra, min_tokens)
        if ignore_eos or length > max_tokens:
            length, finish = max_tokens, "length"
        for at in range(length):
            faults.wait_while("hang-serve")
            active = faults.log_active()
            if "die-serve" in active:
                os._exit(1)
            time.sleep(1.0 / float(active.get("slow", 500)))
            yield GARBAGE.get(active.get("garbage")) or answer.word(at), finish if at == length - 1 else None


class Handler(api.Handler):
    """TensorRT-LLM's server; its metrics are iteration statistics, which a read removes."""

    owner = "tensorrt_llm"

    def metrics(self, _raw):
        """An empty list: the statistics are off by default."""
        self._json(200, [])


def serve(args):
    """Loads the model and serves until shutdown."""
    log.emit("[TensorRT-LLM] TensorRT LLM version: " + __version__)
    options, name, asked = options_of(args), args["MODEL"].rstrip("/"), threading.Event()
    try:
        sock = bind(args["--host"], args["--port"])
    except OSError as error:
        raise Failed("RuntimeError: Failed to bind socket to %s:%d: %s" % (args["--host"], args["--port"], error))
    engine = Engine(model.find(name, args.get("--revision")), options)
    name = args.get("--served_model_name") or (os.path.basename(name) if os.path.isdir(name) else name)
    made = {"names": [name], "model": name, "api_keys": [], "max_model_len": engine.longest, "pooling": False}
    made.update(reasoning="--reasoning_parser" in args, tools="--tool_parser" in args)
    server = api.Server(sock, engine, made, Handler)
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    log.uvicorn("Started server process [%d]" % os.getpid())
    server.server_activate()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    log.uvicorn("Application startup complete.")
    asked.wait()
    server.shutdown()
    server.socket.close()
    while server.answering:
        time.sleep(0.02)



def main(argv):
    """Entry point of the command; returns the exit code."""
    try:
        serve(parse(argv))
    except (Failed, model.LoadError, OSError, ValueError) as error:
        log.emit(log.traceback(str(error), ("tensorrt_llm/commands/serve.py", 1, "serve")), sys.stderr)
        return 1
    except SystemExit as error:
        log.emit(str(error), sys.stderr)
        return 2
    return 0
