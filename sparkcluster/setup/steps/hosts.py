"""``hosts``: names of the rails."""

from sparkcluster.facts.survey import FileState, Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, unreadable

FILE = "/etc/hosts"
BEGIN, END = "# BEGIN sparkcluster: written by sparkcluster setup", "# END sparkcluster"


def look(survey: Survey, wanted: Wanted) -> Change | None:
    """The block of ``setup``; other lines stay."""
    if not wanted.hosts:
        return None
    block = "".join(f"{line}\n" for line in (BEGIN, *wanted.hosts, END))
    current = survey.files.get(FILE, FileState()).text or ""
    if block in current:
        return None
    names = [line.split(" ")[1] for line in wanted.hosts]
    return unreadable(survey, FILE) or Change(
        f"{FILE} has other rails" if BEGIN in current else f"{FILE} has no rails",
        f"{names[0]} to {names[-1]} resolve" if len(names) > 1 else f"{names[0]} resolves",
        (command("set_hosts", text=block),),
    )


STEP = Step(
    "hosts",
    "names of all rails in /etc/hosts",
    "NODE-rail1 is the node's first address on the QSFP ports; host names alone resolve as before",
    look,
    joint=True,
)
