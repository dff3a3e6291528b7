"""``nvidia-runtime``: containers get the GPU."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, without_docker

FILE = "/etc/docker/daemon.json"


def look(survey: Survey, _: Wanted) -> Change | None:
    """The journal says where Docker was not restarted since."""
    due = any(entry.kind == "restart" for entry in survey.journal)
    if "nvidia" in survey.runtimes and not due:
        return None
    found = "Docker was not restarted since" if due else "Docker has no runtime nvidia"
    if survey.docker is None:
        return without_docker(found, "Docker has the runtime nvidia")
    return Change(found, "Docker has the runtime nvidia", (command("configure_runtime"),))


STEP = Step(
    "nvidia-runtime",
    "NVIDIA's runtime in Docker",
    "Containers get the GPU; Docker is restarted (NVIDIA Container Toolkit, installation guide)",
    look,
    disruptive=True,
)
