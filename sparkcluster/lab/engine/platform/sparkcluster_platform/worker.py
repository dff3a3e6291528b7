"""The CPU worker that can be a stage of a pipeline, and tells its environment once it is ready.

Apart from the platform module, since importing vLLM's worker needs the platform to be chosen already.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker

from sparkcluster_platform import dump_environment


class LabWorker(CPUWorker):
    """vLLM's CPU worker with the last step of its initialisation, the warm-up, completed."""

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as the CPU worker does, then write the environment if that was asked for."""
        result = super().compile_or_warm_up_model()
        runner = self.model_runner
        # The run that vLLM 0.32 makes this buffer in is left out on a CPU in eager mode; without it every
        # later pipeline stage fails its first request with a bare AssertionError.
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        dump_environment(self.rank)
        return result
