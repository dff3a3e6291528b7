"""Checks of the kernel logs of a running cluster: faults of ConnectX-7, kernel and GPU, and how a boot ended."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from sparkcluster.checks.registry import DOWN, REBOOT, UP, Seen
from sparkcluster.checks.running_cluster import RunningCluster, clipped, running_check
from sparkcluster.engines.signature import rows
from sparkcluster.facts.base import Unread, read
from sparkcluster.findings import Remedy, Severity, edit, on_node
from sparkcluster.printable import shell


@dataclasses.dataclass(frozen=True, slots=True)
class KernelFault:
    """Lines of a kernel log about one fault, as kernel_faults.toml describes it."""

    pattern: str
    what: str
    source: str
    again: str = ""
    edit: str = ""

    @property
    def remedy(self) -> tuple[Remedy | str, ...]:
        """What to do about it."""
        return (edit(self.edit), UP) if self.edit else (DOWN, REBOOT, self.again, UP)


FAULTS = tuple(KernelFault(**row) for row in rows(Path(__file__).with_name("kernel_faults.toml"), "faults"))
JOURNAL = on_node("sudo journalctl -b -1 -k -n 50 --no-pager")


def _last(lines: tuple[str, ...], fault: KernelFault, since: str = "") -> str | None:
    """The last of ``lines`` about ``fault``, with a rank's fault only those of a time after ``since``."""
    found = (line for line in reversed(lines) if re.search(fault.pattern, line))
    return next((line for line in found if not fault.edit or (line[:4].isdigit() and line[:19] >= since)), None)


@running_check(
    "RUN-026",
    "The kernel reports no fault",
    source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#146; the SM121 guide: Xid 43",
    remedy="reboot that node; open a support case if the ConnectX-7 fails again",
)
def faults(cluster: RunningCluster) -> Iterator[Seen]:
    """After a fatal PCIe error the ConnectX-7 is gone until a reboot, and processors may hang in its recovery.

    A warning while the model answers. Xid 31 and 43 count from the start of the ranks.
    """
    severity: Severity = "error" if cluster.sick else "warning"
    for name, facts in cluster.facts.items():
        starts = [rank.started_at for node, rank in cluster.ranks if node == name and rank.started_at]
        lines = read(facts.kernel_log) or ()
        for fault in FAULTS:
            line = _last(lines, fault, min(starts, default="never")[:19])
            if line is not None:
                yield Seen(fault.what.format(name), clipped(line), fault.remedy, severity=severity, node=name)


@running_check(
    "RUN-027",
    "Every node's last boot ended by a shutdown",
    severity="warning",
    source="NVIDIA/dgx-spark-playbooks#97: the journal ends abruptly; journalctl(1)",
    remedy=[JOURNAL, UP],
)
def crashed(cluster: RunningCluster) -> Iterator[Seen]:
    """A node that froze, lost power or crashed has no word about it in the log of its present boot.

    Information while the model answers. That a log cannot be read is said where the model does not answer.
    """
    for name, facts in cluster.facts.items():
        before = facts.boot_before
        if isinstance(before, Unread):
            if cluster.sick:
                summary = f"what the boot of {name} before this one ended with cannot be read"
                allow = on_node(shell("sudo usermod -aG adm", facts.user), "then doctor can, after a new login")
                yield Seen(summary, before.unread, (JOURNAL, allow), severity="info", node=name)
        elif before:
            fault = next(((each, line) for each in FAULTS if (line := _last(before, each))), None)
            summary = f"{name} restarted without a shutdown" + (f": {fault[0].what.format(name)}" if fault else "")
            remedy = (JOURNAL, *fault[0].remedy) if fault else None
            severity: Severity = "warning" if cluster.sick else "info"
            seen = clipped(fault[1] if fault else before[-1])
            yield Seen(summary, f"its kernel log ended with: {seen}", remedy, severity=severity, node=name)
