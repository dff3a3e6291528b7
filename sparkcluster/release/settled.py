"""Whether there is anything to do: what serves already, this plan or another, by asking it."""

from __future__ import annotations

from typing import Any

from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import endpoints, recorded_endpoints
from sparkcluster.endpoint.judge import brief, judge
from sparkcluster.errors import NotServing, OtherPlan
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.status import ask_recorded
from sparkcluster.plan.diff import difference
from sparkcluster.plan.model import Plan
from sparkcluster.release.states import TABLE, Action, State, state_of
from sparkcluster.report import Report
from sparkcluster.spec import Spec


def settled(fleet: Fleet, view: View, report: Report) -> dict[str, Reply] | None:
    """Answers where the cluster already serves this plan; None where there is something to do.

    Raises:
        OtherPlan: it serves, and answers, another one.
        FoundErrors, PlanError: it serves, and what ``up`` would deploy cannot even be planned.
    """
    action, _ = TABLE[state_of(view)]
    if action is Action.ASK:
        _, plan = view.ready()
        report.step("verify", "asking whether it still answers")
        return healthy(fleet, view.spec, plan, report)
    if state_of(view) is State.OTHER and view.newest is not None:
        recorded = view.newest.record
        # A head that the inventory has lost cannot be asked, and nothing says that it does not serve.
        asked = all(endpoint.head in fleet.hosts for endpoint in recorded_endpoints(recorded).values())
        if not asked or answering(fleet, recorded):
            if view.plan is None:
                view.stop_on_errors()
            _, plan = view.ready()
            raise OtherPlan(
                "this cluster serves another plan; nothing was changed",
                difference(recorded.get("plan", {}), plan.as_json()),
                hint=f"sparkcluster down {view.spec.inventory_path}, then up",
            )
    return None


def healthy(fleet: Fleet, spec: Spec, plan: Plan, report: Report) -> dict[str, Reply] | None:
    """One completion of every group, or None as soon as one does not answer as the playbook expects."""
    answers: dict[str, Reply] = {}
    verify = spec.playbook.verify
    for group, endpoint in endpoints(plan.as_json(), plan.engine).items():
        reply = ask(fleet.hosts[endpoint.head], endpoint, verify, max_tokens=brief(verify))
        wrong = reply.message if reply.problem else judge(reply.text, verify)
        if wrong:
            report.note(f"{group}: {wrong}")
            return None
        answers[group] = reply
    return answers


def answering(fleet: Fleet, recorded: dict[str, Any]) -> bool:
    """Whether the release that ``recorded`` describes answers a short completion, on every group."""
    try:
        ask_recorded(fleet, recorded)
    except NotServing:
        return False
    return True
