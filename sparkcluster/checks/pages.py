"""The catalogue as it is shown and printed: every code, that of checks and of what keeps a node from being asked."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sparkcluster import engines
from sparkcluster.checks.registry import CATALOGUE, UNPLANNED, UNREAD, Stage, load
from sparkcluster.findings import Severity

STAGES: dict[Stage, str] = {
    "written": "what is written: `lint`, and everybody else",
    "facts": "what every node said of itself: `preflight`, `up`, `plan`, `doctor`",
    "reach": "what the nodes reached of one another: `preflight`, `up`",
    "deep": "what was measured between them: `preflight --deep`",
    "running": "a cluster that serves: `doctor`",
}
SUBJECTS = {
    "SSH": "Reaching a node",
    "FACT": "Readings",
    "PLAN": "The plan",
    "NET": "Network",
    "HOST": "Hosts",
    "IMG": "Image",
    "MDL": "Weights",
    "FIT": "Memory that the model needs",
    "SPEC": "Playbook and inventory",
    "SM121": "What is known of GB10 (SM121)",
    "RUN": "A cluster that runs",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """One code.

    Attributes:
        title: what holds on a healthy cluster.
        why: what happens to those who go on where it does not.
        more: further paragraphs.
        needs: facts without which it cannot be judged.
        remedy: what mends it, in words.
    """

    code: str
    severity: Severity
    stage: Stage
    title: str
    why: str
    more: str = ""
    needs: tuple[str, ...] = ()
    source: str = ""
    remedy: str = ""

    @property
    def subject(self) -> str:
        """The letters in front."""
        return self.code.rpartition("-")[0]

    def as_json(self) -> dict[str, Any]:
        """The page as ``checks --json`` prints it."""
        return {**dataclasses.asdict(self), "needs": list(self.needs)}


def _asking(code: str, title: str, why: str, remedy: str) -> Page:
    return Page(code, "error", "facts", title, why, source="ssh(1), sshd_config(5)", remedy=remedy)


ASKING = (
    _asking(
        "SSH-001",
        "The node's name resolves",
        "The node cannot be found, and a group is started whole or not at all",
        "getent hosts NAME, or an address as host in the inventory",
    ),
    _asking(
        "SSH-002",
        "Something listens on its SSH port",
        "The node cannot be asked, and a group is started whole or not at all",
        "sudo systemctl enable --now ssh on the node; ssh.port in the inventory",
    ),
    _asking(
        "SSH-003",
        "It answers within the limit",
        "The node cannot be asked; it may be off, frozen by a lack of memory, or behind a firewall",
        "ping NODE; if that answers and SSH does not, switch it off and on; ssh.connect_timeout_s in the inventory",
    ),
    _asking(
        "SSH-004",
        "Its host key is known",
        "Nobody could tell this node from another machine that answers in its place",
        "ssh NODE true once, to compare and store the key; or ssh.host_keys: accept-new",
    ),
    _asking(
        "SSH-005",
        "Its host key is the one that was stored",
        "It was installed anew, or another machine answers in its place and would get weights and keys",
        "ssh-keygen -R NODE once you know why, then ssh NODE true",
    ),
    _asking(
        "SSH-006",
        "A key of ours opens it",
        "The node cannot be asked, and a group is started whole or not at all",
        "ssh-copy-id USER@NODE; ssh.identity and ssh.user in the inventory",
    ),
    _asking(
        "SSH-007",
        "The connection holds",
        "What was under way on the node ended in the middle",
        "run it again; ssh -v NODE true; look at the cable or the WiFi",
    ),
    _asking(
        "SSH-008",
        "Its commands end within their limit",
        "The node hangs: often it lacks memory, or a disk does not answer",
        "ssh NODE uptime; free -m; if that hangs as well, switch it off and on",
    ),
    _asking(
        "SSH-009",
        "What is asked of it can be answered",
        "Nothing is known of the node, and a group is started whole or not at all",
        "python3 --version on the node: 3.8 or newer is wanted; the message holds the last line of what failed",
    ),
    _asking(
        "SSH-010",
        "It can be asked at all",
        "Nothing is known of the node, and a group is started whole or not at all",
        "the message says what stood in the way",
    ),
    Page(
        UNREAD,
        "warning",
        "facts",
        "Everything that checks need could be read",
        "What those checks would have said of the node is not known",
        "A reading that a check tells of by itself, as Docker's or the GPU's, is not told twice.",
        source="general",
        remedy="sparkcluster preflight INVENTORY --json shows what the node answered",
    ),
    Page(
        UNPLANNED,
        "error",
        "facts",
        "A plan can be made of what is there",
        "Without a plan nothing can be started",
        "The message says what is missing, as an address on a rail that the inventory names, or an argument that "
        "this number of nodes cannot take.",
        source="docs/inventory.md, docs/playbook.md",
        remedy="what the message says",
    ),
    Page(
        "SPEC-001",
        "error",
        "written",
        "The file can be read",
        "Nothing can be made of it, and no command goes on",
        source="docs/inventory.md, docs/playbook.md",
        remedy="the message says what stood in the way",
    ),
    Page(
        "SPEC-002",
        "error",
        "written",
        "Every key is known and has a value of its kind",
        "Nothing can be made of it, and no command goes on",
        "Each problem is told with its file, line and column, and with what to write there.",
        source="docs/inventory.md, docs/playbook.md",
        remedy="what the message says, in that line",
    ),
)


def pages() -> dict[str, Page]:
    """Every page by its code, in the order of subjects and numbers."""
    found = {page.code: page for page in ASKING}
    load()
    reports = [engines.engine(name).reports for name in engines.names()]
    for one in CATALOGUE.values():
        found[one.code] = Page(
            one.code,
            one.severity,
            one.stage,
            one.title,
            one.why,
            one.more,
            one.needs,
            "; ".join(filter(None, (one.source, *(listed.get(one.code) for listed in reports)))),
            one.remedy,
        )
    order = list(SUBJECTS)

    def place(page: Page) -> tuple[int, str, int]:
        known = order.index(page.subject) if page.subject in SUBJECTS else len(order)
        return known, page.subject, int(re.sub(r"\D", "", page.code.rpartition("-")[2]) or 0)

    return {page.code: page for page in sorted(found.values(), key=place)}
