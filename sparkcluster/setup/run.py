"""``setup``: look at every node, and run on each the script of what was accepted.

::

    look ── one round trip ──▶ surveys ──▶ cabling ──▶ addresses ──▶ changes
    run  ── the script of each node, as its login and as root ──▶ outcomes
"""

from __future__ import annotations

import dataclasses
import functools
import getpass
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from sparkcluster.errors import HostError, SetupError, SparkclusterError, SudoRefused
from sparkcluster.facts.survey import Survey
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.root import Sudo, stream_as_root
from sparkcluster.report import Report
from sparkcluster.setup import rails
from sparkcluster.setup.cabling import Cabling, cabling
from sparkcluster.setup.changes import Change, Wanted, changes, requests
from sparkcluster.setup.ports import Trouble
from sparkcluster.setup.rails import Proposal, proposal
from sparkcluster.setup.script import confirm_script, parse_line, script
from sparkcluster.setup.steps import BY_NAME
from sparkcluster.setup.survey import survey
from sparkcluster.spec.inventory import Inventory

SILENCE_S = 300.0
"""A step says nothing while apt-get downloads, or Docker restarts."""
RUN_S = 1800.0


class Passwords(Protocol):
    """Asks the operator for the password that sudo on a node wants."""

    def sudo(self, node: str, *, again: bool) -> str | None:
        """The password, None for none; ``again`` after sudo refused the last one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What every node is like, and what would be changed there."""

    surveys: dict[str, Survey]
    errors: dict[str, SparkclusterError]
    cabling: Cabling
    proposal: Proposal
    changes: tuple[Change, ...]

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """What is wrong with the cabling, and why a node gets no addresses."""
        return (*self.cabling.troubles, *self.proposal.troubles)

    def of(self, node: str, steps: Collection[str]) -> list[Change]:
        """Changes of these steps on ``node`` that can be made."""
        return [each for each in self.changes if each.node == node and each.step in steps and not each.blocked]


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of a node.

    Attributes:
        done: steps that were done.
        failed: by step, why it was not.
        left: what an undo left, in words.
        error: why the node's script did not run, or did not end.
        for_root: the script that root has to run, where the login may not.
    """

    done: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    left: list[str] = dataclasses.field(default_factory=list)
    error: SparkclusterError | None = None
    for_root: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all of it was done."""
        return self.error is None and not self.failed and not self.left and self.for_root is None


def look(
    fleet: Fleet,
    inventory: Inventory,
    *,
    only: Collection[str] = (),
    options: Collection[str] = (),
    keys: Callable[[str], str | None] = lambda _: None,
    changing: Collection[str] = (),
) -> Look:
    """What would be changed, after one round trip to every node.

    Args:
        fleet: all nodes of the inventory.
        only: names of steps; empty for all that are no options.
        options: names of options that are switched on.
        keys: the public key that a node is to accept, None to leave its authorized_keys.
        changing: names of the nodes that may be changed; empty for all.

    Raises:
        UsageError: a step is unknown.
        SetupError: what a node answered, or a name in the inventory, cannot go into a script that root runs.
    """
    wishes = requests()
    wishes["files"] = list(dict.fromkeys([*wishes["files"], rails.FILES]))
    found = survey(fleet, inventory.hf_home, requests=wishes)
    joined = cabling(found.surveys)
    addresses = proposal(joined, found.surveys, [node.label for node in inventory.nodes])
    lines = _hosts(addresses)
    differences: list[Change] = []
    for name, surveyed in found.surveys.items():
        if changing and name not in changing:
            continue
        wanted = Wanted(
            user=surveyed.user,
            key=keys(name),
            netplan=None if addresses.satisfied(name) else addresses.texts[name],
            addresses={interface: str(each) for interface, each in addresses.addresses.get(name, {}).items()},
            hosts=lines.get(name, ()),
            options=frozenset(options),
        )
        differences += changes(name, surveyed, wanted, only or None)
    return Look(found.surveys, found.errors, joined, addresses, tuple(differences))


def _hosts(addresses: Proposal) -> dict[str, tuple[str, ...]]:
    """By node, lines of /etc/hosts for every node on its rails: ``192.168.177.12 spark-b-rail1``."""
    found: dict[str, list[str]] = {}
    for number, rail in enumerate(addresses.rails, 1):
        ends = {
            node: addresses.addresses[node][twin]
            for node, twin in rail.twins.items()
            if twin in addresses.addresses.get(node, {})
        }
        for node in ends:
            found.setdefault(node, []).extend(f"{each.ip} {name}-rail{number}" for name, each in ends.items())
    return {node: tuple(lines) for node, lines in found.items()}


def operator() -> str:
    """Who orders changes, for the journals: ``user@machine``."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def scripts(node: str, accepted: Iterable[Change], *, confirm: str) -> dict[bool, str]:
    """The scripts of a node: of the steps of root by True, and of those of the login by False."""
    found: dict[bool, str] = {}
    chosen = list(accepted)
    for root in (False, True):
        own = [each for each in chosen if BY_NAME[each.step].root is root]
        if own:
            found[root] = script(node, own, operator=operator(), confirm=confirm, root=root)
    return found


def run(
    fleet: Fleet,
    surveys: Mapping[str, Survey],
    texts: Mapping[str, Mapping[bool, str]],
    report: Report,
    *,
    passwords: Passwords,
    again: Callable[[str], Fleet],
    by_hand: Callable[[str], str],
) -> dict[str, Outcome]:
    """Run the scripts of all nodes at once.

    Args:
        fleet: the nodes.
        surveys: by node.
        texts: by node, its scripts, as of ``scripts``.
        report: receives every line of them.
        passwords: asked where sudo wants one.
        again: a new connection to a node, which confirms that a change of its network leaves it reachable.
        by_hand: the script of root of a node, where it has to be run by hand.
    """
    one = functools.partial(
        _run, surveys=surveys, texts=texts, report=report, passwords=passwords, again=again, by_hand=by_hand
    )
    outcomes = fleet.each(one, texts, limit_s=RUN_S)
    return {
        name: Outcome(error=found) if isinstance(found, SparkclusterError) else found for name, found in outcomes.items()
    }


def _run(
    host: Host,
    *,
    surveys: Mapping[str, Survey],
    texts: Mapping[str, Mapping[bool, str]],
    report: Report,
    passwords: Passwords,
    again: Callable[[str], Fleet],
    by_hand: Callable[[str], str],
) -> Outcome:
    name, outcome = host.name, Outcome()
    own = texts[name]
    try:
        if False in own:
            with host.stream(["sh", "-c", 'script=$(cat); eval "$script" </dev/null'], stdin=b"") as stream:
                stream.send(own[False].encode())
                _close_input(stream)
                _follow(stream, outcome, report)
        if True in own:
            access = _as_root(host, surveys[name], own[True], passwords)
            if access is None:
                outcome.for_root = by_hand(name)
                return outcome
            stream, confirm = access
            with stream:
                _follow(stream, outcome, report, lambda token: confirm(again, token))
    except SparkclusterError as error:
        outcome.error = error
    return outcome
