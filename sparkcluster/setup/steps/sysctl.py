"""``sysctl``: the kernel swaps late and writes dirty pages early."""

from sparkcluster.facts.survey import FileState, Survey
from sparkcluster.setup.step import Change, Step, Wanted, command, described, is_written, write_file

FILE = "/etc/sysctl.d/90-sparkcluster.conf"
VALUES = {"vm.swappiness": "1", "vm.dirty_bytes": "268435456"}
PATHS = {name: f"/proc/sys/{name.replace('.', '/')}" for name in VALUES}
_TEXT = "".join(f"{name} = {value}\n" for name, value in VALUES.items())
_TITLE = ", ".join(f"{name}={value}" for name, value in VALUES.items())


def needed(survey: Survey, _: Wanted) -> Change | None:
    """Set the values now and at every boot."""
    now = {name: (survey.files.get(path, FileState()).text or "?").strip() for name, path in PATHS.items()}
    differing = [name for name, value in VALUES.items() if now[name] != value]
    if not differing and is_written(survey, FILE, _TEXT):
        return None
    found = ", ".join(f"{name}={now[name]}" for name in differing) or described(survey, FILE)
    values = (command("change", "sysctl", name, f"{name}={value}") for name, value in VALUES.items())
    return Change(found, _TITLE, (write_file(FILE, _TEXT), *values))


STEP = Step(
    "sysctl",
    _TITLE,
    "The GPU uses system memory: swap late and write dirty pages early (a published guide to DGX Spark: System tuning)",
    needed,
)
