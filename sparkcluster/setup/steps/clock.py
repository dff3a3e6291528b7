"""``clock``: a synchronized clock."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command


def needed(survey: Survey, _: Wanted) -> Change | None:
    """Turn on NTP; None if it is on."""
    if survey.ntp:
        return None
    change = command("change", "ntp", "clock", "yes")
    return Change("the clock is not synchronized", "NTP synchronizes the clock", (change,))


STEP = Step("clock", "a synchronized clock", "Log lines of several nodes are ordered by time (timedatectl(1))", needed)
