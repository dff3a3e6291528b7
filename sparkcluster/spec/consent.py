"""The only way from a document to a spec that may run something on a node.

``accept`` asks about what the playbook can do beyond serving; ``require`` stands where something is run. Acceptance is
remembered by the hash of what is accepted (``powers.digest``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkcluster.errors import UsageError
from sparkcluster.output_file import state_home
from sparkcluster.report import Report
from sparkcluster.spec import Spec, library, powers


def pending(spec: Spec) -> list[str]:
    """The kinds of what the playbook can do beyond serving, where ``accept`` would ask about them; else empty."""
    if library.all_bundled(spec):
        return []
    kinds = dict.fromkeys(power.kind for power in powers.of(spec.playbook, spec.inventory) if power.asks)
    return [] if not kinds or _remembered(spec).is_file() else list(kinds)


def _remembered(spec: Spec) -> Path:
    """The file that says that the playbook is accepted with this very content."""
    return state_home() / "accepted" / powers.digest(spec)


def accept(spec: Spec, report: Report, *, yes: bool, check: Callable[[Spec], None] | None = None) -> Spec:
    """``spec``, accepted: ask unless the playbook is bundled, asks for nothing more, or was accepted as it is.

    A playbook that is taken in place of a bundled one is named. ``yes`` accepts unasked. ``check`` raises
    where something is wrong with it, about which nobody need be asked then.

    Raises:
        UsageError: it is not accepted, or nobody can be asked.
    """
    for line in library.shadowing(spec):
        report.note(line)
    accepted = dataclasses.replace(spec, accepted=powers.digest(spec))
    if not (kinds := pending(spec)):
        return accepted
    if check:
        check(spec)
    path, remembered = spec.playbook_path, _remembered(spec)
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
        remembered.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remembered.touch(0o600)
    return accepted


def require(spec: Spec) -> None:
    """Stop unless this very spec was accepted.

    Raises:
        RuntimeError: it was not, which is an error of the program.
    """
    if spec.accepted != powers.digest(spec):
        raise RuntimeError(f"{spec.playbook_path} was not accepted")
