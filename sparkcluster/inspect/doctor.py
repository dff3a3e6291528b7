"""``doctor``: find out what is wrong with a running cluster; nothing on a node is changed."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.checks import run_stage
from sparkcluster.checks.registry import CATALOGUE, UNPLANNED, Context
from sparkcluster.checks.running_cluster import AGAIN
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import Endpoint, of_launcher, recorded_endpoints
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import Unread
from sparkcluster.facts.collect import collect_facts, node_documents
from sparkcluster.facts.model import Facts, ReleaseFact
from sparkcluster.facts.release_record import Record
from sparkcluster.facts.running import Observation, RankSeen, Reply, Running
from sparkcluster.findings import Finding, has_errors, ordered
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect.observing import ROUND_TRIP_S, observe_nodes
from sparkcluster.inspect.preflight import examine
from sparkcluster.inspect.state import (
    DEGRADED,
    DOWN,
    ORPHANED,
    SERVING,
    STARTING,
    UNKNOWN,
    left_by,
    next_command,
    present_record,
    responds,
    states,
)
from sparkcluster.plan.build import SECRETS_FILE
from sparkcluster.plan.release_record import (
    ClusterRanks,
    cluster_ranks,
    current_lease,
    labelled_heads,
    recorded_groups,
    recorded_release,
)
from sparkcluster.report import Report, count
from sparkcluster.runtime import failed_logs, secrets
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Verify
from sparkcluster.topology.model import EMPTY

# Enough to tell language from garbage.
TOKENS = 48


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The result of ``doctor``.

    Attributes:
        facts: of the nodes that answered, by name.
        errors: of those that did not.
        running: ranks, logs, counters and answers.
        seconds: how long all of it took.
    """

    spec: Spec
    facts: Mapping[str, Facts]
    errors: Mapping[str, SparkclusterError]
    running: Running
    findings: tuple[Finding, ...]
    seconds: float

    @functools.cached_property
    def state(self) -> str:
        """What the cluster is in, as ``status`` calls it."""
        present = cluster_ranks(self.spec.inventory.cluster, self.facts)
        recorded = recorded_groups(present_record(present, self.running.recorded))
        replies = self.running.replies.items()
        responding = [name for name, reply in replies if responds(reply)]
        return states(self.facts, present, recorded, responding, lease=self.running.lease, errors=self.errors)[1]

    @property
    def next(self) -> str:
        """What to type: what ``up`` finds dead, it starts again; what only seems to serve has to go down first.

        Where there are errors that ``up`` would refuse, what lists them.
        """
        errors = [each for each in self.findings if each.severity == "error"]
        running = {code for code, check in CATALOGUE.items() if check.stage == "running"}
        if self.state != STARTING and any(each.code not in running for each in errors):
            return next_command(UNKNOWN)
        if self.state in {SERVING, DEGRADED} and any(AGAIN in each.remedy for each in errors):
            return AGAIN
        return next_command(DOWN if self.state == DEGRADED else self.state)

    @property
    def ok(self) -> bool:
        """Whether the cluster serves and no finding is an error."""
        return self.state == SERVING and not has_errors(self.findings)

    @property
    def model(self) -> str:
        """Name of the model that is, or was last, served."""
        recorded = self.running.recorded.record if self.running.recorded else {}
        return str(recorded.get("plan", {}).get("model") or self.spec.playbook.model_name)

    def verdict(self) -> str:
        """One line for people."""
        cluster = self.spec.inventory.cluster
        replies = [reply for reply in self.running.replies.values() if reply.ttft_s is not None]
        state = self.state
        parts = [f"{cluster} serves {self.model}" if state == SERVING else f"{cluster} is {state}"]
        parts += [left_by(self.facts)] if state == ORPHANED else []
        if replies:
            slowest = max(replies, key=lambda reply: reply.ttft_s or 0)
            parts.append(f"first token after {slowest.ttft_s:.2f} s")
            speeds = [reply.tokens_per_s for reply in replies if reply.tokens_per_s]
            parts += [f"{min(speeds):.1f} tokens/s"] if speeds else []
        severities = Counter(finding.severity for finding in self.findings if finding.severity != "info")
        parts += [count(number, severity) for severity, number in sorted(severities.items())]
        return f"{', '.join([*parts, count(len(self.facts), 'node')])}, {self.seconds:.1f} s"

    def as_json(self) -> dict[str, Any]:
        """The document of ``doctor --json``."""
        return {
            "ok": self.ok,
            "cluster": self.spec.inventory.cluster,
            "state": self.state,
            "next": self.next,
            "findings": [finding.as_json() for finding in self.findings],
            "nodes": node_documents(self.spec, self.facts, self.errors),
            "running": self.running.as_json(),
            "seconds": round(self.seconds, 3),
        }


