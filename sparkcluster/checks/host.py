"""Checks of the machines themselves."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.errors import PlanError
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts, Memory, Unread, read
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group, Member

ANYWHERE = {"0.0.0.0", "::", "*"}  # noqa: S104 - what listeners are compared with
# Logs, records and layers of a launch need room; below this the next write may be the one that fails.
DISK_FLOOR_BYTES = 10**9
# vLLM's own default of --gpu-memory-utilization.
UTILIZATION = 0.9


@check("HOST-001", "Docker can be used by the SSH user")
def docker(context: Context) -> Iterator[Seen]:
    """Every rank is a container that this user starts."""
    if not context.docker:
        return
    for name, facts in context.facts.items():
        if isinstance(facts.docker, Unread):
            said = facts.docker.unread.lower()
            if "permission denied" in said:
                summary = f"{facts.user} may not use Docker on {name}"
                remedy = [f"sudo usermod -aG docker {facts.user}", "log out and in again, or reboot the node"]
            elif "no such file" in said or "not found" in said:
                summary = f"there is no Docker engine on {name}"
                remedy = ["sudo apt-get install -y docker.io", "sudo systemctl enable --now docker"]
            else:
                summary = f"the Docker engine of {name} does not answer"
                remedy = ["sudo systemctl restart docker", "journalctl -u docker -n 50"]
            yield Seen("error", name, summary, facts.docker.unread, tuple(remedy))


@check("HOST-002", "Docker hands GPUs to containers")
def gpu_runtime(context: Context) -> Iterator[Seen]:
    """Without NVIDIA's container toolkit `--gpus all` ends with `could not select device driver`."""
    if not context.docker:
        return
    for name, facts in context.facts.items():
        engine = read(facts.docker)
        if engine is None or "nvidia" in engine.runtimes:
            continue
        if not any(device.startswith("nvidia.com/gpu") for device in engine.cdi_devices):
            yield Seen(
                "error",
                name,
                f"the Docker engine of {name} has no nvidia runtime",
                f"runtimes: {', '.join(engine.runtimes) or 'none'}",
                ("sudo nvidia-ctk runtime configure --runtime=docker", "sudo systemctl restart docker"),
            )


@check("HOST-003", "The GPU answers")
def gpu(context: Context) -> Iterator[Seen]:
    """A kernel without its driver modules, or a GPU that fell off, shows here first."""
    if not context.docker:
        return
    for name, facts in context.facts.items():
        if not read(facts.gpus):
            seen = facts.gpus.unread if isinstance(facts.gpus, Unread) else "nvidia-smi lists none"
            yield Seen(
                "error",
                name,
                f"{name} has no GPU that answers",
                seen,
                (
                    "nvidia-smi",
                    f"install the linux-modules-nvidia package of kernel {facts.kernel}",
                    "sudo reboot",
                ),
            )


@check("HOST-004", "The ports that will be listened on are free")
def ports(context: Context) -> Iterator[Seen]:
    """A port that somebody else holds ends the launch after minutes, once the model is loaded."""
    for group in context.topology.groups:
        for member in group.members:
            facts = context.facts[member.name]
            if _runs_ours(context, facts):
                continue
            for port, address, use in _wanted(context, group, member):
                for held in read(facts.listeners) or ():
                    clash = held.address in {address, *ANYWHERE} or address in ANYWHERE
                    if held.port == port and clash:
                        yield Seen(
                            "error",
                            member.name,
                            f"port {port} of {member.name} is taken, and {use} needs it",
                            f"{held.process or 'a process of another user'} listens on {held.address}:{port}",
                            (f"sudo ss -ltnp 'sport = :{port}'", "stop it, or choose another api.port"),
                        )
                        break


@check("HOST-005", "There is room on the disks")
def disks(context: Context) -> Iterator[Seen]:
    """A full disk leaves half an image or a record cut short."""
    for name, facts in context.facts.items():
        for disk in read(facts.disks) or ():
            if disk.free_bytes < DISK_FLOOR_BYTES and (context.docker or disk.purpose != "docker"):
                yield Seen(
                    "error",
                    name,
                    f"the disk of {disk.path} on {name} is full",
                    f"{disk.free_bytes / 1e9:.2f} GB of {disk.total_bytes / 1e9:.0f} GB are free",
                    (f"df -h {disk.path}", "docker image prune"),
                )


@check("HOST-006", "There is memory for what the engine will take")
def memory(context: Context) -> Iterator[Seen]:
    """GPU and CPU share one memory; where it ends the node freezes, and only ICMP still answers."""
    written = context.spec.playbook.args.get("gpu-memory-utilization", UTILIZATION)
    share = written if isinstance(written, int | float) and not isinstance(written, bool) else UTILIZATION
    for name, facts in context.facts.items():
        have = read(facts.memory)
        if not context.docker or have is None or _runs_ours(context, facts):
            continue
        # NVIDIA's figure for GB10: what can be allocated is MemAvailable and free swap.
        free, wanted = have.available_bytes + have.swap_free_bytes, int(have.total_bytes * share)
        if free < wanted:
            yield Seen(
                "warning",
                name,
                f"{name} has less memory free than the engine will take",
                f"{free / 2**30:.1f} of {have.total_bytes / 2**30:.1f} GiB, {wanted / 2**30:.1f} GiB wanted",
                _room(name, have),
            )


def _room(name: str, have: Memory) -> tuple[str, ...]:
    lower = max(0.1, int(100 * (have.available_bytes + have.swap_free_bytes) / have.total_bytes) / 100)
    return (
        f"ssh {name} ps aux --sort=-rss | head",
        f"set gpu-memory-utilization: {lower} in the playbook",
    )


def _runs_ours(context: Context, facts: Facts) -> bool:
    """Whether a rank of this cluster runs there, which then holds ports and memory rightfully."""
    return any(
        rank.state == "running" and rank.labels.get("io.sparkcluster.cluster") == context.spec.inventory.cluster
        for rank in read(facts.ranks) or ()
    )


def _wanted(context: Context, group: Group, member: Member) -> Iterator[tuple[int, str, str]]:
    """Ports that a rank will listen on, at which address, and what for."""
    if member.rank > 0:
        return
    yield group.api_port, group.api_host, "the API"
    engine = engine_of(context.facts[member.name])
    try:
        executor = parallel.executor(context.spec.playbook, engine, nodes=group.size, bring_ray=context.docker)
    except PlanError:
        return
    # Both listen on every address unless the launcher can keep them from it, so any listener is in the way.
    if executor == "ray":
        yield group.ray_port, "0.0.0.0", "Ray"  # noqa: S104
    elif executor == "native":
        yield group.master_port, "0.0.0.0", "vLLM's rendezvous"  # noqa: S104
