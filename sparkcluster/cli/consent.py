"""The question before a playbook that can do more on the nodes than serve first runs there.

Acceptance is remembered by the hash of what is accepted (``powers.digest``).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from sparkcluster.report import Report
    from sparkcluster.spec import Spec


def pending(spec: Spec) -> list[str]:
    """The kinds of what the playbook can do beyond serving, where ``up`` would ask about them; else empty."""
    from sparkcluster.spec import library, powers

    if library.all_bundled(spec):
        return []
    kinds = dict.fromkeys(power.kind for power in powers.of(spec.playbook, spec.inventory) if power.asks)
    return [] if not kinds or _acceptance(spec).is_file() else list(kinds)


def _acceptance(spec: Spec) -> Path:
    """The file that says that the playbook is accepted with this very content."""
    from sparkcluster.output_file import state_home
    from sparkcluster.spec import powers

    return state_home() / "accepted" / powers.digest(spec)


def ask(spec: Spec, report: Report, *, yes: bool) -> None:
    """Ask unless the playbook is bundled, asks for nothing more, or was accepted with this very content.

    A playbook that is taken in place of a bundled one is named. ``yes`` accepts unasked.

    Raises:
        FoundErrors: what is written is wrong, such as the name of an argument.
        UsageError: it is not accepted, or nobody can be asked.
    """
    from sparkcluster.spec import library

    for line in library.shadowing(spec):
        report.note(line)
    if not (kinds := pending(spec)):
        return
    from sparkcluster.checks import check_written
    from sparkcluster.errors import FoundErrors, UsageError
    from sparkcluster.findings import has_errors
    from sparkcluster.spec import powers

    findings = check_written(spec)
    if has_errors(findings):
        raise FoundErrors(findings)
    path, accepted = spec.playbook_path, _acceptance(spec)
    shown = list(powers.lines(spec.playbook, spec.inventory, head=f"{path} is not a bundled playbook. It may:"))
    if yes:
        for line in shown:
            report.note(line)
    elif not report.confirm("\n".join([*shown, f"accept it for cluster {spec.inventory.cluster}?"])):
        raise UsageError(
            f"{path} may do more than serve, and this is not accepted yet: {', '.join(kinds)}",
            hint="to accept it, add --yes, or answer y on a terminal; sparkcluster plan INVENTORY -v   shows all of it",
        )
    with suppress(OSError):  # else it is asked again
        accepted.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        accepted.touch(0o600)
