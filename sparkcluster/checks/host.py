"""Checks of the machines themselves, beside Docker, GPU, memory and disks."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.docker import runs_ours
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.errors import PlanError
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts, Listener, read
from sparkcluster.node.shared import LABEL_CLUSTER
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group, Member

ANYWHERE = {"0.0.0.0", "::", "*"}  # noqa: S104 - what listeners are compared with
API, RAY, RENDEZVOUS = "the API", "Ray", "vLLM's rendezvous"
# What else can be set where the port cannot be had.
INSTEAD = {
    API: "another api.port in the inventory",
    RAY: "executor: native in the playbook",
    RENDEZVOUS: "executor: ray in the playbook",
}
# logind leaves users alone whose number is below (SYS_UID_MAX of login.defs is 999 on Ubuntu).
FIRST_PERSON = 1000


@check(
    "HOST-004",
    "The ports that will be listened on are free",
    needs=("listeners",),
    source="practitioners' reports: `docker run` exit 125, or a crash after minutes",
    remedy="stop who listens there, or choose another api.port",
)
def ports(context: Context) -> Iterator[Seen]:
    """The launch ends after minutes, once the model is loaded, because somebody else holds the port."""
    for group in context.topology.groups:
        for member in group.members:
            facts = context.facts[member.name]
            if runs_ours(context, facts):
                continue
            for port, address, use in _wanted(context, group, member):
                for held in read(facts.listeners) or ():
                    clash = held.address in {address, *ANYWHERE} or address in ANYWHERE
                    if held.port == port and clash:
                        yield Seen(
                            member.name,
                            f"port {port} of {member.name} is taken, and {use} needs it",
                            f"{_holder(context, facts, held)} listens on {held.address}:{port}",
                            (f"sudo ss -ltnp 'sport = :{port}'", f"stop it, or set {INSTEAD[use]}"),
                        )
                        break


@check(
    "HOST-016",
    "Shared memory of ranks outlives the login",
    needs=("remove_ipc",),
    severity="warning",
    source="logind.conf(5), RemoveIPC; systemd#2039",
    remedy="RemoveIPC=no in /etc/systemd/logind.conf.d, or loginctl enable-linger",
)
def remove_ipc(context: Context) -> Iterator[Seen]:
    """Semaphores and shared memory of the engine vanish when the last session of its user ends, and it dies.

    logind does so with what belongs to ordinary users (RemoveIPC, on by default). With runtime `process` ranks
    belong to the SSH user, and end with its session. In containers they belong to root unless the image says
    otherwise, and nothing happens to them: it is told for information there.
    """
    for name, facts in context.facts.items():
        if facts.remove_ipc is True and facts.uid >= FIRST_PERSON and not facts.lingers:
            yield Seen(
                name,
                f"{name} removes shared memory of {facts.user} at logout",
                f"RemoveIPC=yes, uid {facts.uid}",
                (
                    f"sudo loginctl enable-linger {facts.user}",
                    "or, for everybody: sudo mkdir -p /etc/systemd/logind.conf.d",
                    "printf '[Login]\\nRemoveIPC=no\\n' | sudo tee /etc/systemd/logind.conf.d/ipc.conf",
                    "sudo systemctl restart systemd-logind",
                ),
                severity="info" if context.docker else "warning",
            )


def _holder(context: Context, facts: Facts, held: Listener) -> str:
    """Who listens: a process that this user may know, or else what else of ours may be behind it."""
    if held.process:
        return held.process
    own = context.spec.inventory.cluster
    for rank in read(facts.ranks) or ():
        cluster = rank.labels.get(LABEL_CLUSTER)
        if rank.state == "running" and cluster and cluster != own:
            return f"a process of another user, perhaps {rank.name} of cluster {cluster},"
    return "a process of another user"


def _wanted(context: Context, group: Group, member: Member) -> Iterator[tuple[int, str, str]]:
    """Ports that a rank will listen on, at which address, and what for."""
    if member.rank > 0:
        return
    yield group.api_port, group.api_host, API
    engine = engine_of(context.facts[member.name])
    try:
        executor = parallel.executor(context.spec.playbook, engine, nodes=group.size, bring_ray=context.docker)
    except PlanError:
        return
    # Both listen on every address unless the launcher can keep them from it, so any listener is in the way.
    if executor == "ray":
        yield group.ray_port, "0.0.0.0", RAY  # noqa: S104
    elif executor == "native":
        yield group.master_port, "0.0.0.0", RENDEZVOUS  # noqa: S104
