"""Consent to what a spec can do beyond serving; required before anything runs on a node.

``accept`` asks the operator; ``require`` guards every place that runs something. Consent is stored by hash: of the
complete playbook (``powers.digest``), and of each line of an inventory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sparkcluster.errors import ConsentMissing
from sparkcluster.output_file import state_home
from sparkcluster.report import Report
from sparkcluster.spec import Spec, library, powers


def pending(spec: Spec) -> list[str]:
    """The kinds of powers of the playbook that the operator would be asked about."""
    return list(dict.fromkeys(each.kind for each in _of_playbook(spec)))


def unaccepted(spec: Spec, *kinds: str) -> list[powers.Power]:
    """Powers of the inventory (of ``kinds``, if given) that were not accepted on this machine."""
    found = (each for each in powers.of_inventory(spec) if not kinds or each.kind in kinds)
    return [each for each in found if not is_remembered(each.digest)]


def remember(digests: Iterable[str]) -> None:
    """Store consent for these digests, of lines of inventories or of playbooks."""
    with suppress(OSError):  # on failure, the question is repeated next time
        for digest in digests:
            _file(digest).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _file(digest).touch(0o600)


def is_remembered(digest: str) -> bool:
    """Whether consent for this digest is stored on this machine."""
    return _file(digest).is_file()


def _of_playbook(spec: Spec) -> list[powers.Power]:
    """Powers of the playbook to ask about; none for a bundled playbook or one that was accepted unchanged.

    Bundled playbooks are written for containers, so without a container their powers are asked about, too.
    """
    bundled = library.all_bundled(spec)
    if (bundled and spec.inventory.runtime.kind == "docker") or is_remembered(powers.digest(spec)):
        return []
    harmless = {"image", "variable"} if bundled else ()
    return [each for each in powers.of(spec.playbook, spec.inventory) if each.asks and each.kind not in harmless]


def _file(digest: str) -> Path:
    """The file that stores consent for ``digest``."""
    return state_home() / "accepted" / digest


def accept(spec: Spec, report: Report, *, yes: bool, check: Callable[[Spec], None] | None = None) -> Spec:
    """``spec`` with consent: ask about the powers of its playbook, unless it was accepted unchanged.

    Notes if the playbook shadows a bundled one. ``yes`` accepts without a question. ``check`` raises if the playbook
    has errors, before the question.

    Raises:
        ConsentMissing: the operator refuses, or there is no terminal.
    """
    for line in library.shadowing(spec):
        report.note(line)
    if asked := _of_playbook(spec):
        if check:
            check(spec)
        why = "runs without a container" if library.all_bundled(spec) else library.foreign(spec)
        head = f"{spec.playbook_path} {why}. It needs your consent for:"
        _ask(spec, asked, powers.lines(spec.playbook, spec.inventory, head=head), report, yes=yes)
        remember([powers.digest(spec)])
    return dataclasses.replace(spec, accepted=powers.digest(spec))


def accept_inventory(spec: Spec, report: Report, *, yes: bool | None) -> None:
    """Ask about powers of the inventory before a node is contacted; ``yes`` as in ``_ask``.

    Raises:
        ConsentMissing: the operator refuses, or there is no terminal.
    """
    if found := unaccepted(spec):
        _ask(spec, found, powers.listed(found, f"{spec.inventory_path} asks for:"), report, yes=yes)
        remember(each.digest for each in found)


def _ask(spec: Spec, found: list[powers.Power], shown: list[str], report: Report, *, yes: bool | None) -> None:
    """Show the powers and ask; ``yes`` accepts without a question, None means that the command has no such flag."""
    for line in shown:
        report.note(line)
    if not yes and not report.confirm(f"accept it for cluster {spec.inventory.cluster}?"):
        kinds = ", ".join(dict.fromkeys(each.kind for each in found))
        flag = "run sparkcluster preflight INVENTORY --yes" if yes is None else "add --yes"
        raise ConsentMissing(f"not accepted yet: {kinds}", hint=f"{flag}, or answer y in a terminal")


def require(spec: Spec) -> None:
    """Raise unless exactly this spec was accepted.

    Raises:
        RuntimeError: it was not accepted, which is a bug.
    """
    if spec.accepted != powers.digest(spec):
        raise RuntimeError(f"{spec.playbook_path} was not accepted")
