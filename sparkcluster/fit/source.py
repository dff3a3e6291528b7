"""What ``fit`` starts from: a model as it was read, and the memory of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sparkcluster.fit.safetensors import Tensor

GIB = 1 << 30

INSTALLED_GIB = 128
"""A Spark's 128 GB are GiB: ``/proc/meminfo`` of one says 127,535,084 kB, and CUDA sees as much."""
VISIBLE = 127_535_084 * 1024 / (INSTALLED_GIB * GIB)
"""What Linux and CUDA see of the installed memory; firmware reserves the rest."""
SYSTEM_BYTES = 5 * GIB
"""A Spark's own use: from 4.9 GB were measured before the engine started (github.com/Sggin1/DGX-SPARK,
nvfp4-guide)."""
FREE_BYTES = 10 * 10**9
"""What stays free of a Spark beside engines and its own use: three models that left 9.9 GiB took 7.4 GiB more within
3 s, probably for a first large prompt, and the machine froze (github.com/RyderFreeman4Logos/gb10-services,
docs/research, July 2026)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What is known of a model.

    Attributes:
        name: directory, file or repository.
        config: its config.json; None where it has none, as an adapter, or none is known.
        tensors: of its safetensors files; None where they were not read.
        size_bytes: of those files, where that was published or reported; None where there is nothing but the config.
        revision: the commit that the hub answered with; None where it is not known.
        beside: repositories that are loaded beside it, by name, as far as they were read.
        recorded: where config and sizes were found, if it is a recorded model.
        note: why it was not read where it is; empty if it was.
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
        """Bytes of its weights; 0 where they are not known."""
        return self.size_bytes or sum(tensor.size_bytes for tensor in self.tensors or ())


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The memory of one node.

    Attributes:
        installed_bytes: as it is sold.
        visible_bytes: MemTotal.
        system_bytes: what is in use without us.
    """

    installed_bytes: int
    visible_bytes: int
    system_bytes: int = SYSTEM_BYTES


def spark(memory_gb: float = INSTALLED_GIB) -> Machine:
    """A Spark, or a machine like it, by the memory on its label."""
    installed = int(memory_gb * GIB)
    return Machine(installed, int(installed * VISIBLE))
