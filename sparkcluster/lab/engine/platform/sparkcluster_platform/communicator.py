"""A CPU communicator that uses shared memory only for ranks on the same node."""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.parallel_state import in_the_same_node_as


class LabCommunicator(CpuCommunicator):
    """vLLM's CPU communicator, which uses Gloo if its group spans nodes."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        # vLLM 0.32 compares only names, which are equal on all nodes; joining the segment then fails with
        # "open shm in SHMManager failed".
        return all(in_the_same_node_as(self.cpu_group)) and super()._all_group_ranks_share_shm_group_name()
