"""What a node reports of the model's weights."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact, Number, Path


class WeightFile(Fact):
    """One file of a model, relative to its directory."""

    name: str
    size_bytes: int


class Foreign(Fact):
    """A path that this node's user cannot write, and the user ID of its owner.

    Where it is ``missing`` it cannot be created, and the owner is that of the folder above which denies it.
    """

    path: Path
    uid: Number
    missing: bool = False


class Weights(Fact):
    """The model on the node, as far as it is served: ``node.model_choice``.

    ``config`` is its parsed config.json, or Mistral's params.json, or what the header of a GGUF says; None without one.
    ``left_out_bytes`` are of files that are there and not served. ``other_revisions`` are complete commits in Hugging
    Face's cache, where the wanted revision is not there. ``foreign`` is in the way of a download or a copy.
    """

    path: Path | None
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")] | None = None
    config: dict[str, Any] | None = None
    files: tuple[WeightFile, ...] = ()
    left_out_bytes: Number = 0
    missing: tuple[str, ...] = ()
    truncated: tuple[str, ...] = ()
    other_revisions: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")], ...] = ()
    foreign: Foreign | None = None

    @property
    def complete(self) -> bool:
        """Whether all files listed in config and index exist at full length."""
        return self.path is not None and bool(self.files) and not self.missing and not self.truncated

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that are served."""
        return sum(file.size_bytes for file in self.files)
