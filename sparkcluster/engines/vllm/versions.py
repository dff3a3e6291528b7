"""The vLLM version in an image: tables of NGC's and upstream's tags.

For other tags the version is unknown, or known within bounds. A version that a node reports takes precedence: see
``reported``.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from sparkcluster.fit import defaults
from sparkcluster.fit.defaults import Version

Family = Literal["upstream", "ngc", "other"]

# NVIDIA's release notes of each (docs.nvidia.com/deeplearning/frameworks/vllm-release-notes); of 25.12
# https://github.com/vllm-project/vllm/issues/31424; of 26.02 and 26.04 https://vlaicu.io/posts/dgx-vllm-playbook/.
NGC: dict[str, Version] = {
    "25.12": (0, 11, 1),
    "26.01": (0, 11, 1),
    "26.02": (0, 15, 1),
    "26.03": (0, 17, 1),
    "26.04": (0, 19, 0),
    "26.05": (0, 20, 1),
    "26.10": (0, 31, 0),
}

# Tags of vllm/vllm-openai without a version, with the oldest and the newest vLLM that they may contain.
# https://vlaicu.io/posts/dgx-vllm-playbook/ puts nightly at 0.23.x in mid-2026, and both gemma4 tags below 0.20.
# cu130-nightly is left open: the same guide puts it at 0.23.x, while https://github.com/vllm-project/vllm/issues/42738
# saw it stay at 0.19.
UPSTREAM: dict[str, tuple[Version | None, Version | None]] = {
    "nightly": ((0, 23), None),
    "latest": ((0, 23), None),
    "cu130-nightly": ((0, 19), None),
    "gemma4": ((0, 18, 2), (0, 18, 2)),
    "gemma4-cu130": ((0, 18, 2), (0, 19, 999)),
}

_UPSTREAM = re.compile(r"(docker\.io/)?vllm/vllm-openai(-[a-z0-9]+)?")
_NGC = re.compile(r"nvcr\.io/nvidia/vllm")
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")
_PLATFORM = re.compile(r"-(aarch64|arm64|x86_64)$")
_MOVING = re.compile(r"(^|-)(latest|nightly)(-|$)|^gemma4?(-cu130)?$|^$")


@dataclasses.dataclass(frozen=True, slots=True)
class Versions:
    """The vLLM versions that an engine may have, from the oldest to the newest; None if unknown."""

    low: Version | None = None
    high: Version | None = None

    @property
    def exact(self) -> Version | None:
        """The version if it is known exactly, else None."""
        return self.low if self.low == self.high else None

    def since(self, *version: int) -> bool | None:
        """Whether it is ``version`` or newer; None if unknown."""
        if self.low is not None and self.low >= version:
            return True
        if self.high is not None and self.high < version:
            return False
        return None

    @property
    def candidates(self) -> tuple[Version, ...]:
        """One version for each possible behaviour, the oldest first."""
        if self.exact is not None:
            return (self.exact,)
        first = self.low or OLDEST
        possible = (change for change in defaults.SINCE.values() if change > first and self.since(*change) is not False)
        return tuple(sorted({first, *possible}))

    @property
    def utilizations(self) -> list[float]:
        """Possible defaults of --gpu-memory-utilization, the smallest first."""
        return sorted(map(defaults.utilization, self.candidates))

    def __str__(self) -> str:
        if self.exact is not None:
            return f"vLLM {dotted(self.exact)}"
        if self.low is not None and self.high is not None:
            return f"vLLM between {dotted(self.low)} and {dotted(self.high)}"
        if self.low is not None:
            return f"vLLM {dotted(self.low)} or newer"
        return "vLLM of unknown version" if self.high is None else f"vLLM up to {dotted(self.high)}"


OLDEST = min(NGC.values())
UNKNOWN = Versions()


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image, as far as its reference tells.

    Attributes:
        family: its publisher.
        tag: text after the colon, empty if there is only a digest.
        moves: whether the tag is reassigned to new builds.
    """

    family: Family
    versions: Versions = UNKNOWN
    tag: str = ""
    moves: bool = False


def of_reference(reference: str) -> Image:
    """The image of ``reference``, by the tables above."""
    name, at, _ = reference.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = name, ""
    moves = not at and bool(_MOVING.search(tag))
    if _NGC.fullmatch(repository):
        return Image("ngc", _ngc(tag), tag, moves)
    if _UPSTREAM.fullmatch(repository):
        known = UPSTREAM.get(_PLATFORM.sub("", tag))
        return Image("upstream", Versions(*known) if known else of_text(tag), tag, moves)
    # A local image has no registry that could reassign its tag.
    return Image("other", tag=tag, moves=moves and "/" in repository)


def of_text(text: str) -> Versions:
    """The version at the start of a text such as ``0.23.1rc1+cu130``; unknown without one."""
    version = numbers(text)
    return Versions(version, version)


def numbers(text: str) -> Version | None:
    """The numbers of a version, without suffixes of candidates and builds; None without numbers."""
    found = _VERSION.match(text)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def dotted(version: Version) -> str:
    """``version`` as text."""
    return ".".join(map(str, version))


def _ngc(tag: str) -> Versions:
    """The versions of an NGC release; for a release that is not in the table, the range between its neighbours."""
    release = tag[:5]
    if not re.fullmatch(r"\d\d\.\d\d", release):
        return UNKNOWN
    if release in NGC and "post" not in tag:
        return Versions(NGC[release], NGC[release])
    older = [version for name, version in NGC.items() if name <= release]
    newer = [version for name, version in NGC.items() if name > release]
    return Versions(older[-1] if older else None, newer[0] if newer else None)
