"""`vllm serve`: parse, bind, start the engine core, serve, and exit as vLLM does."""

import os
import signal
import socket
import sys
import threading
import time

from stubengine import VLLM_VERSION, faults, flags, log, model
from stubengine.executors import start_local_ranks

WATCHDOG_S = 5.0  # vLLM checks every 5 s whether its engine has failed (VLLM_WATCHDOG_TIME_S)
HELP = "usage: vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ...\n"


class Stop(Exception):
    """SIGTERM or SIGINT was received."""


def spec_of(args, config):
    """The specification for the engine core."""
    context = (
        config.get("max_position_embeddings")
        or (config.get("text_config") or {}).get("max_position_embeddings")
        or 2048
    )
    longest = args.max_model_len if args.max_model_len and args.max_model_len > 0 else context
    tp, pp = args.tensor_parallel_size or 1, args.pipeline_parallel_size or 1
    return {
        "model": args.model,
        "revision": args.revision,
        "tp": tp,
        "pp": pp,
        "world": tp * pp,
        "nnodes": args.nnodes or 1,
        "node_rank": args.node_rank or 0,
        "master_addr": args.master_addr or "127.0.0.1",
        "master_port": args.master_port or 29501,
        "backend": args.distributed_executor_backend or "mp",
        "max_model_len": longest,
        "eager": bool(args.enforce_eager),
        "moe_backend": None if args.moe_backend in (None, "auto") else str(args.moe_backend),
    }


def bind(host, port):
    """The server's socket, bound before the engine starts, but not yet listening, as in vLLM."""
    sock = socket.socket(socket.AF_INET6 if host and ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host or "", port))
    return sock


def fail(last, *frames):
    """Prints the traceback of a start that failed; returns the exit code."""
    log.emit(log.traceback(last, *frames), sys.stderr)
    return 1


def headless(spec):
    """Runs a follower of vLLM's native multi-node mode: ranks, no API server. Returns the exit code."""
    master = (spec["master_addr"], spec["master_port"])
    log.configure("MainThread")
    log.info(
        "serve.py:224",
        "Launching vLLM (v%s) headless multiproc executor, with head node address %s:%d for "
        "torch.distributed process group.",
        VLLM_VERSION,
        *master,
    )
    lost = threading.Event()
    begin = time.monotonic()
    ranks = start_local_ranks(spec, master, lambda reason: lost.set())
    try:
        lost.wait()
        killed = any(p.poll() is not None and p.returncode < 0 for p in ranks)
        # the real monitor raises during the start, and returns without an error after the worker has served
        code = 0 if killed and time.monotonic() - begin > 1 else 1
    except Stop:
        code = 0
    log.info("serve.py:266", "Shutting down.")
    return code


def watch_faults():
    """Kills the server when the fault die-serve is set."""
    while True:
        if "die-serve" in faults.active():
            log.emit("Fatal Python error: Segmentation fault", sys.stderr)
            os._exit(1)
        time.sleep(0.1)


def serve(args, spec, sock):
    """Starts the engine, then serves HTTP; returns the exit code."""
    from stubengine.api import ROUTES, Server
    from stubengine.engine import Engine

    engine = Engine(spec)
    engine.ready.wait()
    if engine.gone:
        fail(
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
            "{'EngineCore': %s}" % engine.process.wait(),
            ("vllm/entrypoints/launchers/api_server/entry.py", 104, "build_async_engine_client_from_engine_args"),
            ("vllm/v1/engine/utils.py", 1431, "wait_for_engine_startup"),
        )
        return 0 if "exit0" in faults.active() else 1
    keys = list(args.api_key or [])
    if not keys and os.environ.get("VLLM_API_KEY"):
        keys = [os.environ["VLLM_API_KEY"]]
    server = Server(
        sock,
        engine,
        {
            "names": args.served_model_name or [args.model],
            "model": args.model,
            "api_keys": keys,
            "max_model_len": spec["max_model_len"],
            "reasoning": bool(args.reasoning_parser),
            "pooling": args.runner == "pooling",
            "tools": bool(args.enable_auto_tool_choice and args.tool_call_parser),
        },
    )
    log.info("entry.py:136", "Supported tasks: ['generate']")
    log.info("entry.py:140", "Starting vLLM server on http://%s:%d", args.host or "0.0.0.0", args.port or 8000)
    log.info("launcher.py:186", "Available routes are:")
    for route in ROUTES:
        log.info("launcher.py:195", "Route: %s, Methods: %s", *route)
    threading.Thread(target=watch_faults, daemon=True).start()
    server.server_activate()
    log.uvicorn("Started server process [%d]" % os.getpid())
    log.uvicorn("Waiting for application startup.")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    log.uvicorn("Application startup complete.")
    try:
        wait_for_end(engine, server)
    except Stop:
        drain(server, args.shutdown_timeout or 0)
    log.uvicorn("Shutting down")
    log.uvicorn("Waiting for application shutdown.")
    log.uvicorn("Application shutdown complete.")
    log.uvicorn("Finished server process [%d]" % os.getpid())
    return 0


