"""The documented codes: those of checks, and those of errors before any check can run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from sparkcluster import engines
from sparkcluster.checks.registry import (
    CATALOGUE,
    EXAMPLE,
    MERGED,
    UNPLANNED,
    UNREAD,
    UNSET,
    Context,
    Page,
    Seen,
    Stage,
    check,
    load,
)
from sparkcluster.errors import UsageError
from sparkcluster.findings import edit, here, remedies
from sparkcluster.spec import KeyPath
from sparkcluster.spec.powers import SECURITY
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
NOTHING_STARTS = "The node cannot be used, and a group is started as a whole or not at all"
SPEC_SOURCE = "docs/inventory.md, docs/playbook.md"
SEE = "see the message"

# Code, title, remedy, and what happens otherwise where it is not NOTHING_STARTS.
UNREACHABLE = (
    ("SSH-001", "The node's name resolves", "getent hosts NAME, or set host in the inventory to an address"),
    (
        "SSH-002",
        "Its SSH port accepts connections",
        "sudo systemctl enable --now ssh on the node; ssh.port in the inventory",
    ),
    (
        "SSH-003",
        "It answers in time",
        "ping NODE; if ping answers but SSH does not, power-cycle it; ssh.connect_timeout_s in the inventory",
        "The node cannot be reached: it may be off, out of memory, or behind a firewall",
    ),
    (
        "SSH-004",
        "Its host key is known",
        "ssh NODE true once, to verify and store the key; or ssh.host_keys: accept-new",
        "Another machine could answer in place of the node",
    ),
    (
        "SSH-005",
        "Its host key is the stored one",
        "ssh-keygen -R NODE once you know the reason, then ssh NODE true",
        "The node was reinstalled, or another machine answers in its place and would receive weights and keys",
    ),
    (
        "SSH-006",
        "It accepts one of the SSH keys offered",
        "ssh-copy-id USER@NODE, after ssh-keygen if you have no key; ssh.identity and ssh.user in the inventory",
    ),
    (
        "SSH-007",
        "The connection stays open",
        "run it again; ssh -v NODE true; check the cable or the WiFi",
        "What was running on the node was interrupted",
    ),
    (
        "SSH-008",
        "Its commands finish in time",
        "ssh NODE uptime; free -m; if that hangs too, power-cycle it",
        "The node hangs, often because it is out of memory or a disk does not respond",
    ),
    (
        "SSH-009",
        "sparkcluster's programs run on it",
        "python3 --version on the node must be 3.10 or newer; the message has the last line of the error",
    ),
    ("SSH-010", "It can be reached", SEE),
)


def _page(code: str, title: str, why: str, remedy: str, **more: Any) -> Page:
    return Page(code=code, title=title, why=why, remedies=remedies([remedy]), **{"source": SPEC_SOURCE, **more})


def _unreachable(code: str, title: str, remedy: str, why: str = NOTHING_STARTS) -> Page:
    return _page(code, title, why, remedy, source="ssh(1), sshd_config(5)")


WITHOUT_CHECK = (
    *(_unreachable(*row) for row in UNREACHABLE),
    _page(
        "SSH-011",
        "It is another machine than the other nodes",
        "A machine that is listed twice, say by address and by name, has one GPU and runs one rank",
        "remove one of the two from nodes of the inventory; if they are meant to be two Sparks, correct the address of"
        " one",
        source="machine-id(5)",
        more="Two nodes are one machine if they report the same /etc/machine-id and the same hardware address of an "
        "interface. Clones of a disk share the machine ID alone. The first of them counts; nothing else is said about "
        "the second.",
    ),
    _page(
        UNREAD,
        "All facts that checks need can be read",
        "Those checks cannot judge the node",
        "sparkcluster preflight INVENTORY --json shows what the node answered",
        source="general",
        more="A failed reading that has its own check, such as Docker's or the GPU's, is not reported twice.",
        severity="warning",
    ),
    _page(
        UNPLANNED,
        "A plan can be made",
        "Without a plan nothing can be started",
        SEE,
        more="The message says what is missing, for example an address on a rail of the inventory, or an argument that "
        "does not work with this number of nodes.",
    ),
    _page("SPEC-001", "The file can be read", "Without it no command can run", SEE, stage="written"),
    _page(
        "SPEC-002",
        "Every key exists and has a value of the right type",
        "No command runs with an invalid file",
        "fix that line as the message says",
        more="Each problem is reported with file, line and column, and with what to write there.",
        stage="written",
    ),
    _page(
        UNSET,
        "Every secret has a value where up runs",
        "up starts nothing without it",
        SEE,
        more="The API key of the inventory, and the secrets of the playbook.",
    ),
    _page(
        EXAMPLE,
        "The inventory has the addresses of your Sparks",
        "An address of the example belongs to another machine, or to none",
        "sparkcluster discover -o FILE finds your Sparks and writes an inventory",
        more="preflight reports it of a node that cannot be reached, and whose line still says CHANGE; lint of every "
        "line that does.",
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
    requested = MERGED.get(requested, requested)
    if requested in documented:
        return documented[requested]
    subject, _, number = requested.rpartition("-")
    padded = f"{subject}-{number.zfill(3)}"
    near = padded if padded in documented else closest(requested, documented, cutoff=CODE_CUTOFF)
    hint = f"did you mean {near}?" if near else "sparkcluster checks lists them"
    raise UsageError(f"unknown check {code[:40]}", hint=hint)


@check(
    "SPEC-007",
    "Codes under ignore and allow have an effect",
    stage="written",
    severity="warning",
    source="docs/checks.md",
    remedy=[here("sparkcluster checks", "lists them")],
)
def codes(context: Context) -> Iterator[Seen]:
    """A code that no check has accepts nothing: what was meant to be ignored stops the launch all the same.

    Codes that protect against hostile playbooks are accepted by the inventory alone.
    """
    documented = pages()
    written: list[tuple[str, str, KeyPath | None]] = [
        *(("ignore in the inventory", name, None) for name in context.spec.inventory.ignore),
        *(
            ("allow in the playbook", allow.code, ("allow", index, "code"))
            for index, allow in enumerate(context.spec.playbook.allow)
        ),
    ]
    for where, name, at in written:
        now = MERGED.get(name, name)
        if now not in documented or (name != now and now in SECURITY):
            near = MERGED.get(name) or closest(name, documented, cutoff=CODE_CUTOFF)
            remedy = [edit(f"write {near}")] if near else None
            yield Seen(f"{where} lists {name}, which is not the code of a check", name, remedy, at=at)
        elif at and name in SECURITY:
            remedy = [edit(f"remove it; the inventory can accept it, by ignore: [{name}]")]
            yield Seen(f"{where} lists {name}, which a playbook cannot accept", name, remedy, at=at)
