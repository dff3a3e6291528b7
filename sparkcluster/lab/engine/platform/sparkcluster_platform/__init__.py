"""vLLM's CPU platform in the shape of a Spark: one logical GPU a node, for the lab and the demo.

vLLM finds this module through the entry point group ``vllm.platform_plugins`` (the installer writes the
distribution metadata that names it). It is installed beside vLLM, never imported by sparkcluster itself,
and does three things:

* ``ray_device_key = "GPU"``: vLLM's CPU platform names no Ray resource, so its Ray executor refuses it. With
  this key and ``ray start --num-gpus 1`` a virtual Spark is placed exactly as a real one is.
* Ranks on different nodes talk over the network: the CPU communicator goes by the name of a shared memory
  segment, which is the same on every node, and would wait for memory that the other node cannot see.
* When ``SPARKCLUSTER_LAB_DUMP_ENV`` names a directory, every rank writes what it really holds in
  ``os.environ`` there, after its initialisation and from within its own process: both of vLLM's Ray executors
  change the environment at run time, which ``/proc/PID/environ`` never shows.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from vllm.platforms.cpu import CpuPlatform

DUMP_VARIABLE = "SPARKCLUSTER_LAB_DUMP_ENV"


def register() -> str:
    """Entry point: the import path of the platform class, as vLLM wants it."""
    return f"{__name__}.LabPlatform"


class LabPlatform(CpuPlatform):
    """The CPU platform with a Ray device key, made fit for ranks on more than one node."""

    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Choose the worker before the CPU platform fills in its own."""
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = f"{__name__}.worker.LabWorker"
        super().check_and_update_config(vllm_config)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Import path of the communicator, as vLLM wants it."""
        return f"{__name__}.communicator.LabCommunicator"


def dump_environment(rank: int) -> None:
    """Write this process's environment to ``rank-HOSTNAME-PID.json``, if a directory for it is named.

    The file appears whole or not at all, and is readable by its owner alone: it holds whatever secrets the
    engine was started with.
    """
    directory = os.environ.get(DUMP_VARIABLE)
    if not directory:
        return
    hostname, pid = socket.gethostname(), os.getpid()
    path = Path(directory) / f"rank-{hostname}-{pid}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.touch(0o600)
    temporary.write_text(json.dumps({"rank": rank, "hostname": hostname, "pid": pid, "environ": dict(os.environ)}))
    temporary.replace(path)
