"""A CPU worker that can be a pipeline stage, and writes its environment when it is ready.

It is not in the platform's module, since vLLM's worker can only be imported after the platform was selected.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker

from sparkcluster_platform import dump_environment


class LabWorker(CPUWorker):
    """vLLM's CPU worker that completes the warm-up, the last step of its initialization."""

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as the CPU worker does, then write the environment if requested."""
        result = super().compile_or_warm_up_model()
        runner = self.model_runner
        # vLLM 0.32 creates this buffer in a run that it skips on a CPU in eager mode. Without it, each later
        # pipeline stage fails its first request with an AssertionError that has no message.
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        dump_environment(self.rank)
        return result