def doctor(
    fleet: Fleet,
    spec: Spec,
    timeout_s: float,
    report: Report,
) -> Diagnosis:
    """Query every node and what runs there, and request a completion from every group, all within ``timeout_s``."""
    began = time.monotonic()
    until = began + timeout_s
    report.step("connect", count(len(fleet.hosts), "Spark"))
    # A node whose sshd hangs must leave most of the time to the others.
    collected = collect_facts(fleet, spec, kernel_log=True, limit_s=max(4.0, timeout_s * 0.4))
    facts = collected.facts
    present, latest = cluster_ranks(spec.inventory.cluster, facts), recorded_release(spec.inventory, facts)
    report.step("inspect", "ranks, logs, counters and one answer")
    limit_s = max(3.0, until - time.monotonic() - ROUND_TRIP_S)
    recorded = present_record(present, latest)
    questions = _recorded(facts, recorded) if recorded else {}
    calls = ask_groups(fleet, spec, questions, limit_s, report)
    observations = observe_nodes(fleet, spec, facts, limit_s)
    if not recorded:
        limit_s = max(2.0, until - time.monotonic() - ROUND_TRIP_S)
        questions = launched(spec, facts, observations)
        calls = ask_groups(fleet, spec, questions, limit_s, report)
    replies = replies_of(calls, questions, until - time.monotonic() + 1, limit_s)
    failed = last_failure(spec.inventory.cluster, latest, time.time())
    started_with = {name: group.secrets for name, group in recorded_groups(recorded).items()}
    changed = {name: secrets.unused(each, spec) for name, each in started_with.items()}
    lost = next(filter(None, (secrets.lost_key(each, spec) for each in started_with.values())), None)
    running = Running(observations, replies, latest, current_lease(facts), failed, changed, lost)
    report.step("check", count(len(facts), "Spark"))
    findings, topology = examine(spec, collected, facts)
    findings += run_stage(Context(spec, facts, topology or EMPTY, running=running), ["running"])
    found = tuple(ordered(of_what_runs(findings, present)))
    return Diagnosis(spec, facts, collected.errors, running, found, time.monotonic() - began)


def last_failure(cluster: str, latest: ReleaseFact | None, now_s: float) -> str:
    """What the last launch of ``cluster`` from this machine said when it failed, if it is newer than ``latest``."""
    failed = failed_logs.read(failed_logs.directory(cluster))
    if failed is None or (latest is not None and latest.record.get("verified_at", 0.0) > failed.at_s):
        return ""
    return failed.described(now_s)


# RUN-003 and RUN-015 judge both readings of a GPU under load; HOST-020 has one alone.
SUPERSEDED = frozenset({"HOST-020"})


def of_what_runs(findings: list[Finding], present: ClusterRanks) -> list[Finding]:
    """``findings`` without those that lint reports, and while ranks run without those about a launch."""
    written = {code for code, check in CATALOGUE.items() if check.stage == "written"}
    left_out = written | (SUPERSEDED | {UNPLANNED} if present.running else set())
    return [finding for finding in findings if finding.code not in left_out]


Question = tuple[Endpoint, Verify]
"""A group's endpoint, and how its answer is verified."""


def _recorded(facts: Mapping[str, Facts], recorded: Record) -> dict[str, Question]:
    """Endpoints of a recorded release whose heads answered, by group."""
    groups, found = recorded_groups(recorded), recorded_endpoints(recorded)
    return {name: (endpoint, groups[name].verify) for name, endpoint in found.items() if endpoint.head in facts}


def running_heads(
    spec: Spec, facts: Mapping[str, Facts], observations: Mapping[str, Observation | Unread]
) -> Iterator[tuple[str, RankSeen]]:
    """The head of every group that runs, and its node: no other node's word for it counts."""
    heads = labelled_heads(spec.inventory, facts)
    for node, rank in Running(observations).ranks():
        if rank.running and rank.launcher.get("role") == "head" and heads.get(rank.group, node) == node:
            yield node, rank


def launched(
    spec: Spec, facts: Mapping[str, Facts], observations: Mapping[str, Observation | Unread]
) -> dict[str, Question]:
    """Endpoints of groups that run without a record, from the launcher documents of their heads."""
    found: dict[str, Question] = {}
    for node, rank in running_heads(spec, facts, observations):
        folder = f"{spec.inventory.state_dir}/clusters/{spec.inventory.cluster}/ranks/{rank.name}"
        endpoint = of_launcher(
            rank.launcher,
            spec.playbook.engine,
            group=rank.group,
            head=node,
            model=spec.playbook.model_name,
            key_file=f"{folder}/{SECRETS_FILE}" if spec.inventory.api.key is not None else None,
        )
        found[rank.group] = (endpoint, spec.playbook.verifying)
    return found


def ask_groups(
    fleet: Fleet, spec: Spec, questions: Mapping[str, Question], limit_s: float, report: Report
) -> Calls[Reply]:
    """Begin one streamed completion of every group whose head is in the inventory."""
    counters = engines.engine(spec.playbook.engine).counters

    def ask_group(question: Question) -> Reply:
        endpoint, verify = question
        host, tokens = fleet.hosts[endpoint.head], min(TOKENS, verify.max_tokens)
        reply = ask(host, endpoint, verify, limit_s=limit_s, max_tokens=tokens, counters=counters)
        report.progress(host.name, "answered" if reply.ttft_s is not None else "no answer")
        return reply

    reachable = {group: question for group, question in questions.items() if question[0].head in fleet.hosts}
    return Calls(ask_group, reachable)


def replies_of(
    calls: Calls[Reply], questions: Mapping[str, Question], limit_s: float, asked_s: float
) -> dict[str, Reply]:
    """Replies by group that came within ``limit_s``; a group without one gets a reply that says so."""
    return {
        group: Reply(
            group,
            questions[group][0].head,
            problem="timeout",
            message=f"no answer within {asked_s:.0f} s",
            limit_s=asked_s,
        )
        if isinstance(outcome, SparkclusterError)
        else outcome
        for group, outcome in calls.wait(limit_s).items()
    }
