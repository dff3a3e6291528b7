"""Container images of the lab's engines: made once, kept, and put before every virtual Spark's Docker at no cost.

Nothing comes from a registry: the base is Debian by debootstrap, the engine what pip finds. The layers are
loaded once into the data root of a throw-away Docker engine, the template; a virtual Spark's Docker gets a
copy of the template's small files and the layers themselves by a read-only mount.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

ENGINES = ("vllm", "stub")
VARIANTS = ("", "-without-ray", "-upstream")
"""What may follow an engine's name: NGC-like with Ray, the same without Ray, as vLLM's own images."""


@dataclasses.dataclass(frozen=True, slots=True)
class ImageStore:
    """An image ready to be mounted.

    Attributes:
        engine: name and variant as they were asked for, as ``stub-without-ray``.
        reference: how a playbook calls the image.
        image_id: its ID, ``sha256:…``, the same on every virtual Spark.
        diff_ids: of its layers, lowest first.
        template: data root of the Docker engine that holds it.
    """

    engine: str
    reference: str
    image_id: str
    diff_ids: tuple[str, ...]
    template: Path


def prepare(engine: str) -> ImageStore:
    """The image of ``engine`` (``vllm``, ``stub``, either with a variant), made first if need be.

    Raises:
        UsageError: no such engine, or a program is missing.
        LabError: it could not be made.
    """
    from sparkcluster.lab import image_store

    return image_store.prepare(engine)


def mount_into(store: ImageStore, data_root: Path) -> None:
    """Give the Docker engine that will be started on ``data_root`` the image and its variants.

    To be called at every boot, for the mount goes with its namespace; images that were removed since stay so.
    """
    from sparkcluster.lab import image_store

    image_store.mount_into(store, data_root)


def archive(engine: str) -> Path:
    """What ``docker save`` of the image of ``engine`` writes, kept in the cache."""
    from sparkcluster.lab import image_store

    return image_store.archive(engine)
