"""The steps of ``setup``: what each sees to, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparkcluster.errors import UsageError
from sparkcluster.suggest import did_you_mean
from sparkcluster.topology.netplan import MTU, NETPLAN

SYSCTL = "/etc/sysctl.d/90-sparkcluster.conf"
LIMITS = "/etc/security/limits.d/90-sparkcluster.conf"
SYSCTLS = {"vm.swappiness": "1", "vm.dirty_bytes": "268435456"}
HEADLESS = "multi-user.target"
PERFTEST = "perftest"
BLOCK = ("# BEGIN sparkcluster: written by sparkcluster setup", "# END sparkcluster")
_GUIDE = "a published guide to vLLM on DGX Spark"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that ``setup`` sees to.

    Attributes:
        name: as in ``--only``.
        why: one line, with the source of what is not obvious.
        root: whether root does it, or the login itself.
        option: whether it is done only on request.
        disruptive: whether it disturbs ranks that run.
        joint: whether what it does on one node follows from all nodes.
    """

    name: str
    title: str
    why: str
    root: bool = True
    option: bool = False
    disruptive: bool = False
    joint: bool = False


STEPS = (
    Step(
        "ssh-key",
        "your public key in ~/.ssh/authorized_keys",
        "sparkcluster logs in by key",
        root=False,
    ),
    Step(
        "docker-group",
        "the login in the group docker",
        "Every rank is a container that this user starts without sudo (Docker, Linux post-installation steps)",
    ),
    Step(
        "nvidia-runtime",
        "NVIDIA's runtime in Docker",
        "Containers get the GPU; Docker is restarted (NVIDIA Container Toolkit, installation guide)",
        disruptive=True,
    ),
    Step(
        "sysctl",
        f"{', '.join(f'{name}={value}' for name, value in SYSCTLS.items())}",
        f"Memory of the GPU is system memory: swap late, and write dirty pages early ({_GUIDE}: System tuning)",
    ),
    Step(
        "limits",
        "locked memory without a limit",
        "RDMA pins its buffers, else `ibv_reg_mr failed: Cannot allocate memory` (NVIDIA/nccl-tests#206)",
    ),
    Step(
        "hf-cache",
        "the Hugging Face cache belongs to the login",
        "Containers leave root's files in it, which downloads and copies cannot replace",
    ),
    Step(
        "hosts",
        "names of all rails in /etc/hosts",
        "NODE-rail1 is the node's first address on the QSFP ports; host names alone resolve as before",
        joint=True,
    ),
    Step(
        "perftest",
        "the package perftest",
        "ib_write_bw measures RDMA in preflight --deep (linux-rdma/perftest)",
    ),
    Step(
        "clock",
        "a synchronized clock",
        "Log lines of several nodes are ordered by time (timedatectl(1))",
    ),
    Step(
        "headless",
        "no desktop after the next boot",
        f"2 to 3 GB more memory are free ({_GUIDE}: Disable GUI for headless servers)",
        option=True,
    ),
    Step(
        "hold",
        "kernel and driver stay at their version",
        "Unattended upgrades would make the nodes differ (apt-mark(8))",
        option=True,
    ),
    # Last in a script: it may cut the connection.
    Step(
        "netplan",
        f"an address for each twin in a subnet of its own, with MTU {MTU}, in {NETPLAN}",
        "RDMA and NCCL use all twins of a cable by their addresses (NVIDIA DGX Spark, connect two Sparks)",
        disruptive=True,
        joint=True,
    ),
)
BY_NAME = {step.name: step for step in STEPS}


def selected(only: Collection[str] | None, options: Collection[str] = ()) -> tuple[Step, ...]:
    """The steps that are to be done, in their order.

    Args:
        only: names of steps; None or empty for all that are no options.
        options: names of options that are switched on.

    Raises:
        UsageError: a name is unknown, or that of a step that is no option.
    """
    names = ", ".join(BY_NAME)
    for name in [*(only or ()), *options]:
        if name not in BY_NAME:
            raise UsageError(f"there is no step {name!r}", hint=did_you_mean(name, BY_NAME, f"steps are {names}"))
    for name in options:
        if not BY_NAME[name].option:
            raise UsageError(f"{name} is no option: it is done without --with", hint="options are headless and hold")
    return tuple(step for step in STEPS if (step.name in only if only else not step.option or step.name in options))
