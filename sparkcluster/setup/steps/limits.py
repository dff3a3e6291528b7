"""``limits``: let the login lock memory without limit."""

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted, described, is_written, write_file

FILE = "/etc/security/limits.d/90-sparkcluster.conf"


def needed(survey: Survey, _: Wanted) -> Change | None:
    """A limit applies from the next login."""
    text = f"{survey.user} - memlock unlimited\n"
    if is_written(survey, FILE, text):
        return None
    found, then = described(survey, FILE), f"{survey.user} may lock memory without a limit"
    return Change(found, then, (write_file(FILE, text),), later=f"when {survey.user} logs in again")


STEP = Step(
    "limits",
    "locked memory without a limit",
    "RDMA pins its buffers, else `ibv_reg_mr failed: Cannot allocate memory` (NVIDIA/nccl-tests#206)",
    needed,
)
