"""vLLM's CPU platform with one logical GPU per node, like a Spark, for the lab and the demo.

vLLM finds this module by the entry point group ``vllm.platform_plugins``, in distribution metadata that the
installer writes. It is installed into vLLM's environment; sparkcluster does not import it.

* ``ray_device_key = "GPU"``: vLLM's CPU platform has no Ray resource, so its Ray executor refuses it. With
  this key and ``ray start --num-gpus 1``, Ray places ranks on virtual Sparks as on real ones.
* Ranks on different nodes communicate over the network: the CPU communicator compares names of shared memory
  segments, which are equal on all nodes, and would wait for memory that the other node cannot see.
* If ``SPARKCLUSTER_LAB_DUMP_ENV`` is a directory, each rank writes its ``os.environ`` there after its
  initialization. ``/proc/PID/environ`` lacks the changes that vLLM's Ray executors make at run time.
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
    """Entry point: the import path of the platform class."""
    return f"{__name__}.LabPlatform"


class LabPlatform(CpuPlatform):
    """The CPU platform with a Ray device key, for ranks on more than one node."""

    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Set our worker before the CPU platform sets its default."""
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = f"{__name__}.worker.LabWorker"
        super().check_and_update_config(vllm_config)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Import path of the communicator."""
        return f"{__name__}.communicator.LabCommunicator"


def dump_environment(rank: int) -> None:
    """Write this process's environment to ``rank-HOSTNAME-PID.json`` in the directory of ``DUMP_VARIABLE``, if set.

    The file is written atomically, and only its owner can read it, since it has the engine's secrets.
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
