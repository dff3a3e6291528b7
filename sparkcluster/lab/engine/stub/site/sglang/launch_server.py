"""`python3 -m sglang.launch_server`: parse, start this node's scheduler, serve, and exit as SGLang does.

Written after the source of SGLang 0.5.23, without copying its files. Its log lines are in sglang-0.5.23-log.tsv.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time

from stubengine import api, engine, flags, log, model, proc
from stubengine.serve import bind

POLL_S = 1.0  # SGLang checks every 5 s for a shutdown request, too long for a test
HEALTH = {(path, "GET"): "health" for path in ("/health", "/health_generate")}


class Engine(engine.Engine):
    """The scheduler of the first node."""

    bounds_s = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)

    def request(self, tokens, prompt="", prompt_tokens=0):
        """Sends a request of the server itself."""
        return list(self.generate(prompt, prompt_tokens, max_tokens=tokens, min_tokens=0, extra=0, ignore_eos=True))

    def stop(self):
        """Makes the schedulers of all nodes exit."""
        self._channel.send(op="shutdown")
        self.process.wait()


class Handler(api.Handler):
    """SGLang's server (entrypoints/http_server.py, observability/metrics_collector.py)."""

    owner, reasoning, label = "sglang", "reasoning_content", 'engine_type="unified"'
    names = dict(flags.rows("sglang-0.5.23-metrics.tsv"))

    def health(self, _raw):
        """Returns 503 until warmed up and while draining, otherwise generates a token; on a follower always 200."""
        good = self.server.engine is None
        if not good and self.server.options["warm"].is_set():
            asked = threading.Thread(target=self.server.engine.request, args=(1,), daemon=True)
            asked.start()
            time.sleep(1)
            asked.join(19)  # SGLANG_HEALTH_CHECK_TIMEOUT is 20 s
            good = not asked.is_alive()
            if not good:
                log.sglang("unhealthy", time.strftime("%H:%M:%S"))
        self._bytes(200 if good else 503, b"", "text/plain")


def parse(argv):
    """The parsed arguments; arguments of --config come before the command line."""
    parser = flags.add_flags(argparse.ArgumentParser(prog="sglang serve"), flags.table("sglang-0.5.23-flags.tsv"))
    if "--config" in argv:
        at = argv.index("--config")
        with open(argv[at + 1], encoding="utf-8") as f:
            first = [word for key, value in json.load(f).items() for word in ("--" + key, str(value))]
        argv = first + argv[:at] + argv[at + 2 :]
    args = parser.parse_args(argv)
    if not args.model_path:
        parser.error("the following arguments are required: --model-path/--model")
    args.host, args.port = args.host or "127.0.0.1", args.port or 30000
    return args


def spec_of(args):
    """The specification for a scheduler."""
    config = model.config(model.find(args.model_path, args.revision))
    address, _, port = (args.dist_init_addr or "127.0.0.1:0").rpartition(":")
    tp, pp, number = args.tp_size or 1, args.pp_size or 1, args.node_rank or 0
    spec = {"model": args.model_path, "revision": args.revision, "tp": tp, "pp": pp, "world": tp * pp}
    spec.update(nnodes=args.nnodes or 1, node_rank=number, rank=number, local_rank=0, env=None, backend="sglang")
    spec.update(master_addr=address, master_port=int(port), master=(address, int(port)), moe_backend=None)
    longest = args.context_length or config.get("max_position_embeddings") or 2048
    return dict(spec, max_model_len=longest, eager=bool(args.disable_cuda_graph))


def die(text, *values):
    """Exits as SGLang does on errors: kills all of its processes and itself (kill_process_tree)."""
    log.sglang("launch-failed" if text == "died" and values[0] > 0 else text, *values)
    os.kill(os.getpid(), signal.SIGKILL)


def serve(args, server_engine, options):
    """The server, listening."""
    server = api.Server(bind(args.host, args.port), server_engine, options, Handler)
    server.server_activate()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def follow(args, spec, title):
    """Runs a node other than the first: a scheduler, and a server whose health is always good."""
    scheduler, channel = proc.spawn("rank", title)
    os.environ[log.SGLANG] = ""
    channel.send(**spec)
    if not (channel.receive() or {}).get("loaded"):
        die("died", scheduler.wait())
    signal.signal(signal.SIGTERM, lambda *_: log.sglang("follower-stopping", spec["rank"]))
    serve(args, None, {"api_keys": [], "routes": HEALTH})
    log.sglang("follower", args.host, args.port)
    if scheduler.wait() > 0:
        die("launch-failed")
    log.sglang("follower-ended", scheduler.pid, scheduler.returncode)


def lead(args, spec, title):
    """Runs the first node: the scheduler with the requests, the server, the warm-up, and a drain at the end."""
    core, warm, asked = Engine(spec, "core", title), threading.Event(), threading.Event()
    os.environ[log.SGLANG] = ""
    core.ready.wait()
    if core.gone:
        die("died", core.process.wait())
    name = args.served_model_name or args.model_path
    routes = {route: how for route, how in {**api.ROUTES, **HEALTH}.items() if args.enable_metrics or how != "metrics"}
    options = {"names": [name], "model": name, "max_model_len": spec["max_model_len"], "warm": warm, "routes": routes}
    options.update(api_keys=[args.api_key] if args.api_key else [], reasoning=bool(args.reasoning_parser))
    options.update(pooling=bool(args.is_embedding), tools=bool(args.tool_call_parser))
    server = serve(args, core, options)
    log.sglang("listening", os.getpid(), args.host, args.port)
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    core.request(8, "The capital city of France is", 6)
    warm.set()
    log.sglang("ready")
    seen, since = 0, time.monotonic()
    while not asked.wait(POLL_S):
        if core.gone:
            die("" if core.errored else "crashed", core.process.pid, core.process.wait())
        if not core.running or core.generated != seen:
            seen, since = core.generated, time.monotonic()
        elif time.monotonic() - since > (args.watchdog_timeout or 300):
            die("stuck", args.watchdog_timeout)
    log.sglang("stopping")
    warm.clear()
    while server.answering:
        log.sglang("draining", server.answering)
        time.sleep(POLL_S)
    core.stop()
    log.sglang("ended", os.getpid())


def main(argv):
    """Entry point of the module; returns the exit code."""
    os.environ[log.SGLANG] = ""
    args = parse(argv)
    log.sglang("arguments", {name: value for name, value in sorted(vars(args).items()) if value is not None})
    try:
        spec = spec_of(args)
        os.environ[log.SGLANG] = " TP%d" % spec["rank"] if spec["world"] > 1 else ""
        title = "sglang::scheduler" + os.environ[log.SGLANG].replace(" ", "_")
        (follow if spec["rank"] else lead)(args, spec, title)
    except (model.LoadError, OSError, ValueError) as error:
        log.emit(log.traceback(str(error)), sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
