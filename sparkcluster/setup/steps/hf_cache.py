"""``hf-cache``: the Hugging Face cache belongs to the login."""

from pathlib import PurePosixPath

from sparkcluster.facts.survey import Survey
from sparkcluster.report import count
from sparkcluster.setup.step import Change, Step, Wanted, command

# First part of the paths that belong to the system, below which no cache of a user is.
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var"}


def look(survey: Survey, _: Wanted) -> Change | None:
    """A directory that has more than a cache in it is not given away."""
    if not survey.foreign:
        return None
    path, home = PurePosixPath(survey.hf_home), PurePosixPath(survey.home)
    found, then = f"{count(survey.foreign, 'file')} of root in {path}", f"all of it belongs to {survey.user}"
    top = path.parts[1:2]
    elsewhere = bool(_SYSTEM & set(top)) or (top == ("home",) and home not in path.parents)
    if elsewhere or path in (home, *home.parents):
        return Change(found, then, blocked=f"{path} is more than a cache", hint="set hf_home in the inventory")
    return Change(found, then, (command("own_tree", str(path), survey.user),))


STEP = Step(
    "hf-cache",
    "the Hugging Face cache belongs to the login",
    "Containers leave root's files in it, which downloads and copies cannot replace",
    look,
)
