"""Input of ``fit``: the data of a model, and the memory of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sparkcluster.fit.safetensors import Tensor

GIB = 1 << 30

INSTALLED_GIB = 128
"""A Spark's 128 GB are GiB: its ``/proc/meminfo`` has 127,535,084 kB, and CUDA reports the same."""
VISIBLE = 127_535_084 * 1024 / (INSTALLED_GIB * GIB)
"""Share of the installed memory that Linux and CUDA see; firmware reserves the rest."""
SYSTEM_BYTES = 5 * GIB
"""Memory used by the system: 4.9 GB and more were measured before an engine started (github.com/Sggin1/DGX-SPARK,
nvfp4-guide)."""
FREE_BYTES = 10 * 10**9
"""Reserve that must stay free: three models that left 9.9 GiB took 7.4 GiB more within 3 s, probably for a first large
prompt, and the machine froze (github.com/RyderFreeman4Logos/gb10-services, docs/research, July 2026)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Data of a model.

    Attributes:
        name: directory, file or repository.
        config: its config.json; None if it has none (an adapter) or it is unknown.
        tensors: tensors of its safetensors files; None if they were not read.
        size_bytes: published or reported size of these files, or None.
        revision: commit reported by the hub, or None.
        beside: companion repositories that were read, by name.
        recorded: sources of config and sizes, for a recorded model.
        note: why recorded data is used; empty if the model was read.
    """

    name: str
    config: Any
    tensors: tuple[Tensor, ...] | None = None
    size_bytes: int | None = None
    revision: str | None = None
    beside: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    recorded: tuple[str, ...] = ()
    note: str = ""

    @property
    def weights_bytes(self) -> int:
        """Bytes of its weights; 0 if unknown."""
        return self.size_bytes or sum(tensor.size_bytes for tensor in self.tensors or ())


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The memory of one node.

    Attributes:
        installed_bytes: nominal memory.
        visible_bytes: MemTotal.
        system_bytes: memory in use without engines.
    """

    installed_bytes: int
    visible_bytes: int
    system_bytes: int = SYSTEM_BYTES


def spark(memory_gb: float = INSTALLED_GIB) -> Machine:
    """A Spark, or a similar machine with this nominal memory."""
    installed = int(memory_gb * GIB)
    return Machine(installed, int(installed * VISIBLE))
