"""Base class and field types of inventory and playbook."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

FORMS: dict[str, str] = {}
"""Descriptions of the regular expressions of fields, for messages."""


def form(regex: str, words: str, **more: Any) -> Any:
    """A text field that matches ``regex``, described as ``words`` in messages."""
    FORMS[regex] = words
    return Field(pattern=regex, **more)


# Names end up in container names, labels and file names on the nodes.
Name = Annotated[
    str, form(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "a name of letters, digits and . _ - (no blanks)", max_length=63)
]


def _path(start: str, words: str, end: str = "") -> Any:
    """A path without characters that are special in Docker's ``--mount`` and ``--volume``."""
    regex = rf'^{start}[^\x00-\x1f\x7f,:"]*{end}$'
    return form(regex, f"{words}, without ',' ':' and '\"'", max_length=1024)


NodePath = Annotated[str, _path("(/|~$|~/)", "a path that starts with / or ~/")]
ContainerPath = Annotated[str, _path("/", "an absolute path")]
BesidePath = Annotated[str, _path(r"\./", "a path that starts with ./, the playbook's directory")]
MountSource = Annotated[str, _path(r"(/|~$|~/|\./)", "a path that starts with /, ~/ or ./")]
PermittedMount = Annotated[str, _path("(/|~$|~/)", "a path that starts with / or ~/ and may end in :rw", "(:rw)?")]
LocalPath = Annotated[str, form(r"^(/|~/)[^\x00-\x1f\x7f]*$", "a path that starts with / or ~/", max_length=1024)]
PLAYBOOK_KEY = r"^[A-Za-z_][\w/-]*(\.[\w/-]+)*$"


def settable(key: str) -> str:
    """``key`` of a playbook, unless it identifies the playbook."""
    if key.partition(".")[0] in {"name", "extends", "overlays", "variants"}:
        raise ValueError("cannot be set", "write a playbook that extends this one instead")
    return key


_KEY = form(PLAYBOOK_KEY, "a key of a playbook, such as args.max-model-len")
PlaybookKey = Annotated[str, _KEY, AfterValidator(settable)]
EnvName = Annotated[str, form(r"^[A-Za-z_][A-Za-z0-9_]*$", "a variable's name: letters, digits and _", max_length=128)]
FindingCode = Annotated[str, form(r"^[A-Z][A-Z0-9]*-[0-9]{3}$", "a finding code, such as NET-006")]


def _one_capability(name: str) -> str:
    if name in {"ALL", "CAP_ALL"}:
        raise ValueError("must list single capabilities: ALL gives the container control of the node")
    return name.removeprefix("CAP_")


def _no_disk(path: str) -> str:
    if re.match(r"/dev/(k?mem|port|disk|mapper|md|dm-|nvme|sd|vd|xvd|hd|loop|mmcblk)", path):
        raise ValueError(f"{path} would give the container control of the node")
    return path


# A device file of the node, with the same path in the container.
_DEVICE = r"^/dev/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$"
Device = Annotated[str, form(_DEVICE, "a device file, such as /dev/gdrdrv", max_length=128), AfterValidator(_no_disk)]
Capability = Annotated[
    str, form(r"^[A-Z][A-Z_]{2,31}$", "a Linux capability, such as SYS_NICE"), AfterValidator(_one_capability)
]


class Section(BaseModel):
    """A mapping in a file; unknown keys are errors, and values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _left_empty(cls, data: Any) -> Any:
        """Treat an empty key (such as when all lines below it are commented out) as absent."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: value
            for key, value in data.items()
            if value is not None or key not in fields or fields[key].is_required()
        }
