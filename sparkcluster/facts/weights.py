"""Facts about the model's weights on a node."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from sparkcluster.facts.base import Fact, Number, Path


class WeightFile(Fact):
    """A file of a model, relative to its directory."""

    name: str
    size_bytes: int


class Foreign(Fact):
    """A path that this node's user cannot write, and the user ID of its owner.

    If it is ``missing`` it cannot be created; the owner is then the owner of the parent folder that denies it.
    """

    path: Path
    uid: Number
    missing: bool = False


class Weights(Fact):
    """The model on the node: the files that are served (``node.model_choice``).

    ``config`` is the parsed config.json, or Mistral's params.json, or the header of a GGUF; None if there is none.
    ``left_out_bytes`` is the size of files that are present but not served. ``other_revisions`` are complete commits in
    Hugging Face's cache, if the wanted revision is missing. ``foreign`` is a path that blocks a download or a copy.
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
        """Whether all files listed in config and index exist with their full size."""
        return self.path is not None and bool(self.files) and not self.missing and not self.truncated

    @property
    def size_bytes(self) -> int:
        """Size of all files that are served."""
        return sum(file.size_bytes for file in self.files)
