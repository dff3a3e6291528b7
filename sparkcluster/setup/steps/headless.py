"""``headless``: boot without a desktop."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command

TARGET = "multi-user.target"


def needed(survey: Survey, _: Wanted) -> Change | None:
    """Change the default boot target; None if it is already set."""
    if survey.default_target == TARGET:
        return None
    found = f"it boots to {survey.default_target or 'an unknown target'}"
    change = command("change", "target", "default.target", TARGET)
    return Change(found, f"it boots to {TARGET}", (change,), later="at the next boot")


STEP = Step(
    "headless",
    "no desktop after the next boot",
    "Frees 2 to 3 GB of memory (a published guide to DGX Spark: Disable GUI for headless servers)",
    needed,
    option=True,
)
