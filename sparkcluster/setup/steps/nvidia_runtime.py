"""``nvidia-runtime``: containers get the GPU."""

from sparkcluster.facts.survey import FileState, Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, without_docker

FILE = "/etc/docker/daemon.json"


def look(survey: Survey, _: Wanted) -> Change | None:
    """The runtimes that Docker has, as it says itself, or where the login may not ask it, by its configuration."""
    configured = '"nvidia"' in (survey.files.get(FILE, FileState()).text or "")
    if configured if survey.runtimes is None else "nvidia" in survey.runtimes:
        return None
    found, then = "Docker has no runtime nvidia", "Docker has the runtime nvidia"
    if not survey.docker:
        return without_docker(found, then)
    return Change(found, then, (command("configure_runtime"),))


STEP = Step(
    "nvidia-runtime",
    "NVIDIA's runtime in Docker",
    "Containers get the GPU; Docker is restarted (NVIDIA Container Toolkit, installation guide)",
    look,
    disruptive=True,
)
