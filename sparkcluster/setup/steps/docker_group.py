"""``docker-group``: let the login use Docker."""

from sparkcluster.facts.survey import FileState, Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, without_docker

FILE = "/etc/group"


def needed(survey: Survey, _: Wanted) -> Change | None:
    """A membership that waits for the next login counts as done."""
    fields = [line.split(":") for line in (survey.files.get(FILE, FileState()).text or "").splitlines()]
    member = any(len(each) == 4 and each[0] == "docker" and survey.user in each[3].split(",") for each in fields)
    if survey.uid == 0 or "docker" in survey.groups or member:
        return None
    found, then = f"{survey.user} is not in the group docker", f"{survey.user} is in it"
    if not survey.docker:
        return without_docker(found, then)
    join = command("change", "group", f"docker:{survey.user}", "member")
    return Change(found, then, (join,), later=f"when {survey.user} logs in again")


STEP = Step(
    "docker-group",
    "the login in the group docker",
    "Every rank is a container that this user starts without sudo (Docker, Linux post-installation steps)",
    needed,
)
