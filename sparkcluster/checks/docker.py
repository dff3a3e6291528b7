"""Checks of the Docker engine of each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkcluster import engines
from sparkcluster.checks.check import Context, Seen, container_node_check, docker_check
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import Docker, OtherContainer
from sparkcluster.facts.model import Facts
from sparkcluster.findings import Remedy, here, on_node
from sparkcluster.printable import shell

CDI_REFRESH = on_node("sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml")
ADD_RUNTIME = on_node("sudo nvidia-ctk runtime configure --runtime=docker")
RESTART_DOCKER = on_node("sudo systemctl restart docker")


@container_node_check(
    "HOST-001",
    "The SSH user can use Docker",
    source="docs.docker.com, Linux post-installation steps",
    remedy="sudo usermod -aG docker USER and log in again; or sudo apt-get install -y docker.io",
)
def docker(_: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """No rank can start: this user starts every rank as a container.

    DGX OS has Docker installed, but the login user is not in the group `docker`. Rootless engines and a `DOCKER_HOST`
    that is not a local socket are not supported.
    """
    if isinstance(facts.docker, Unread):
        yield unusable(name, facts, facts.docker.unread)


def unusable(name: str, facts: Facts, why: str) -> Seen:
    """What is wrong with Docker on the node ``name``, which reported ``why``."""
    reason, step = why.lower(), None
    remedy: list[Remedy | str]
    if "permission denied" in reason:
        step, summary = "docker-group", f"{facts.user} has no permission to use Docker on {name}"
        remedy = [on_node(shell("sudo usermod -aG docker", facts.user)), "log out and back in, or reboot the node"]
    elif "no such file" in reason or "not found" in reason:
        summary = f"Docker is not installed or not running on {name}"
        remedy = [
            on_node("sudo systemctl enable --now docker"),
            on_node("sudo apt-get install -y docker.io", "if it is not installed", instead=True),
        ]
    else:
        summary = f"Docker on {name} does not answer"
        remedy = [RESTART_DOCKER, on_node("journalctl -u docker -n 50")]
    return Seen(summary, why, remedy, step=step)


@docker_check(
    "HOST-002",
    "Docker can pass GPUs to containers",
    source="NVIDIA Container Toolkit, installation guide",
    remedy=(ADD_RUNTIME, RESTART_DOCKER),
    step="nvidia-runtime",
)
def gpu_runtime(_: Context, name: str, engine: Docker) -> Iterator[Seen]:
    """Without NVIDIA's container toolkit, `docker run --gpus all` fails with `could not select device driver`."""
    if "nvidia" not in engine.runtimes and not _has_cdi(engine):
        seen = f"runtimes: {', '.join(engine.runtimes) or 'none'}"
        yield Seen(f"the Docker engine of {name} has no nvidia runtime", seen)


@docker_check(
    "HOST-025",
    "Docker is not a snap",
    severity="warning",
    source="NVIDIA Container Toolkit, supported platforms; docs.docker.com, Install on Ubuntu",
    remedy=(
        on_node("sudo snap remove docker", "deletes its images and containers"),
        on_node("sudo apt-get install -y docker.io nvidia-container-toolkit"),
        ADD_RUNTIME,
        RESTART_DOCKER,
    ),
)
def snap(_: Context, name: str, engine: Docker) -> Iterator[Seen]:
    """Containers of Docker's snap can access neither the driver's libraries nor files outside /home.

    The launch then fails with `could not select device driver` or a refused mount. Docker from apt has neither limit.
    """
    if engine.snap:
        yield Seen(f"Docker on {name} is a snap", engine.root_dir)


@docker_check(
    "HOST-026",
    "CDI devices match the loaded driver, and containers keep their GPU when systemd reloads",
    source="NVIDIA Container Toolkit: Container Device Interface support; troubleshooting, NVML Unknown Error;"
    " NVIDIA/nvidia-container-toolkit#48",
    remedy=(CDI_REFRESH, RESTART_DOCKER),
)
def cdi(context: Context, name: str, engine: Docker) -> Iterator[Seen]:
    """Containers get libraries of a removed driver: they fail to start, or lose the GPU while running.

    The specification names files by driver version, such as libcuda.so.580.95.05; nvidia-cdi-refresh rewrites it. A
    warning if Docker also has the nvidia runtime, since most containers then do not use CDI. Without CDI and with
    cgroups managed by systemd, `systemctl daemon-reload` removes the GPU from running containers
    (`NVML: Unknown Error`); every package update runs it. This is info.
    """
    driver, runtime = read(context.facts[name].driver), "nvidia" in engine.runtimes
    if engine.cdi_driver is not None and driver is not None and engine.cdi_driver != driver:
        yield Seen(
            f"the CDI specification of {name} is for another driver",
            f"generated for {engine.cdi_driver}, but {driver} is loaded",
            severity="warning" if runtime else "error",
        )
    if engine.cgroup_driver == "systemd" and runtime and not _has_cdi(engine):
        yield Seen(
            f"containers of {name} lose their GPU when systemd reloads",
            "cgroup driver systemd, no CDI device nvidia.com/gpu",
            (on_node("sudo apt-get install -y nvidia-container-toolkit"), CDI_REFRESH, RESTART_DOCKER),
            severity="info",
        )


def _has_cdi(engine: Docker) -> bool:
    return any(device.startswith("nvidia.com/gpu") for device in engine.cdi_devices)


def hand_over(context: Context, node: str, containers: Iterable[OtherContainer]) -> Iterator[Remedy]:
    """Commands to save and stop foreign ``containers`` that use resources needed on ``node``."""
    for each in containers:
        if each.engine in engines.names():
            command = shell("sparkcluster import --container", each.name, "--node", context.host(node))
            yield here(command, "saves its settings as a playbook")
        yield on_node(shell("docker stop", each.name), on=node)
