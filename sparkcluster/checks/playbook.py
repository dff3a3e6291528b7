"""Checks of what the user wrote, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.spec import KeyPath
from sparkcluster.spec.powers import SECURITY
from sparkcluster.suggest import closest


@check(
    "SPEC-007",
    "Codes under ignore and allow have an effect",
    stage="written",
    severity="warning",
    source="docs/checks.md",
    remedy="take the code from `sparkcluster checks`",
)
def code(context: Context) -> Iterator[Seen]:
    """A code that no check has accepts nothing: what was meant to be ignored stops the launch all the same.

    Codes that protect against hostile playbooks are accepted by the inventory alone.
    """
    # Here, since the pages are made of all checks, and this is one of them.
    from sparkcluster.checks.pages import CODE_CUTOFF, RENAMED, pages  # noqa: PLC0415

    codes = pages()
    written: list[tuple[str, str, KeyPath | None]] = [
        *(("ignore in the inventory", name, None) for name in context.spec.inventory.ignore),
        *(
            ("allow in the playbook", allow.code, ("allow", index, "code"))
            for index, allow in enumerate(context.spec.playbook.allow)
        ),
    ]
    for where, name, at in written:
        if name not in codes:
            near = RENAMED.get(name) or closest(name, codes, cutoff=CODE_CUTOFF)
            remedy = f"write {near}" if near else "sparkcluster checks   lists them"
            yield Seen(f"{where} lists {name}, which is not the code of a check", name, (remedy,), at=at)
        elif at and name in SECURITY:
            remedy = f"remove it; the inventory can accept it, by ignore: [{name}]"
            yield Seen(f"{where} lists {name}, which a playbook cannot accept", name, (remedy,), at=at)
