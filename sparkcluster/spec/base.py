"""Common base of all sections of inventory and playbook."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

# Names end up in container names, labels and file names on the nodes.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)]
# ',' ':' and '"' have a meaning in Docker's --mount and --volume.
NodePath = Annotated[str, Field(pattern=r'^(/|~$|~/)[^\x00-\x1f\x7f,:"]*$', max_length=1024)]
# Beside the playbook, if it begins with ./
MountSource = Annotated[str, Field(pattern=r'^(/|~$|~/|\./)[^\x00-\x1f\x7f,:"]*$', max_length=1024)]
BesidePath = Annotated[str, Field(pattern=r'^\./[^\x00-\x1f\x7f,:"]*$', max_length=1024)]
LocalPath = Annotated[str, Field(pattern=r"^(/|~)[^\x00-\x1f\x7f]*$", max_length=1024)]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
FindingCode = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9]*-[0-9]{3}$")]


def _one_capability(name: str) -> str:
    if name in {"ALL", "CAP_ALL"}:
        raise ValueError("must name the capabilities one by one: ALL gives the container control of the node")
    return name.removeprefix("CAP_")


def _no_disk(path: str) -> str:
    if re.match(r"/dev/(k?mem|port|disk|mapper|md|dm-|nvme|sd|vd|xvd|hd|loop|mmcblk)", path):
        raise ValueError(f"{path} would give the container control of the node")
    return path


# A device file of the node, by the same path in the container.
Device = Annotated[
    str, Field(pattern=r"^/dev/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", max_length=128), AfterValidator(_no_disk)
]
Capability = Annotated[str, Field(pattern=r"^[A-Z][A-Z_]{2,31}$"), AfterValidator(_one_capability)]


class Section(BaseModel):
    """One mapping of a file: unknown keys are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _left_empty(cls, data: Any) -> Any:
        """An empty key, as when all lines below it are commented out, counts as absent."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: value
            for key, value in data.items()
            if value is not None or key not in fields or fields[key].is_required()
        }


def options(annotation: Any) -> Iterator[Any]:
    """The branches of a union, else the type itself; ``Annotated`` is unwrapped."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from options(get_args(annotation)[0])
    elif origin in {Union, types.UnionType}:
        for branch in get_args(annotation):
            yield from options(branch)
    else:
        yield annotation
