"""``nvidia-runtime``: NVIDIA's container runtime in Docker."""

from sparkcluster.facts.survey import FileState, Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, without_docker

FILE = "/etc/docker/daemon.json"


def needed(survey: Survey, _: Wanted) -> Change | None:
    """Add the runtime; None if Docker has it, reported or, if the login has no access, in its configuration file."""
    configured = '"nvidia"' in (survey.files.get(FILE, FileState()).text or "")
    if configured if survey.runtimes is None else "nvidia" in survey.runtimes:
        return None
    found, then = "Docker has no nvidia runtime", "Docker has the nvidia runtime"
    if not survey.docker:
        return without_docker(found, then)
    return Change(found, then, (command("configure_runtime"),))


STEP = Step(
    "nvidia-runtime",
    "NVIDIA's runtime in Docker",
    "Gives containers the GPU; restarts Docker (NVIDIA Container Toolkit, installation guide)",
    needed,
    disruptive=True,
)
