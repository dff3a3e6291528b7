"""Lines of vLLM's log that show how far a launch is, and which rank failed.

Read in vLLM 0.19 to 0.32; formats that changed between them are both matched.
"""

from __future__ import annotations

import re

from sparkcluster.engines.phase import Phase

# Message templates of its own modules, named before each.
PHASES = {
    # v1/engine/core.py; entrypoints/openai/api_server.py until 0.2x, a banner later
    r"Initializing a V1 LLM engine|vLLM API server version|█\s+version \d+\.": Phase("engine"),
    # v1/worker/gpu_model_runner.py
    r"Starting to load model ": Phase("weights", done=0),
    # model_loader/weight_utils.py: one bar per loader, "Completed | 3/11"
    r"[Ll]oading [\w -]{0,60}(?:shards|loader|weights|Streamer)[\w -]{0,60}:\s{1,8}(?P<done>\d{1,3})% Completed": Phase(
        "weights"
    ),
    # model_loader/default_loader.py; gpu_model_runner.py
    r"Loading weights took [\d.]+ seconds|Model loading took [\d.]+ Gi?B": Phase("weights", done=100),
    # compilation/backends.py, compilation/monitor.py, v1/worker/gpu_worker.py
    r"for vLLM's torch\.compile|Starting torch\.compile|Dynamo bytecode transform time"
    r"|Compiling a graph for|torch\.compile (?:takes|took)|Compile and warming up model for size": Phase("compile"),
    # v1/core/kv_cache_utils.py: "GPU KV cache size: 1,234 tokens"
    r"KV cache size: (?P<detail>[\d,]+ tokens)": Phase("kv-cache"),
    # flashinfer/autotuner.py; model_executor/warmup/kernel_warmup.py
    r"Autotuning process starts|Running FlashInfer autotune|Warming up .{0,80}kernels": Phase("autotune"),
    # v1/worker/gpu_model_runner.py: tqdm, "| 30/67 [00:05<"
    r"Capturing CUDA graph.{0,200}\|\s{0,8}(?P<done>\d{1,9})/(?P<total>\d{1,9})": Phase("graphs"),
    r"Graph capturing finished in": Phase("graphs"),
    # v1/engine/core.py, the last line of the engine itself
    r"init engine \(profile, create kv cache, warmup model\) took": Phase("warm-up"),
    # uvicorn
    r"Application startup complete": Phase("api-ready"),
}

# v1/worker/gpu_model_runner.py, v1/worker/gpu_worker.py and v1/core/kv_cache_utils.py
FOOTPRINT = re.compile(
    r"Model loading took (?P<load_gib>\d{1,6}(?:\.\d{1,12})?) GiB"
    r"|Available KV cache memory: (?P<kv_gib>\d{1,6}(?:\.\d{1,12})?) GiB"
    r"|KV cache size: (?P<kv_tokens>\d{1,3}(?:,\d{3}){0,2}) tokens"
    r"|Graph capturing finished in \d{1,6} secs?, took (?P<graphs_gib>\d{1,6}(?:\.\d{1,12})?) GiB"
)

# The most specific first: a death, a failure, and the node of the Ray task that raised.
CULPRITS = (
    # RayExecutorV2 and the multiprocessing executor of vLLM 0.32
    re.compile(r"rank=\[(?P<rank>\d+)\] died|VllmWorker-(?P<other>\d+) died"),
    # the block under ray.exceptions.RayActorError (Ray 2.60)
    re.compile(r"(?:^|[\s\])])ip: (?P<address>\d+(?:\.\d+){3})\s*$"),
    re.compile(r"\bWorker (?P<rank>\d+) failed: "),
    # ray.exceptions.RayTaskError(...): ray::RayWorkerWrapper.execute_method() (pid=13, ip=192.168.177.12, ...)
    re.compile(r"\bray::[^(]{0,200}\(\) \(pid=\d+, ip=(?P<address>\d+(?:\.\d+){3})"),
)
