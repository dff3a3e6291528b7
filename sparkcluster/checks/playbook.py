"""Checks of what the user wrote, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.spec import KeyPath
from sparkcluster.suggest import closest

POWERS = frozenset(
    {"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "SYS_TIME", "MAC_ADMIN", "DAC_READ_SEARCH", "BPF"}
)


@check(
    "SPEC-007",
    "Codes under ignore and allow exist",
    stage="written",
    severity="warning",
    source="docs/checks.md",
    remedy="take the code from `sparkcluster checks`",
)
def code(context: Context) -> Iterator[Seen]:
    """A code that no check has accepts nothing: what was meant to be ignored stops the launch all the same."""
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


@check(
    "SPEC-009",
    "Containers have no capability that controls the node",
    stage="written",
    source="capabilities(7)",
    remedy="remove the capability from container.cap_add",
)
def powers(context: Context) -> Iterator[Seen]:
    """Some capabilities give a container the node itself, or its network, as `--privileged` does.

    No rank needs one. SYS_NICE, IPC_LOCK and SYS_PTRACE are harmless in comparison.
    """
    for index, capability in enumerate(context.spec.playbook.container.cap_add):
        if capability in POWERS:
            at: KeyPath = ("container", "cap_add", index)
            summary = f"{capability} gives the container control of the node"
            yield Seen(summary, f"cap_add: {capability}", (f"take {capability} out of cap_add",), at=at)
