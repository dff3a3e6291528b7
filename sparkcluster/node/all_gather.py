"""A rank of an all-gather, run inside the serving image by its Python.

The last argument is its request as JSON. It prints a line that starts with the request's ``mark`` and has
``bus_gb_s`` and ``backend``, or ``failed``.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
import time
from typing import Any

_ROUNDS = 7  # after a first round, which connects


def bus_gb_s(gathered_bytes: int, world: int, seconds: float) -> float:
    """Bus bandwidth of an all-gather as in nccl-tests: the bytes that every rank must receive, per second."""
    return gathered_bytes * (world - 1) / world / seconds / 1e9


def measure(request: dict[str, Any], torch: Any, dist: Any) -> dict[str, Any]:
    """Gather ``bytes`` over all ranks several times and take the median."""
    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(
        backend,
        init_method="tcp://%s:%d" % (request["address"], request["port"]),
        rank=request["rank"],
        world_size=request["world"],
        timeout=dt.timedelta(seconds=request["limit_s"]),
    )
    device = "cuda" if cuda else "cpu"
    share = request["bytes"] // request["world"]
    own = torch.ones(share, dtype=torch.uint8, device=device)
    whole = torch.empty(share * request["world"], dtype=torch.uint8, device=device)

    def once() -> float:
        begin = time.perf_counter()
        dist.all_gather_into_tensor(whole, own)
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    taken = sorted([once() for _ in range(1 + _ROUNDS)][1:])
    dist.barrier()
    dist.destroy_process_group()
    median = taken[len(taken) // 2]
    return {"bus_gb_s": round(bus_gb_s(share * request["world"], request["world"], median), 3), "backend": backend}


def main(argv: list[str]) -> None:
    """Measure, and print the result."""
    request = json.loads(argv[-1])
    signal.alarm(int(request["limit_s"]))
    try:
        import torch
        import torch.distributed as dist

        answer = measure(request, torch, dist)
    except Exception as error:
        words = str(error).strip().splitlines()
        answer = {"failed": "%s: %s" % (type(error).__name__, words[0] if words else "")}
    sys.stdout.write(request["mark"] + json.dumps(answer) + "\n")
    sys.stdout.flush()
    # Threads of a backend that lost its peer would prevent the exit.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
