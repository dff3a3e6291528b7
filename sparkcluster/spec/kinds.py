"""What a YAML file is: inventory, playbook or overlay; and what to do with one that was given in place of another."""

from __future__ import annotations

from sparkcluster.errors import UsageError
from sparkcluster.spec.base import Section
from sparkcluster.spec.document import Document, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook
from sparkcluster.suggest import closest

_IMPORT = "sparkcluster import {} converts recipes of other tools"


def is_inventory(document: Document) -> bool:
    """Whether a file is an inventory: it names a cluster or lists nodes."""
    return isinstance(document.data.get("nodes"), list) or "cluster" in document.data


def is_playbook(document: Document) -> bool:
    """Whether a file is a playbook: it is no inventory, and has a key of one alone, or mostly such keys."""
    if is_inventory(document):
        return False
    keys = set(document.data)
    own = keys & set(Playbook.model_fields)
    alone = keys & {"model", "extends", "served_name"} or any(closest(key, ["extends"], cutoff=0.9) for key in keys)
    return bool(alone) or len(own) > max(1, len(keys & set(Inventory.model_fields)))


def is_overlay(document: Document) -> bool:
    """Whether a file is an overlay."""
    return "overlay" in document.data


def allowed_overlays(document: Document) -> list[str]:
    """Names of the overlays that a playbook allows."""
    names = document.data.get("overlays")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def refuse_as_inventory(document: Document) -> None:
    """Raise UsageError if a file that is used as an inventory is something else."""
    file = document.file
    if is_overlay(document):
        raise UsageError(
            f"{file} is an overlay, not an inventory", hint="give an inventory, and --playbook NAME+OVERLAY"
        )
    if is_playbook(document):
        raise UsageError(f"{file} is a playbook, not an inventory", hint=f"give an inventory, and --playbook {file}")
    if _unlike(document, Inventory):
        raise UsageError(f"{file} is neither an inventory nor a playbook", hint=_IMPORT.format(file))


def refuse_as_playbook(document: Document) -> None:
    """Raise UsageError if a file that is used as a playbook is something else."""
    file = document.file
    if is_overlay(document):
        raise UsageError(f"{file} is an overlay, not a playbook", hint="write PLAYBOOK+OVERLAY")
    if is_inventory(document):
        serves = document.data.get("playbook")
        named = f"give the playbook that it names, {shown(serves)[1:-1]}; " if isinstance(serves, str) else ""
        hint = f"{named}sparkcluster playbooks lists the bundled ones"
        raise UsageError(f"{file} is an inventory, not a playbook", hint=hint)
    if _unlike(document, Playbook):
        raise UsageError(f"{file} is neither a playbook nor an inventory", hint=_IMPORT.format(file))


def _unlike(document: Document, model: type[Section]) -> bool:
    """Whether a file has no key of ``model``, not even a misspelt one."""
    return not any(key in model.model_fields or closest(key, model.model_fields) for key in document.data)
