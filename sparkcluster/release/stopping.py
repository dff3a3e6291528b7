"""Stops the ranks of groups on every node, heads before workers, and reports failures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparkcluster.errors import LeaseLost, SparkclusterError, StopError
from sparkcluster.facts.base import Fact
from sparkcluster.facts.docker import Rank
from sparkcluster.hosts.fleet import Fleet, all_values, failures
from sparkcluster.hosts.program import call
from sparkcluster.inspect.cluster import View
from sparkcluster.node.shared import GRACE_S, LABEL_RANK
from sparkcluster.plan.model import Plan
from sparkcluster.report import Report
from sparkcluster.runtime import Changer, stop_steps
from sparkcluster.runtime.change import Step
from sparkcluster.runtime.lease import Lease
from sparkcluster.runtime.memory import watch_return
from sparkcluster.runtime.ranks import stop_limit_s


def ranks_of(plan: Plan) -> dict[str, list[Rank]]:
    """The ranks that ``plan`` starts, by node, in the form of facts."""
    return {
        name: [Rank(name=rank.name, state="running", labels=rank.labels) for rank in node.containers]
        for name, node in plan.nodes.items()
    }


def stop(
    changer: Changer,
    ranks: Mapping[str, Sequence[Rank]],
    report: Report,
    *,
    drain: bool = True,
) -> dict[str, SparkclusterError]:
    """Stop and remove ranks on all nodes, heads before workers; returns the errors of failed nodes.

    With ``drain``, a head gets time to finish requests in flight; it refuses new ones immediately. Afterwards the
    memory of all nodes is watched until it is free again, and missing memory is reported.
    """
    failed: dict[str, SparkclusterError] = {}
    for head in (True, False):
        stopping = {name: [rank for rank in present if is_head(rank) is head] for name, present in ranks.items()}
        limits_s = {
            name: max(stop_limit_s(rank, drain=drain) for rank in those) for name, those in stopping.items() if those
        }
        for name, limit_s in limits_s.items():
            requests = f", requests in flight within {limit_s - GRACE_S} s" if limit_s > GRACE_S else ""
            report.progress(name, f"stopping its rank within {limit_s} s{requests}")
        steps = {name: stop_steps(those, drain=drain) for name, those in stopping.items()}
        failed |= failures(changer.attempt(steps, timeout_s=max(limits_s.values(), default=0) + 60))
    watch_return(changer, {name: present for name, present in ranks.items() if name not in failed}, report)
    return failed


def guard_works(view: View) -> bool:
    """Whether a guard holds the lease of the cluster, because it starts or stops its group."""
    return view.lease is not None and view.lease.operation == "restart"


def end_guards(fleet: Fleet, view: View) -> None:
    """Stop the guards of a cluster; one guard may hold the lease. Their units stay installed."""
    request = {"state_dir": view.spec.inventory.state_dir, "cluster": view.spec.inventory.cluster}
    ended = fleet.each(lambda host: call(host, "unit", request, answer=Fact, timeout_s=90), view.facts)
    all_values(ended)


def is_head(rank: Rank) -> bool:
    """Whether a rank drives its group; the head is stopped first, so that it can drain."""
    return rank.labels.get(LABEL_RANK, "0") == "0"


def with_failed_stops(
    error: SparkclusterError, failed: Mapping[str, SparkclusterError], nodes: Collection[str]
) -> SparkclusterError:
    """``error`` extended by ranks that could not be stopped; LeaseLost if all ``nodes`` refused."""
    refused = [each for each in failed.values() if isinstance(each, LeaseLost)]
    final = refused[0] if len(refused) == len(nodes) else error
    running = [name for name, each in failed.items() if not isinstance(final, LeaseLost) or each not in refused]
    if running:
        final.message += f"; left running on {', '.join(running)}: run sparkcluster down once it can be reached"
        final.args = (final.message,)
    return final


def stop_on_failures(failed: Mapping[str, SparkclusterError], command: str, flags: str = "") -> None:
    """Raise StopError if ``command``, typed with ``flags``, failed on any node, with the cause and the hint of each."""
    again, errors = f"sparkcluster {command} INVENTORY", dict[str, SparkclusterError]()
    for name, error in failed.items():
        cause = [error.hint] if error.hint and not error.hint.startswith(f"{again}   ") else []
        errors[name] = StopError(
            f"{command} failed on {name}: {error.message.removeprefix(f'{name}: ')}",
            node=name,
            step=command,
            hint="; then ".join([*cause, f"{again}{flags}   to retry"]),
        )
    all_values(errors)


def remove_gateway(fleet: Fleet, view: View, report: Report, *, but: str = "") -> None:
    """Stop the gateway in ``view``, and its door, on every node except ``but``.

    Raises:
        StopError: a node could not be reached, or did not stop it.
        LeaseHeld: another operator changes it.
    """
    inventory, steps = view.spec.inventory, dict[str, list[Step]]()
    failed = {name: error for name, error in view.collected.errors.items() if name == view.spec.gateway_node}
    for name, facts in view.facts.items():
        if name != but and (view.ranks.ours[name] or facts.enabled is not None):
            place = f"{facts.state_dir}/clusters/{inventory.cluster}/ranks"
            steps[name] = [{"do": "disable"}, *stop_steps(view.ranks.ours[name]), {"do": "delete", "path": place}]
    if steps:
        report.step("stop", f"the gateway on {', '.join(steps)}")
        with Lease(fleet, inventory, "down").acquire(list(steps)) as lease:
            failed |= failures(lease.changer.attempt(steps, timeout_s=120))
    stop_on_failures(failed, "down")
