"""What a node reports of Docker: the engine, the playbook's image, ranks; and the software in an image."""

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
        images_dir: directory of its images: that of containerd if it stores them, else ``root_dir``.
        cdi_driver: driver version whose libraries the CDI specification mounts, None if no file names one.
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
        flags: what this `vllm serve` takes, without dashes in front; None where that was never asked.
        tool_parsers: names that --tool-call-parser takes; likewise.
        reasoning_parsers: names that --reasoning-parser takes; likewise.
        compiler: whether there is a C compiler.
        lacks: packages that the gateway needs and that are not there; None where that was never asked.
        nccl_loaded: version that the NCCL reports which torch would load; None where it could not be loaded.
        verbs: whether libibverbs and its provider for ConnectX can be loaded; None where that was never asked.
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
    """The playbook's image on this node. ``inside`` is None until the image itself has been asked.

    ``digest`` is the image as any node can pull it, ``name@sha256:…``; None for one from no registry.
    ``config_sum`` is a checksum of what a container of it starts with: environment, entry point, command, directory
    and user. It is the same in every image store, which the ID is not.
    ``user`` is that of its containers as the image sets it, empty for root.
    ``labels_vllm`` is its label ``com.nvidia.vllm.version``, by which NVIDIA's own images of vLLM are told.
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
    labels_vllm: Version | None = None
    inside: EngineFacts | Unread | None = None

    @property
    def build(self) -> str:
        """What it is in every image store: the hash of its layers and of what a container of it starts with.

        An ID is not: containerd's store calls an image by the hash of what it was pulled or loaded as.
        """
        content = json.dumps([self.layers, self.config_sum]).encode()
        return f"sha256:{hashlib.sha256(content).hexdigest()}" if self.layers else self.id


class LayerFile(Fact):
    """The file of one layer in archives of an image.

    Attributes:
        layer: its diff ID, where a node lists files of several images.
        digest: SHA-256 of the file; None where it is not known.
        bytes: 0 where it is not known.
    """

    layer: Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")] = ""
    digest: Sha256 | None = None
    bytes: Number = 0


class Layers(Fact):
    """Layers of images on this node, by which a copy leaves out those that are there.

    Attributes:
        files: of each layer of the playbook's image; empty if that is missing.
        chains: where it is missing, the diff IDs of every image in an engine's own store, from the lowest.
        blobs: files in containerd's store, as far as sparkcluster has copied them.
    """

    files: Few[LayerFile] = ()
    chains: Few[Few[str]] = ()
    blobs: tuple[LayerFile, ...] = ()


class OtherContainer(Fact):
    """A running container that no sparkcluster started.

    Attributes:
        engine: inference engine that its image or command names, such as ``vllm``; empty for none. The command itself
            stays on the node, as it may have a secret.
        ports: of the node that it publishes.
    """

    name: str
    engine: str = ""
    host_network: bool = False
    ports: Few[Port] = ()


class Rank(Fact):
    """One rank that any sparkcluster started: a container or a process.

    Attributes:
        exit_code: None while it runs, or where it is unknown.
        restarts: how often Docker has started it again.
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
