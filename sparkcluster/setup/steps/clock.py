"""``clock``: a synchronized clock."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command


def look(survey: Survey, _: Wanted) -> Change | None:
    """Whether NTP is on."""
    if survey.ntp:
        return None
    found, then = "the clock is not synchronized", "NTP synchronizes the clock"
    if survey.ntp is None:
        return Change(found, then, blocked="NTP cannot be switched on", hint="on NODE: timedatectl")
    return Change(found, then, (command("change", "ntp", "clock", "yes"),))


STEP = Step("clock", "a synchronized clock", "Log lines of several nodes are ordered by time (timedatectl(1))", look)
