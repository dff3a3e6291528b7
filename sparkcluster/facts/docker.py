"""Facts about Docker: the engine, the playbook's image, ranks, and the software in an image."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field

from sparkcluster.facts.base import Fact, Few, Number, Port, Raw, Sha256, Unread, Version
from sparkcluster.facts.release_record import ImageId, RankName


class Docker(Fact):
    """The Docker engine, from its API.

    Attributes:
        images_dir: directory of its images: containerd's if containerd stores them, else ``root_dir``.
        cdi_driver: driver version whose libraries the CDI specification mounts; None if no file has one.
        cgroup_driver: systemd or cgroupfs.
    """

    version: Version
    storage_driver: str
    root_dir: str
    images_dir: str = ""
    runtimes: Few[str]
    cdi_devices: Few[str] = ()
    containerd_store: bool = False
    snap: bool = False
    cdi_driver: Version | None = None
    cgroup_driver: str | None = None


class EngineFacts(Fact):
    """Software in an image, or in the engine's Python of runtime ``process``.

    Attributes:
        flags: options of its command, without leading dashes; None if not queried.
        tool_parsers: values of --tool-call-parser; None if not queried.
        reasoning_parsers: values of --reasoning-parser; None if not queried.
        compiler: whether there is a C compiler.
        lacks: packages that the gateway needs and that are missing; None if not queried.
        nccl_loaded: version of the NCCL that torch would load; None if it could not be loaded.
        verbs: whether libibverbs and its provider for ConnectX can be loaded; None if not queried.
    """

    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_/.][^\x00-\x1f\x7f]*$")]
    python_version: Version
    platform: Version
    version: Version | None = None
    ray_version: Version | None = None
    torch_version: Version | None = None
    flags: tuple[str, ...] | None = None
    tool_parsers: tuple[str, ...] | None = None
    reasoning_parsers: tuple[str, ...] | None = None
    family: Literal["upstream", "ngc", "other"] = "other"
    compiler: bool = False
    lacks: Few[str] | None = None
    nccl_loaded: Version | None = None
    verbs: Literal["yes", "no libibverbs", "no mlx5"] | None = None


class Image(Fact):
    """The playbook's image on this node. ``inside`` is None until the image is inspected.

    ``digest`` is the image as any node can pull it, ``name@sha256:…``; None if it is from no registry.
    ``config_sum`` is a checksum of the settings that a container starts with: environment, entry point, command,
    directory and user. Unlike the ID, it is the same in every image store.
    ``user`` is the default user of the image; empty for root.
    ``label_version`` is the version in the label that identifies NVIDIA's own images, as ``com.nvidia.vllm.version``.
    """

    reference: str
    id: ImageId
    digest: Annotated[str, Field(pattern=r"^[A-Za-z0-9][^\s@]*@sha256:[0-9a-f]{64}$")] | None = None
    layers: Few[str] = ()
    entrypoint: Few[str] = ()
    env_names: Few[str] = ()
    config_sum: str | None = None
    architecture: str | None = None
    size_bytes: int = 0
    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:@$-]*$")] = ""
    label_version: Version | None = None
    inside: EngineFacts | Unread | None = None

    @property
    def build(self) -> str:
        """Identity of the image in every image store: the hash of its layers and of ``config_sum``.

        The ID differs between stores: containerd uses the hash of the manifest that was pulled or loaded.
        """
        content = json.dumps([self.layers, self.config_sum]).encode()
        return f"sha256:{hashlib.sha256(content).hexdigest()}" if self.layers else self.id


class LayerFile(Fact):
    """A layer's file in an archive of an image.

    Attributes:
        layer: diff ID of the layer, if files of several images are listed.
        digest: SHA-256 of the file; None if unknown.
        bytes: size; 0 if unknown.
    """

    layer: Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")] = ""
    digest: Sha256 | None = None
    bytes: Number = 0


class Layers(Fact):
    """Layers of images on this node; a copy of an image skips layers that are present.

    Attributes:
        files: of each layer of the playbook's image; empty if the image is missing.
        chains: if the image is missing, the diff IDs of every image in Docker's own store, lowest layer first.
        blobs: files in containerd's store, as far as sparkcluster has copied them.
    """

    files: Few[LayerFile] = ()
    chains: Few[Few[str]] = ()
    blobs: tuple[LayerFile, ...] = ()


class OtherContainer(Fact):
    """A running container that sparkcluster did not start.

    Attributes:
        engine: inference engine in the image name or the command, such as ``vllm``; empty if none. The command itself
            stays on the node, as it may contain a secret.
        ports: published ports of the node.
    """

    name: str
    engine: str = ""
    host_network: bool = False
    ports: Few[Port] = ()


class Rank(Fact):
    """A rank of any cluster: a container or a process.

    Attributes:
        exit_code: None while running, or if unknown.
        restarts: how often Docker has restarted it.
    """

    name: RankName
    state: Literal["created", "running", "restarting", "paused", "removing", "exited", "dead", "gone", "unknown"]
    exit_code: int | None = None
    oom_killed: bool = False
    restarts: int = 0
    pid: int | None = None
    image_id: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    error: str = ""
    labels: dict[str, Raw] = Field(default_factory=dict)