def wait_for_end(engine, server):
    """Returns when the engine has failed, and a request got that error or the watchdog noticed it."""
    healthy = time.monotonic()
    while True:
        time.sleep(0.05)
        if not engine.errored:
            healthy = time.monotonic()
        elif server.failed.is_set() or time.monotonic() - healthy > WATCHDOG_S:
            time.sleep(0.2)  # the answer must be sent first
            return


def drain(server, limit_s):
    """vLLM's shutdown: abort requests immediately, or wait for them up to --shutdown-timeout.

    Until then it listens, and aborts new requests.
    """
    server.stopping.set()
    log.info(
        "launcher.py:267",
        "[shutdown] API server: stopping engine client mode=%s timeout=%ss",
        "drain" if limit_s else "abort",
        limit_s,
    )
    deadline = time.monotonic() + limit_s
    while server.answering and time.monotonic() < deadline:
        time.sleep(0.02)


def run(argv):
    """Runs `vllm serve ARGV`; returns the exit code."""
    args = flags.parse(argv)

    def stop(_signum, _frame):
        raise Stop

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    faults.active()  # refuses an unknown fault before anything starts
    log.info("api_utils.py:347", "\n       STUB  version %s\n       STUB  model   %s\n", VLLM_VERSION, args.model)
    log.info("api_utils.py:286", "non-default args: %s", flags.non_default(args))
    if args.enforce_eager:
        faults.log_lines("eager")
    try:
        directory = model.find(args.model, args.revision)
        config = model.config(directory)
    except model.LoadError as error:
        return fail(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, %s"
            % error,
            ("vllm/engine/arg_utils.py", 1890, "create_model_config"),
        )
    spec = spec_of(args, config)
    log.info("model.py:733", "Resolved architecture: %s", (config.get("architectures") or ["StubForCausalLM"])[0])
    log.info("model.py:2152", "Using max model len %d", spec["max_model_len"])
    if args.headless or spec["node_rank"]:
        return headless(spec)
    try:
        sock = bind(args.host, args.port or 8000)
    except OSError as error:
        return fail(
            "OSError: [Errno %s] %s" % (error.errno, error.strerror),
            ("vllm/entrypoints/launchers/launcher.py", 355, "create_server_socket"),
        )
    return serve(args, spec, sock)


def main(argv):
    """Entry point of the `vllm` command."""
    if argv[:1] in (["--version"], ["-v"]):
        print(VLLM_VERSION)
        return 0
    if argv[:1] != ["serve"]:
        sys.stderr.write(HELP)
        if argv and argv[0] not in ("-h", "--help"):
            sys.stderr.write("vllm: error: argument subparser: invalid choice: %r\n" % argv[0])
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    if any(a in ("-h", "--help") for a in argv[1:]):
        print(flags.build_parser(flags.table()).format_help())
        return 0
    release = faults.hold()
    try:
        code = run(argv[1:])
    except Stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        release()
        code = 0
    except ValueError as error:
        code = fail("ValueError: %s" % error)
    os._exit(code)
