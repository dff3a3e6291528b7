"""``hold``: kernel and driver stay at their version."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command
from sparkcluster.setup.steps.perftest import PACKAGE

# Kernel and driver of Ubuntu and of DGX OS, which unattended upgrades would replace.
PACKAGES = ("linux-image-*", "linux-headers-*", "linux-nvidia*", "nvidia-driver-*", "nvidia-kernel-*")


def look(survey: Survey, _: Wanted) -> Change | None:
    """Of ``PACKAGES`` those that are installed and not held."""
    free = sorted(name for name, wanted in survey.packages.items() if wanted != "hold" and name != PACKAGE)
    if not free:
        return None
    commands = tuple(command("change", "hold", name, "hold") for name in free)
    return Change(f"not held: {', '.join(free)}", "kernel and driver are held", commands)


STEP = Step(
    "hold",
    "kernel and driver stay at their version",
    "Unattended upgrades would make the nodes differ (apt-mark(8))",
    look,
    option=True,
)
