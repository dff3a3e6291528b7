"""The only way from a document to a spec that may run something on a node.

``accept`` asks about what playbook and inventory can do beyond serving; ``require`` stands where something is run. What
is accepted is remembered by its hash: a playbook as a whole (``powers.digest``), of an inventory each line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sparkcluster.errors import UsageError
from sparkcluster.output_file import state_home
from sparkcluster.report import Report
from sparkcluster.spec import Spec, library, powers


def pending(spec: Spec) -> list[str]:
    """The kinds of what the playbook can do beyond serving, where one would be asked about it."""
    return list(dict.fromkeys(each.kind for each in _of_playbook(spec)))


def unaccepted(spec: Spec, *kinds: str) -> list[powers.Power]:
    """What the inventory itself asks for (only these ``kinds``, if given) and was not accepted on this machine."""
    found = (each for each in powers.of_inventory(spec) if not kinds or each.kind in kinds)
    return [each for each in found if not is_remembered(each.digest)]


def remember(digests: Iterable[str]) -> None:
    """Accept what has these digests: a line of any inventory, or a playbook."""
    with suppress(OSError):  # else it is asked again
        for digest in digests:
            _file(digest).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _file(digest).touch(0o600)


def is_remembered(digest: str) -> bool:
    """Whether what has this digest was accepted on this machine."""
    return _file(digest).is_file()


def _of_playbook(spec: Spec) -> list[powers.Power]:
    """What the playbook can do beyond serving, unless it is bundled or was accepted as it is.

    A bundled one is meant for a container: without it, what else it can do is asked about.
    """
    bundled = library.all_bundled(spec)
    if (bundled and spec.inventory.runtime.kind == "docker") or is_remembered(powers.digest(spec)):
        return []
    harmless = {"image", "variable"} if bundled else ()
    return [each for each in powers.of(spec.playbook, spec.inventory) if each.asks and each.kind not in harmless]


def _file(digest: str) -> Path:
    """The file that says that something with this ``digest`` is accepted."""
    return state_home() / "accepted" / digest


def accept(spec: Spec, report: Report, *, yes: bool, check: Callable[[Spec], None] | None = None) -> Spec:
    """``spec``, accepted: ask about what its playbook can do, unless that was accepted as it is.

    A playbook that is taken in place of a bundled one is named. ``yes`` accepts unasked. ``check`` raises where
    the playbook has errors, so that the operator is not asked about it.

    Raises:
        UsageError: it is not accepted, or there is no terminal to ask on.
    """
    for line in library.shadowing(spec):
        report.note(line)
    if asked := _of_playbook(spec):
        if check:
            check(spec)
        bundled = library.all_bundled(spec)
        head = f"{spec.playbook_path} {'runs without a container' if bundled else 'is not a bundled playbook'}. It may:"
        _ask(spec, asked, powers.lines(spec.playbook, spec.inventory, head=head), report, yes=yes)
        remember([powers.digest(spec)])
    return dataclasses.replace(spec, accepted=powers.digest(spec))


def accept_inventory(spec: Spec, report: Report, *, yes: bool | None) -> None:
    """Ask about lines of the inventory that were not accepted, before a node is contacted; ``yes`` as in ``_ask``.

    Raises:
        UsageError: they are not accepted, or there is no terminal to ask on.
    """
    if found := unaccepted(spec):
        _ask(spec, found, powers.listed(found, f"{spec.inventory_path} asks for:"), report, yes=yes)
        remember(each.digest for each in found)


def _ask(spec: Spec, found: list[powers.Power], shown: list[str], report: Report, *, yes: bool | None) -> None:
    """Show it and ask; ``yes`` accepts it unasked, and is None where the command has no such flag."""
    for line in shown:
        report.note(line)
    if not yes and not report.confirm(f"accept it for cluster {spec.inventory.cluster}?"):
        kinds = ", ".join(dict.fromkeys(each.kind for each in found))
        flag = "type sparkcluster preflight INVENTORY --yes" if yes is None else "add --yes"
        raise UsageError(f"not accepted yet: {kinds}", hint=f"to accept what is shown, answer y, or {flag}")


def require(spec: Spec) -> None:
    """Stop unless this very spec was accepted.

    Raises:
        RuntimeError: it was not, which is an error of the program.
    """
    if spec.accepted != powers.digest(spec):
        raise RuntimeError(f"{spec.playbook_path} was not accepted")
