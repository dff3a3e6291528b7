"""One rank: takes over the driver's environment as vLLM does, meets its master, loads its copy, steps along."""

import ipaddress
import json
import os
import socket
import sys
import threading
import time

from stubengine import fault_logs, faults, log, model, proc
from stubengine.wire import Channel, gloo_interface, interfaces, nccl_interface, setting

RENDEZVOUS_S = 60.0  # the real limits are 10 and 30 minutes: a test would not wait


class RankError(Exception):
    """The rank cannot go on; the message is what the log of a real one would show."""


def name_of(rank, tp, pp):
    """vLLM's name of a worker: Worker, Worker_TP1, Worker_PP1_TP0."""
    return "Worker%s%s" % ("_PP%d" % (rank // tp) if pp > 1 else "", "_TP%d" % (rank % tp) if tp > 1 else "")


def dump_env(number):
    """Writes os.environ where the lab asks for it, in the form that the real engine's lab plugin has.

    The file appears whole or not at all, for its owner alone: it holds what secrets the engine has.
    """
    directory = os.environ.get("SPARKCLUSTER_LAB_DUMP_ENV")
    if not directory:
        return
    hostname, pid = socket.gethostname(), os.getpid()
    path = os.path.join(directory, "rank-%s-%d.json" % (hostname, pid))
    try:
        os.makedirs(directory, exist_ok=True)
        with os.fdopen(os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            json.dump({"rank": number, "hostname": hostname, "pid": pid, "environ": dict(os.environ)}, f)
        os.replace(path + ".tmp", path)
    except OSError as error:
        log.warning("rank.py:1", "cannot write %s: %s", path, error)


def load(directory, chatty):
    """Loads the weights as far as a stub does; returns their digest. model.LoadError, or the faults of loading."""
    active = faults.active()
    start_s = time.monotonic()
    if "die-load" in active:
        time.sleep(float(active["die-load"]))
        os._exit(1)
    if "oom" in active:
        raise model.LoadError(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "119.68 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 117.31 GiB "
            "memory in use."
        )
    files = model.weight_files(directory)
    pause_s = float(active.get("slow-start", 0)) / len(files)
    if chatty:
        log.shards(0, len(files), 0.0)
    digests, size = [], 0
    for i, path in enumerate(files):
        time.sleep(pause_s)
        part, digest = model.read_weights(path)
        size += part
        digests.append(digest)
        if chatty:
            log.shards(i + 1, len(files), time.monotonic() - start_s)
        faults.wait_while("hang-load")
    took_s = time.monotonic() - start_s
    if chatty:
        log.info("default_loader.py:501", "Loading weights took %.2f seconds", took_s)
    log.info("gpu_model_runner.py:5149", "Model loading took %.2f GiB memory and %.6f seconds", size / 2**30, took_s)
    return "-".join(digests)


def check_fabric():
    """What NCCL would say of its network, and the faults of it."""
    active = faults.active()
    for kind, line in (("nccl-memlock", fault_logs.MEMLOCK), ("nccl-gid", fault_logs.GID)):
        if kind in active:
            fault_logs.nccl(line)
            raise RankError("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")
    picked = nccl_interface(os.environ.get("NCCL_SOCKET_IFNAME"))
    oob = "%s:%s<0>" % (picked[0], picked[1].ip) if picked else "?"
    fault_logs.log_active(active)
    if "tcp-fallback" in active:
        return
    if os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        fault_logs.nccl("INFO Bootstrap: Using %s" % oob)
        fault_logs.nccl(
            "INFO NET/IB : Using %s; OOB %s"
            % (
                " ".join(
                    "[%d]%s:1/RoCE" % pair
                    for pair in enumerate(os.environ.get("NCCL_IB_HCA", "").lstrip("=").split(","))
                ),
                oob,
            )
        )
        fault_logs.nccl("INFO Using network IB")


def meet(spec):
    """Two connections to the master, from the addresses that Gloo's and NCCL's variables name."""
    limit_s = setting("STUB_RENDEZVOUS_S", RENDEZVOUS_S)
    try:
        gloo = gloo_interface(os.environ.get("GLOO_SOCKET_IFNAME"))
        nccl = nccl_interface(os.environ.get("NCCL_SOCKET_IFNAME"))
    except LookupError as error:
        raise RankError("RuntimeError: %s" % error)
    faults.wait_while("hang-rendezvous")
    deadline = time.monotonic() + limit_s
    master = (spec["master"][0], spec["master"][1])
    channels = []
    for kind, source in (("gloo", gloo), ("nccl", nccl[1] if nccl else None)):
        channels.append(greet(kind, master, source, deadline, limit_s, spec))
    return channels


def greet(kind, master, source, deadline, limit_s, spec):
    """One greeted connection; RankError in Gloo's words when the master does not answer within the limit."""
    bound = (str(source.ip), 0) if source else None
    while True:
        left_s = deadline - time.monotonic()
        try:
            sock = socket.create_connection(master, timeout=max(left_s, 0.05), source_address=bound)
            channel = Channel(sock)
            channel.send(hello=kind, rank=spec["rank"], key=spec["key"], pid=os.getpid())
            if channel.receive() is not None:
                sock.settimeout(None)
                return channel
        except socket.timeout:
            break
        except OSError as error:
            if left_s <= 0:
                break
            last = error  # the master may not listen yet
            if last.errno == 99:
                raise RankError("RuntimeError: Cannot assign requested address %s" % (bound,))
        if deadline - time.monotonic() <= 0:
            break
        time.sleep(0.1)
    raise RankError(
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "timed out connecting: SO_ERROR: Connection timed out, remote=[%s]:%d (from %s, %s, waited %.0f s)"
        % (master[0], master[1], bound[0] if bound else "any address", kind, limit_s)
    )


def adopt(env):
    """vLLM's newer Ray executor: the driver's variables fill in what this node's environment lacks."""
    for name, value in (env or {}).items():
        os.environ.setdefault(name, value)


def run(spec):
    """The life of a rank, from its meeting with the master until that is gone."""
    log.info(
        "parallel_state.py:1906",
        "world_size=%d rank=%d local_rank=%d distributed_init_method=tcp://%s:%d backend=nccl",
        spec["world"],
        spec["rank"],
        spec["local_rank"],
        spec["master"][0],
        spec["master"][1],
    )
    gloo, _nccl = meet(spec)
    check_fabric()
    tp_rank = spec["rank"] % spec["tp"]
    log.info(
        "parallel_state.py:2350",
        "rank %d in world size %d is assigned as DP rank 0, PP rank %d, PCP rank 0, "
        "TP rank %d, ETP rank %d, EP rank N/A, EPLB rank N/A",
        spec["rank"],
        spec["world"],
        spec["rank"] // spec["tp"],
        tp_rank,
        tp_rank,
    )
    log.configure(name_of(spec["rank"], spec["tp"], spec["pp"]))
    dump_env(spec["rank"])
    log.info("gpu_model_runner.py:5040", "Starting to load model %s...", spec["model"])
    try:
        directory = model.find(spec["model"], spec["revision"])
        digest = load(directory, chatty=spec["rank"] == 0)
    except model.LoadError as error:
        gloo.send(failed=str(error))
        raise RankError(str(error))
    gloo.send(loaded=digest)
    for message in gloo.messages():
        if message.get("op") != "step":
            continue
        faults.wait_while("hang-serve")
        gloo.send(step=message["step"])
    if spec["outlive"]:
        threading.Event().wait()  # a follower of vLLM's own multi-node mode does not notice (vllm#32136)


def obey():
    """Says what its faults say, and ends this process when it is told to die while serving."""
    while True:
        active = faults.active()
        fault_logs.log_active(active)
        if "die-serve" in active:
            fault_logs.log_cause(active["die-serve"])
            sys.stdout.flush()
            time.sleep(0.2)  # so that whoever forwards the words has them before the death
            os._exit(1)
        time.sleep(0.1)


def main(channel):
    """Entry of the rank process: its specification is the first message from the one that started it."""
    spec = channel.receive()
    if spec is None:
        os._exit(1)
    proc.serve_parent(channel, lambda message: None)
    adopt(spec["env"])
    log.configure("Worker")
    threading.Thread(target=obey, daemon=True).start()
    try:
        run(spec)
    except RankError as error:
        frames = [
            ("vllm/v1/executor/multiproc_executor.py", 921, "worker_main"),
            ("vllm/v1/worker/gpu_worker.py", 389, "init_device"),
        ]
        log.traceback("multiproc_executor.py:953", "WorkerProc failed to start.", frames, str(error))
        channel.send(failed=str(error))
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)


def on_same_network(address, interface_name):
    """Whether a rank that calls from ``address`` is on the network of the master's own interface."""
    mine = interfaces().get(interface_name)
    return mine is None or ipaddress.ip_address(address) in mine.network
