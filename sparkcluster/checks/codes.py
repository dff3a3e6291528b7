"""A rule on the codes that a user writes: those that there are."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.spec import KeyPath


@check(
    "SPEC-007",
    "Codes to ignore and to allow are those of checks",
    stage="written",
    severity="warning",
    source="docs/checks.md",
    remedy="take the code from `sparkcluster checks`",
)
def code(context: Context) -> Iterator[Seen]:
    """A code that no check has lets nothing pass: what was meant to be ignored stops the launch all the same."""
    # Here, for the pages are made of all checks, of which this is one.
    from sparkcluster.checks.pages import pages  # noqa: PLC0415

    known = pages()
    spec = context.spec
    written: list[tuple[str, str, KeyPath | None]] = [
        ("ignore in the inventory", one, None) for one in spec.inventory.ignore
    ]
    written += [
        ("allow in the playbook", one.code, ("allow", index, "code")) for index, one in enumerate(spec.playbook.allow)
    ]
    for where, one, at in written:
        if one not in known:
            near = get_close_matches(one, sorted(known), n=1, cutoff=0.5)
            remedy = f"write {near[0]}, if that is meant" if near else "sparkcluster checks   lists them"
            yield Seen(None, f"{where} names {one}, which no check has", one, (remedy,), at=at)
