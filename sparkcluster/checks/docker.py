"""Checks of the Docker engine of each node."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import Docker, Facts, Unread, read
from sparkcluster.node.shared import LABEL_CLUSTER

CDI_REFRESH = "sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"


@check(
    "HOST-001",
    "Docker can be used by the SSH user",
    scope="container",
    source="docs.docker.com, Linux post-installation steps",
    remedy="sudo usermod -aG docker USER and a new login; or install and start the engine",
)
def docker(context: Context) -> Iterator[Seen]:
    """No rank can be started, for every rank is a container that this user starts.

    DGX OS comes with Docker, and without its user in the group `docker`. Rootless engines and `DOCKER_HOST`s that
    are no local socket are not supported.
    """
    for name, facts in context.facts.items():
        if isinstance(facts.docker, Unread):
            said = facts.docker.unread.lower()
            if "permission denied" in said:
                summary = f"{facts.user} may not use Docker on {name}"
                remedy = [f"sudo usermod -aG docker {facts.user}", "log out and in again, or reboot the node"]
            elif "no such file" in said or "not found" in said:
                summary = f"no Docker engine runs on {name}"
                remedy = ["sudo systemctl enable --now docker", "sudo apt-get install -y docker.io   if there is none"]
            else:
                summary = f"the Docker engine of {name} does not answer"
                remedy = ["sudo systemctl restart docker", "journalctl -u docker -n 50"]
            yield Seen(name, summary, facts.docker.unread, tuple(remedy))


@check(
    "HOST-002",
    "Docker hands GPUs to containers",
    scope="container",
    source="NVIDIA Container Toolkit, installation guide",
    remedy="sudo nvidia-ctk runtime configure --runtime=docker, then sudo systemctl restart docker",
)
def gpu_runtime(context: Context) -> Iterator[Seen]:
    """`docker run --gpus all` ends with `could not select device driver` without NVIDIA's container toolkit."""
    for name, engine in _engines(context):
        if "nvidia" not in engine.runtimes and not _has_cdi(engine):
            yield Seen(
                name,
                f"the Docker engine of {name} has no nvidia runtime",
                f"runtimes: {', '.join(engine.runtimes) or 'none'}",
                ("sudo nvidia-ctk runtime configure --runtime=docker", "sudo systemctl restart docker"),
            )


@check(
    "HOST-025",
    "Docker is not a snap",
    severity="warning",
    scope="container",
    source="NVIDIA Container Toolkit, supported platforms; docs.docker.com, Install on Ubuntu",
    remedy="sudo snap remove docker, then install docker.io by apt",
)
def snap(context: Context) -> Iterator[Seen]:
    """Containers of a snap see neither the driver's libraries nor what lies outside /home.

    The launch then ends with `could not select device driver` or with a mount that is refused. What apt installs
    has neither limit.
    """
    for name, engine in _engines(context):
        if engine.snap:
            yield Seen(
                name,
                f"Docker on {name} is a snap",
                engine.root_dir,
                (
                    "sudo snap remove docker",
                    "sudo apt-get install -y docker.io nvidia-container-toolkit",
                    "sudo nvidia-ctk runtime configure --runtime=docker",
                    "sudo systemctl restart docker",
                ),
            )


@check(
    "HOST-026",
    "The CDI specification is of the driver that runs",
    scope="container",
    source="NVIDIA Container Toolkit, Container Device Interface support",
    remedy=CDI_REFRESH,
)
def cdi(context: Context) -> Iterator[Seen]:
    """Containers are given libraries of a driver that is gone: they do not start, or lose their GPU while they run.

    The specification names files by the driver's version, as libcuda.so.580.95.05, and is written anew by
    nvidia-cdi-refresh. Where Docker has the nvidia runtime besides, most containers do not use it: a warning then.
    """
    for name, engine in _engines(context):
        driver = read(context.facts[name].driver)
        if engine.cdi_driver is None or driver is None or engine.cdi_driver == driver:
            continue
        yield Seen(
            name,
            f"the CDI specification of {name} is of another driver",
            f"written for {engine.cdi_driver}, {driver} is loaded",
            (CDI_REFRESH, "sudo systemctl restart docker"),
            severity="warning" if "nvidia" in engine.runtimes else "error",
        )


@check(
    "HOST-027",
    "Docker keeps images in layers",
    severity="warning",
    scope="container",
    source="docs.docker.com, Select a storage driver",
    remedy='"storage-driver": "overlay2" in /etc/docker/daemon.json',
)
def storage(context: Context) -> Iterator[Seen]:
    """Every container and every layer is a whole copy of 20 GB, which takes minutes and fills the disk."""
    for name, engine in _engines(context):
        if engine.storage_driver == "vfs":
            yield Seen(
                name,
                f"Docker on {name} copies every layer whole",
                f"storage driver {engine.storage_driver} at {engine.root_dir}",
                (
                    'set "storage-driver": "overlay2" in /etc/docker/daemon.json',
                    "sudo systemctl restart docker",
                ),
            )


@check(
    "HOST-030",
    "Containers keep their GPU when systemd reloads",
    severity="info",
    scope="container",
    source="NVIDIA Container Toolkit, troubleshooting: NVML Unknown Error; NVIDIA/nvidia-container-toolkit#48",
    remedy=CDI_REFRESH,
)
def reload(context: Context) -> Iterator[Seen]:
    """A `systemctl daemon-reload`, as every package update does one, takes the GPU from containers that run.

    The engine then ends with `NVML: Unknown Error`. It happens where systemd manages the containers' cgroups and the
    toolkit is too old to describe its devices by CDI: one that does keeps them.
    """
    for name, engine in _engines(context):
        if engine.cgroup_driver == "systemd" and "nvidia" in engine.runtimes and not _has_cdi(engine):
            yield Seen(
                name,
                f"containers of {name} lose their GPU when systemd reloads",
                "cgroup driver systemd, no CDI device nvidia.com/gpu",
                ("sudo apt-get install -y nvidia-container-toolkit", CDI_REFRESH, "sudo systemctl restart docker"),
            )


def _engines(context: Context) -> Iterator[tuple[str, Docker]]:
    for name, facts in context.facts.items():
        engine = read(facts.docker)
        if engine is not None:
            yield name, engine


def _has_cdi(engine: Docker) -> bool:
    return any(device.startswith("nvidia.com/gpu") for device in engine.cdi_devices)


def runs_ours(context: Context, facts: Facts) -> bool:
    """Whether a rank of this cluster runs there, which then holds ports and memory rightfully."""
    return any(
        rank.state == "running" and rank.labels.get(LABEL_CLUSTER) == context.spec.inventory.cluster
        for rank in read(facts.ranks) or ()
    )
