"""``ssh-key``: the login accepts the operator's key."""

from sparkcluster.facts.survey import FileState, Survey
from sparkcluster.setup.step import Change, Step, Wanted, command

FILE = ".ssh/authorized_keys"


def needed(survey: Survey, wanted: Wanted) -> Change | None:
    """Compare keys by content; sshd ignores a file that others can write (sshd_config(5), StrictModes)."""
    if wanted.key is None:
        return None
    if not wanted.key:
        hint = "ssh-keygen -t ed25519, then: sparkcluster setup INVENTORY --only ssh-key"
        return Change("", "", blocked="no SSH key found; all other commands log in by key", hint=hint)
    path = f"{survey.home}/{FILE}"
    state = survey.files.get(path, FileState())
    blob = wanted.key.split(" ")[1]
    lines = [line for line in (state.text or "").splitlines() if not line.lstrip().startswith("#")]
    present = any(blob in line.split() for line in lines)
    if present and not (state.mode or 0) & 0o022:
        return None
    return Change(
        "authorized_keys is writable by others" if present else "your key is not in authorized_keys",
        f"{survey.user} accepts your key",
        (command("add_key", path, wanted.key),),
    )


STEP = Step("ssh-key", "your public key in ~/.ssh/authorized_keys", "sparkcluster logs in by key", needed, root=False)
