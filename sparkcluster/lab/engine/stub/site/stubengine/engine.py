"""The API server's client of the engine core: sends requests, receives words, and notices its death."""

import bisect
import itertools
import queue
import threading
import time

from stubengine import log, proc

# Upper bounds in seconds, from vLLM 0.32's vllm/v1/metrics/buckets.py.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
TTFT_S += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineDead(Exception):
    """The engine core has stopped."""


class Engine:
    """An engine core.

    ``errored``: the core reported its death, so /health fails and the server exits. A core that was killed
    reports nothing: ``gone`` is set, and /health returns 200 while every completion fails.
    """

    bounds_s = TTFT_S

    def __init__(self, spec, module="core", title="VLLM::EngineCore"):
        self._numbers = itertools.count()
        self._waiting = {}
        self._lock = threading.Lock()
        self.errored = False
        self.gone = False
        self.kv_tokens = 0
        self.ready = threading.Event()
        self.running = 0
        self.generated = 0
        self.prompted = 0
        self.finished = 0
        self.ttft = [0] * (len(self.bounds_s) + 1)  # requests by bucket
        self.ttft_sum_s = 0.0
        self.process, self._channel = proc.spawn(module, title)
        self._channel.send(**spec)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for message in self._channel.messages():
            if message.get("ready"):
                self.kv_tokens = message["kv_tokens"]
                self.ready.set()
            elif "dead" in message:
                self.errored = True
                trace = log.traceback(
                    "vllm.v1.engine.exceptions.EngineDeadError: " + DEAD,
                    ("vllm/v1/engine/async_llm.py", 862, "output_handler"),
                    ("vllm/v1/engine/core_client.py", 1021, "get_output_async"),
                )
                log.error("async_llm.py:906", "AsyncLLM output_handler failed.\n" + trace)
            else:
                with self._lock:
                    waiting = self._waiting.get(message.get("id"))
                    self.generated += getattr(waiting, "counts", False)
                if waiting is not None:
                    waiting.put(message)
        with self._lock:
            self.gone = True
            for waiting in self._waiting.values():
                waiting.put(None)
        self.ready.set()

    def generate(self, prompt, prompt_tokens, **options):
        """Yields (word, finish reason or None); raises EngineDead if the core has stopped or stops.

        A request without a prompt comes from the engine itself, and is not counted.
        """
        number = next(self._numbers)
        words = queue.Queue()
        words.counts = prompt_tokens > 0
        began = time.monotonic()
        with self._lock:
            if self.gone or self.errored:
                raise EngineDead(DEAD)
            self._waiting[number] = words
            self.running += words.counts
            self.prompted += prompt_tokens
        try:
            self._channel.send(op="generate", id=number, prompt=prompt, **options)
            while True:
                message = words.get()
                if message is None:
                    raise EngineDead(DEAD)
                if began is not None and words.counts:
                    took_s, began = time.monotonic() - began, None
                    with self._lock:
                        self.ttft[bisect.bisect_left(self.bounds_s, took_s)] += 1
                        self.ttft_sum_s += took_s
                # Counted before the last word is yielded: the receiver does not continue this generator.
                self.finished += words.counts and bool(message["finish"])
                yield message["word"], message["finish"]
                if message["finish"]:
                    return
        finally:
            with self._lock:
                self._waiting.pop(number, None)
                self.running -= words.counts
            self._channel.send(op="abort", id=number)
