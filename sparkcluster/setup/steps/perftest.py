"""``perftest``: the RDMA benchmarks."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command

PACKAGE = "perftest"


def needed(survey: Survey, _: Wanted) -> Change | None:
    """Install the package; None if it is installed."""
    if PACKAGE in survey.packages:
        return None
    return Change("perftest is not installed", "perftest is installed", (command("install_package", PACKAGE),))


STEP = Step(
    "perftest",
    "package perftest",
    "ib_write_bw measures RDMA in preflight --deep (linux-rdma/perftest)",
    needed,
)
