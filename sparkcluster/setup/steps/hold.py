"""``hold``: hold the versions of kernel and driver."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command
from sparkcluster.setup.steps.perftest import PACKAGE

# Kernel and driver packages of Ubuntu and DGX OS, which unattended upgrades replace.
PACKAGES = ("linux-image-*", "linux-headers-*", "linux-nvidia*", "nvidia-driver-*", "nvidia-kernel-*")


def needed(survey: Survey, _: Wanted) -> Change | None:
    """Hold each installed package of ``PACKAGES``."""
    free = sorted(name for name, wanted in survey.packages.items() if wanted != "hold" and name != PACKAGE)
    if not free:
        return None
    commands = tuple(command("change", "hold", name, "hold") for name in free)
    return Change(f"not held: {', '.join(free)}", "kernel and driver are held", commands)


STEP = Step(
    "hold",
    "kernel and driver held at their versions",
    "Unattended upgrades would make the nodes differ (apt-mark(8))",
    needed,
    option=True,
)
