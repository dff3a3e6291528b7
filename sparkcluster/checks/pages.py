"""The documented codes: those of checks, and those of errors before any check can run."""

from __future__ import annotations

import dataclasses
import functools

from sparkcluster import engines
from sparkcluster.checks.registry import CATALOGUE, EXAMPLE, UNPLANNED, UNREAD, UNSET, Page, Stage, load
from sparkcluster.errors import UsageError
from sparkcluster.suggest import closest

# A code with one wrong character is suggested, one that shares only its subject is not.
CODE_CUTOFF = 0.8

STAGES: dict[Stage, str] = {
    "written": "inventory and playbook: `lint` and all commands below",
    "facts": "the facts of every node: `preflight`, `up`, `plan`, `doctor`",
    "reach": "which node reaches which: `preflight`, `up`",
    "deep": "bandwidth between nodes, hashes of weights: `preflight --deep`, `--hash`",
    "running": "a serving cluster: `doctor`",
}
SUBJECTS = {
    "SSH": "Reaching a node",
    "FACT": "Facts",
    "PLAN": "The plan",
    "NET": "Network",
    "HOST": "Hosts",
    "IMG": "Image",
    "MDL": "Weights",
    "FIT": "Memory for the model",
    "SPEC": "Playbook and inventory",
    "SM121": "GB10 (SM121)",
    "RUN": "Running clusters",
}
RENAMED = {"SM121-024": "IMG-010", "SM121-128": "MDL-004", "SM121-129": "SPEC-008"}
"""Codes of earlier versions that are not about SM121, and their names now."""


NOTHING_STARTS = "The node cannot be used, and a group is started as a whole or not at all"


def _unreachable(code: str, title: str, remedy: str, why: str = NOTHING_STARTS) -> Page:
    return Page(code=code, title=title, why=why, source="ssh(1), sshd_config(5)", remedy=remedy)


SPEC_SOURCE = "docs/inventory.md, docs/playbook.md"

WITHOUT_CHECK = (
    _unreachable(
        "SSH-001",
        "The node's name resolves",
        "getent hosts NAME, or set host in the inventory to an address",
    ),
    _unreachable(
        "SSH-002",
        "Its SSH port accepts connections",
        "sudo systemctl enable --now ssh on the node; ssh.port in the inventory",
    ),
    _unreachable(
        "SSH-003",
        "It answers in time",
        "ping NODE; if ping answers but SSH does not, power-cycle it; ssh.connect_timeout_s in the inventory",
        "The node cannot be reached: it may be off, out of memory, or behind a firewall",
    ),
    _unreachable(
        "SSH-004",
        "Its host key is known",
        "ssh NODE true once, to verify and store the key; or ssh.host_keys: accept-new",
        "Another machine could answer in place of the node",
    ),
    _unreachable(
        "SSH-005",
        "Its host key is the stored one",
        "ssh-keygen -R NODE once you know the reason, then ssh NODE true",
        "The node was reinstalled, or another machine answers in its place and would receive weights and keys",
    ),
    _unreachable(
        "SSH-006",
        "It accepts one of the SSH keys offered",
        "ssh-copy-id USER@NODE, after ssh-keygen if you have no key; ssh.identity and ssh.user in the inventory",
    ),
    _unreachable(
        "SSH-007",
        "The connection stays open",
        "run it again; ssh -v NODE true; check the cable or the WiFi",
        "What was running on the node was interrupted",
    ),
    _unreachable(
        "SSH-008",
        "Its commands finish in time",
        "ssh NODE uptime; free -m; if that hangs too, power-cycle it",
        "The node hangs, often because it is out of memory or a disk does not respond",
    ),
    _unreachable(
        "SSH-009",
        "sparkcluster's programs run on it",
        "python3 --version on the node must be 3.10 or newer; the message has the last line of the error",
    ),
    _unreachable(
        "SSH-010",
        "It can be reached",
        "see the message",
    ),
    Page(
        code="SSH-011",
        title="It is another machine than the other nodes",
        why="A machine that is listed twice, say by address and by name, has one GPU and runs one rank",
        more="Two nodes are one machine if they report the same /etc/machine-id and the same hardware address of an "
        "interface. Clones of a disk share the machine ID alone. The first of them counts; nothing else is said about "
        "the second.",
        source="machine-id(5)",
        remedy="remove one of the two from nodes of the inventory; if they are meant to be two Sparks, correct the "
        "address of one",
    ),
    Page(
        code=UNREAD,
        severity="warning",
        title="All facts that checks need can be read",
        why="Those checks cannot judge the node",
        more="A failed reading that has its own check, such as Docker's or the GPU's, is not reported twice.",
        source="general",
        remedy="sparkcluster preflight INVENTORY --json shows what the node answered",
    ),
    Page(
        code=UNPLANNED,
        title="A plan can be made",
        why="Without a plan nothing can be started",
        more="The message says what is missing, for example an address on a rail of the inventory, or an argument that "
        "does not work with this number of nodes.",
        source=SPEC_SOURCE,
        remedy="see the message",
    ),
    Page(
        code="SPEC-001",
        stage="written",
        title="The file can be read",
        why="Without it no command can run",
        source=SPEC_SOURCE,
        remedy="see the message",
    ),
    Page(
        code="SPEC-002",
        stage="written",
        title="Every key exists and has a value of the right type",
        why="No command runs with an invalid file",
        more="Each problem is reported with file, line and column, and with what to write there.",
        source=SPEC_SOURCE,
        remedy="fix that line as the message says",
    ),
    Page(
        code=UNSET,
        title="Every secret has a value where up runs",
        why="up starts nothing without it",
        more="The API key of the inventory, and the secrets of the playbook.",
        source=SPEC_SOURCE,
        remedy="see the message",
    ),
    Page(
        code=EXAMPLE,
        title="The inventory has the addresses of your Sparks",
        why="An address of the example belongs to another machine, or to none",
        more="preflight reports it of a node that cannot be reached, and whose line still says CHANGE; lint of every "
        "line that does.",
        source=SPEC_SOURCE,
        remedy="sparkcluster discover -o FILE finds your Sparks and writes an inventory",
    ),
)


@functools.cache
def pages() -> dict[str, Page]:
    """Every page by its code, in the order of subjects and numbers; with the reports of the engines as sources."""
    load()
    reports = [engines.engine(name).reports for name in engines.names()]
    subjects = list(SUBJECTS)

    def order(page: Page) -> tuple[int, str]:
        return subjects.index(page.subject) if page.subject in SUBJECTS else len(subjects), page.code

    def with_reports(page: Page) -> Page:
        sources = (page.source, *(report.get(page.code) for report in reports))
        return dataclasses.replace(page, source="; ".join(filter(None, sources)))

    return {page.code: with_reports(page) for page in sorted([*WITHOUT_CHECK, *CATALOGUE.values()], key=order)}


def find(code: str) -> Page:
    """The page of ``code``, in upper or lower case.

    Raises:
        UsageError: there is no such check; the hint names the most similar code.
    """
    documented, requested = pages(), code.strip().upper()
    if requested in documented:
        return documented[requested]
    subject, _, number = requested.rpartition("-")
    padded = f"{subject}-{number.zfill(3)}"
    near = padded if padded in documented else closest(requested, documented, cutoff=CODE_CUTOFF)
    hint = f"did you mean {near}?" if near else "sparkcluster checks lists them"
    raise UsageError(f"unknown check {code[:40]}", hint=hint)
