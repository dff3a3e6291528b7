"""A rank: applies the driver's environment as vLLM does, connects to its master, loads its weights, answers steps."""

import errno
import os
import socket
import threading
import time

from stubengine import faults, log, model, proc
from stubengine.wire import Channel, bound_address

RENDEZVOUS_S = 60.0  # the real limits are 10 and 30 minutes, too long for a test
CLOSED = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:535] Connection closed by peer [%s]:29501"


class RankError(Exception):
    """The rank cannot continue; the message is from a real log."""


def name_of(rank, tp, pp):
    """vLLM's name of a worker: Worker, Worker_TP1, Worker_PP1_TP0."""
    return "Worker%s%s" % ("_PP%d" % (rank // tp) if pp > 1 else "", "_TP%d" % (rank % tp) if tp > 1 else "")


def load_model(spec, number):
    """Checks the weights in place of loading them; returns their digest.

    Raises model.LoadError, also for faults during loading.
    """
    log.info("gpu_model_runner.py:5040", "Starting to load model %s...", spec["model"])
    directory = model.find(spec["model"], spec["revision"])
    active = faults.active()
    start_s = time.monotonic()
    if "die-load" in active:
        time.sleep(float(active["die-load"]))
        os._exit(1)
    if "oom" in active:
        raise model.LoadError(
            faults.OUT_OF_MEMORY + " Including non-PyTorch memory, this process has 117.31 GiB memory in use."
        )
    files = model.weight_files(directory)
    pause_s = float(active.get("slow-start", 0)) / len(files)
    shown = log.shards if number == 0 else lambda *_: None
    shown(0, len(files), 0.0)
    digests, size = [], 0
    for i, path in enumerate(files):
        time.sleep(pause_s)
        part, digest = model.read_weights(path)
        size += part
        digests.append(digest)
        shown(i + 1, len(files), time.monotonic() - start_s)
        faults.wait_while("hang-load")
    took_s = time.monotonic() - start_s
    if number == 0:
        log.info("default_loader.py:501", "Loading weights took %.2f seconds", took_s)
    log.info("gpu_model_runner.py:5149", "Model loading took %.2f GiB memory and %.6f seconds", size / 2**30, took_s)
    return "-".join(digests)


def check_fabric():
    """Logs the network that NCCL uses."""
    active = faults.log_active()
    if "tcp-fallback" not in active and os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        log.nccl("INFO Using network IB")


def meet(spec):
    """The channel to the master, from the address of Gloo's interface; raises RankError with Gloo's message."""
    try:
        source = bound_address()
    except LookupError as error:
        raise RankError("RuntimeError: %s" % error)
    address, port = spec["master"]
    deadline = time.monotonic() + RENDEZVOUS_S
    while (remaining_s := deadline - time.monotonic()) > 0:
        try:
            sock = socket.create_connection((address, port), remaining_s, (source, 0) if source else None)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise RankError("RuntimeError: Cannot assign requested address %s" % source)
        else:
            channel = Channel(sock)
            channel.send(rank=spec["rank"])
            channel.greeting = channel.receive()
            if channel.greeting:
                sock.settimeout(None)
                return channel
        time.sleep(0.1)  # the master might not listen yet
    raise RankError(
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "timed out connecting: SO_ERROR: Connection timed out, remote=[%s]:%d (from %s, waited %.0f s)"
        % (address, port, source or "any address", RENDEZVOUS_S)
    )


def subscribe(queue):
    """Waits until all ranks read SGLang's queue; like ZeroMQ, it retries without limit and logs nothing."""
    while True:
        try:
            sock = socket.create_connection(queue, 5)
        except OSError:
            time.sleep(0.5)
        else:
            sock.settimeout(None)
            return Channel(sock).receive()


def run(spec, loaded=lambda: None):
    """Runs a rank from its rendezvous with the master until the master stops."""
    tp_rank, pp_rank = spec["rank"] % spec["tp"], spec["rank"] // spec["tp"]
    log.info(
        "parallel_state.py:1906",
        "world_size=%d rank=%d local_rank=%d distributed_init_method=tcp://%s:%d backend=nccl",
        spec["world"],
        spec["rank"],
        spec["local_rank"],
        *spec["master"],
    )
    gloo = meet(spec)
    check_fabric()
    if "queue" in gloo.greeting:
        subscribe(tuple(gloo.greeting["queue"]))
    log.info(
        "parallel_state.py:2350",
        "rank %d in world size %d is assigned as DP rank 0, PP rank %d, PCP rank 0, "
        "TP rank %d, ETP rank %d, EP rank N/A, EPLB rank N/A",
        spec["rank"],
        spec["world"],
        pp_rank,
        tp_rank,
        tp_rank,
    )
    log.configure(name_of(spec["rank"], spec["tp"], spec["pp"]))
    try:
        digest = load_model(spec, spec["rank"])
    except model.LoadError as error:
        gloo.send(failed=str(error))
        raise RankError(str(error))
    gloo.send(loaded=digest)
    loaded()
    for message in gloo.messages():
        if message["op"] == "shutdown":
            return
        faults.wait_while("hang-serve")
        gloo.send(step=message["step"])
    if spec["backend"] == "sglang":
        raise RankError(CLOSED % spec["master"][0])
    if spec["node_rank"]:
        threading.Event().wait()  # a follower of vLLM's own multi-node mode does not notice (vllm#32136)


def main(channel):
    """Entry point of the rank process; its specification is the first message from its parent."""
    spec = channel.receive()
    if spec is None:
        os._exit(1)
    proc.serve_parent(channel, lambda message: None)
    # vLLM's newer Ray executor: variables that this node's environment lacks are taken from the driver
    for name, value in (spec["env"] or {}).items():
        os.environ.setdefault(name, value)
    log.configure("Worker")
    faults.obey()
    try:
        run(spec, lambda: channel.send(loaded=True))
    except RankError as error:
        trace = log.traceback(
            str(error),
            ("vllm/v1/executor/multiproc_executor.py", 921, "worker_main"),
            ("vllm/v1/worker/gpu_worker.py", 389, "init_device"),
        )
        log.error("multiproc_executor.py:953", "WorkerProc failed to start.\n%s", trace)
        channel.send(failed=str(error))
        os._exit(1)
    os._exit(0)
