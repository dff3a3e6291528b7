"""``hf-cache``: the Hugging Face cache belongs to the login."""

from pathlib import PurePosixPath

from sparkcluster.facts.survey import Survey
from sparkcluster.report import count
from sparkcluster.setup.step import Change, Step, Wanted, command

# Top-level directories of the system, which contain no user's cache.
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var"}


def needed(survey: Survey, _: Wanted) -> Change | None:
    """Refuses directories that contain more than a cache."""
    if not survey.foreign:
        return None
    path, home = PurePosixPath(survey.hf_home), PurePosixPath(survey.home)
    found, then = f"{count(survey.foreign, 'file')} owned by root in {path}", f"all files belong to {survey.user}"
    top = path.parts[1:2]
    elsewhere = bool(_SYSTEM & set(top)) or (top == ("home",) and home not in path.parents)
    if elsewhere or path in (home, *home.parents):
        return Change(found, then, blocked=f"{path} contains more than a cache", hint="set hf_home in the inventory")
    return Change(found, then, (command("own_tree", str(path), survey.user),))


STEP = Step(
    "hf-cache",
    "the Hugging Face cache belongs to the login",
    "Containers leave files owned by root, which downloads and copies cannot replace",
    needed,
)
