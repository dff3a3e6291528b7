"""Recognize inventories, playbooks and overlays, and refuse a file of the wrong kind."""

from __future__ import annotations

from sparkcluster.errors import UsageError
from sparkcluster.printable import shell
from sparkcluster.spec.document import Document
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook


def is_inventory(document: Document) -> bool:
    """Whether a file is an inventory: it has a cluster or a list of nodes."""
    return isinstance(document.data.get("nodes"), list) or "cluster" in document.data


def is_playbook(document: Document) -> bool:
    """Whether a file is a playbook: not an inventory, and with keys that mostly occur in playbooks."""
    keys = set(document.data)
    own, others = keys & set(Playbook.model_fields), keys & set(Inventory.model_fields)
    return not is_inventory(document) and bool(
        own & {"model", "extends", "served_name"} or len(own) > max(1, len(others))
    )


def is_overlay(document: Document) -> bool:
    """Whether a file is an overlay."""
    return "overlay" in document.data


def allowed_overlays(document: Document) -> list[str]:
    """Names of the overlays that a playbook allows."""
    names = document.data.get("overlays")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def refuse_as_inventory(document: Document) -> None:
    """Raise UsageError if a file that is used as an inventory is of another kind."""
    if is_overlay(document):
        raise _other(document, "an overlay, not an inventory", "give an inventory, and --playbook NAME+OVERLAY")
    if is_playbook(document):
        raise _other(document, "a playbook, not an inventory", f"give an inventory, and --playbook {document.file}")
    _refuse_unknown(document)


def refuse_as_playbook(document: Document) -> None:
    """Raise UsageError if a file that is used as a playbook is of another kind."""
    if is_overlay(document):
        raise _other(document, "an overlay, not a playbook", "give PLAYBOOK+OVERLAY")
    if is_inventory(document):
        raise _other(document, "an inventory, not a playbook", "give a playbook; sparkcluster playbooks lists them")
    _refuse_unknown(document)


def _refuse_unknown(document: Document) -> None:
    if not document.data.keys() & (Inventory.model_fields.keys() | Playbook.model_fields.keys()):
        importing = f"{shell('sparkcluster import', document.file)} converts recipes of other tools"
        raise _other(document, "neither an inventory nor a playbook", importing)


def _other(document: Document, what: str, hint: str) -> UsageError:
    return UsageError(f"{document.file} is {what}", hint=hint)
