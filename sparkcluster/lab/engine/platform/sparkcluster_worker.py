"""The CPU worker that tells its environment once it is ready (see ``sparkcluster_platform``).

Apart from the platform module, since importing vLLM's worker needs the platform to be chosen already.
"""

from __future__ import annotations

from typing import Any

from sparkcluster_platform import dump_environment
from vllm.v1.worker.cpu_worker import CPUWorker


class LabWorker(CPUWorker):  # type: ignore[misc, unused-ignore]
    """vLLM's CPU worker; after warm-up, the last step of its initialisation, it writes its environment."""

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as the CPU worker does, then write the environment if that was asked for."""
        result = super().compile_or_warm_up_model()
        dump_environment(self.rank)
        return result
