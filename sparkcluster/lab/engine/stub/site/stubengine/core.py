"""The engine core: a separate process that owns the ranks, and decodes word by word for all requests concurrently."""

import os
import sys
import threading
import time

from stubengine import VLLM_VERSION, executors, faults, log, model, proc, rank

STEPS_PER_S = 500.0  # slow enough that a stream has several chunks; lowered by the fault "slow"
GIB_KV = 1.0


class Core:
    """Requests by ID; one thread decodes, the channel's thread receives messages."""

    def __init__(self, spec, channel):
        self._spec = spec
        self._channel = channel
        self._requests = {}
        self._changed = threading.Condition()
        self._ready = False
        self._executor = None
        self._weights = ""

    def order(self, message):
        """Handles a message from the API server."""
        with self._changed:
            if message["op"] == "generate":
                self._requests[message["id"]] = self._request(message)
            elif message["op"] == "shutdown":
                self._executor.stop()
                os._exit(0)
            else:
                self._requests.pop(message["id"], None)
            self._changed.notify_all()

    def _request(self, message):
        answer, limit = model.Answer(message["prompt"], self._weights), message["max_tokens"]
        natural = max(answer.length + message["extra"], message["min_tokens"])
        if message["ignore_eos"] or natural > limit:
            return {"answer": answer, "sent": 0, "length": limit, "finish": "length"}
        return {"answer": answer, "sent": 0, "length": natural, "finish": "stop"}

    def lose(self, reason):
        """A rank was lost while serving: logs it and exits, as EngineCore does."""
        if not self._ready:
            return  # load() raises it itself
        trace = log.traceback(
            reason,
            ("vllm/v1/engine/core.py", 1505, "run_engine_core"),
            ("vllm/v1/engine/core.py", 1690, "run_busy_loop"),
            ("vllm/v1/executor/abstract.py", 310, "execute_model"),
        )
        log.error("core.py:1512", "EngineCore encountered a fatal error.\n%s", trace)
        self._channel.send(dead=reason)
        os._exit(1)

    def load(self):
        """Starts up to the first token. Raises executors.ExecutorError, model.LoadError, rank.RankError."""
        spec = self._spec
        log.info(
            "core.py:133",
            "Initializing a V1 LLM engine (v%s) with config: model='%s', tensor_parallel_size=%d, "
            "pipeline_parallel_size=%d, distributed_executor_backend=%s, max_seq_len=%d",
            VLLM_VERSION,
            spec["model"],
            spec["tp"],
            spec["pp"],
            spec["backend"],
            spec["max_model_len"],
        )
        begin = time.monotonic()
        self._executor = executors.make(spec)
        self._executor.start(self.lose)
        self._weights = self._executor.load()
        kv_tokens = int(GIB_KV * 2**30 / 8192)
        log.info("gpu_worker.py:759", "Available KV cache memory: %.2f GiB", GIB_KV)
        log.info(
            "kv_cache_utils.py:2327",
            "GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx",
            format(kv_tokens, ","),
            format(spec["max_model_len"], ","),
            kv_tokens / spec["max_model_len"],
        )
        if spec["moe_backend"]:
            faults.log_lines("moe-backend", faults.active().get("moe-backend") or spec["moe_backend"].upper())
        if not spec["eager"]:
            log.info("monitor.py:81", "torch.compile took 0.00 s in total")
            if spec["backend"] != "sglang":
                log.emit("Capturing CUDA graphs (decode, FULL): 100%|##########| 1/1", sys.stderr)
            log.info("gpu_model_runner.py:6581", "Graph capturing finished in 0 secs, took 0.00 GiB")
        log.info(
            "core.py:402", "init engine (profile, create kv cache, warmup model) took %.2f s", time.monotonic() - begin
        )
        self._ready = True
        if self._executor.dead is not None:
            raise executors.ExecutorError(self._executor.dead)
        return kv_tokens

    def decode(self):
        """Decodes while there are requests."""
        while True:
            with self._changed:
                while not self._requests:
                    self._changed.wait()
            faults.wait_while("hang-serve")
            active = faults.active()
            if "exit0" in active:
                self.lose("RuntimeError: the fault exit0 is active")
            try:
                self._executor.step()
            except executors.ExecutorError as error:
                self.lose(str(error))
            with self._changed:
                for number, request in list(self._requests.items()):
                    self._send_word(number, request, active.get("garbage"))
            time.sleep(1.0 / float(active.get("slow", STEPS_PER_S)))

    def _send_word(self, number, request, garbage):
        position = request["sent"]
        request["sent"] += 1
        finish = None
        if request["sent"] >= request["length"]:
            finish = request["finish"]
            del self._requests[number]
        word = {"1": "!", "bytes": "\ufffd", "repeat": "mult"}.get(garbage) or request["answer"].word(position)
        self._channel.send(id=number, word=word, finish=finish)


def main(channel):
    """Entry point of the engine core's process; its specification is the first message from the API server."""
    spec = channel.receive()
    if spec is None:
        os._exit(1)
    log.configure("EngineCore")
    core = Core(spec, channel)
    proc.serve_parent(channel, core.order)
    try:
        kv_tokens = core.load()
    except (executors.ExecutorError, model.LoadError, rank.RankError, LookupError) as error:
        trace = log.traceback(
            str(error),
            ("vllm/v1/engine/core.py", 1476, "run_engine_core"),
            ("vllm/v1/engine/core.py", 1130, "__init__"),
            ("vllm/v1/executor/abstract.py", 109, "__init__"),
        )
        log.error("core.py:1510", "EngineCore failed to start.\n%s", trace)
        os._exit(1)
    channel.send(ready=True, kv_tokens=kv_tokens)
    core.decode()
