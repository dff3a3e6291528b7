"""The finding: what one check saw, why it matters, and what to type."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        code: stable name of the check, as ``NET-014``.
        severity: an ``error`` stops ``up``; a ``warning`` does not.
        summary: one line, no full stop.
        node: name of the node it is about, or None for the whole cluster.
        seen: what was read, literally where possible.
        why: what happens to those who go on regardless.
        remedy: commands or sentences that mend it, in order.
        file: the user's file it is about, for what was written rather than seen.
        line: one-based line in ``file``.
    """

    code: str
    severity: Severity
    summary: str
    node: str | None = None
    seen: str = ""
    why: str = ""
    remedy: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The finding in the shape that other programs may rely on."""
        return {**dataclasses.asdict(self), "remedy": list(self.remedy)}


def has_errors(findings: tuple[Finding, ...] | list[Finding]) -> bool:
    """Whether one of ``findings`` stops a launch."""
    return any(finding.severity == "error" for finding in findings)
