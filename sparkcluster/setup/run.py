"""``setup``: assess every node, then run the scripts of the accepted changes.

::

    assess ── one round trip ──▶ surveys ──▶ cabling ──▶ addresses ──▶ changes
    run  ── the script of each node, as its login and as root ──▶ outcomes
"""

from __future__ import annotations

import dataclasses
import getpass
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sparkcluster.errors import HostSilent, SetupError, SparkclusterError, SudoRefused
from sparkcluster.facts.survey import Survey
from sparkcluster.hosts.base import Host, Stream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.root import Sudo, stream_as_root
from sparkcluster.report import Report
from sparkcluster.setup.cabling import cabling
from sparkcluster.setup.ports import Trouble
from sparkcluster.setup.rails import proposal
from sparkcluster.setup.script import CONFIRM, CONFIRMED_ANEW, EXIT_BUSY, Run, parse_line, script, undo
from sparkcluster.setup.step import Change, Wanted
from sparkcluster.setup.steps import REQUESTS, STEPS, changes, selected
from sparkcluster.setup.survey import survey
from sparkcluster.spec.inventory import Inventory

SILENCE_S = 300.0
"""Steps print nothing while apt-get downloads or Docker restarts."""
RUN_S = 1800.0
CONFIRM_S = 30.0
"""Time to reconnect, half of the node's own limit: WiFi and .local names fail for seconds after a change."""
TRIES = 3
"""Password attempts, as in sudo (sudoers(5), passwd_tries)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Assessment:
    """Surveys of all nodes, problems of the cabling and addresses, and the changes to make."""

    surveys: dict[str, Survey]
    errors: dict[str, SparkclusterError]
    troubles: tuple[Trouble, ...]
    changes: tuple[Change, ...]

    @property
    def due(self) -> dict[str, list[str]]:
        """The nodes that each step would change, in step order."""
        made = [each for each in self.changes if not each.blocked]
        nodes = {step.name: [each.node for each in made if each.step == step.name] for step in STEPS}
        return {step: found for step, found in nodes.items() if found}


class Scripts(NamedTuple):
    """Scripts for the login and for root; empty if there is nothing to run."""

    login: str
    root: str


@dataclasses.dataclass(slots=True)
class Outcome:
    """Result of one node.

    Attributes:
        done: completed steps.
        failed: reason by failed step.
        left: targets that an undo skipped, with reasons.
        by_hand: why root's script was not run; an administrator can run it by hand.
        error: why a script did not run or did not finish.
    """

    done: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    left: list[str] = dataclasses.field(default_factory=list)
    by_hand: str | None = None
    error: SparkclusterError | None = None

    @property
    def ok(self) -> bool:
        """Whether everything was done."""
        return not (self.failed or self.left or self.by_hand or self.error)


def assess(
    fleet: Fleet,
    inventory: Inventory,
    *,
    only: Collection[str] = (),
    options: Collection[str] = (),
    keys: Callable[[str], str | None] = lambda _: None,
    changing: Collection[str] = (),
) -> Assessment:
    """Survey the nodes in one round trip and compute the changes.

    Args:
        fleet: all nodes of the inventory.
        inventory: gives the nodes and their Hugging Face cache directory.
        only: names of steps; empty for all except optional steps.
        options: names of optional steps to include.
        keys: the public key to add on a node. None: leave authorized_keys unchanged; empty: the operator has no key.
        changing: names of the nodes that may be changed; empty for all. If another node does not answer, joint steps
            are blocked.

    Raises:
        UsageError: a step is unknown.
    """
    steps = selected(only, options)
    joint = [step.name for step in steps if step.joint]
    apart = bool(changing) and not joint
    found = survey(fleet, inventory.hf_home, changing if apart else None, REQUESTS)
    missing = {name: error for name, error in found.errors.items() if changing and name not in changing}
    everyone = {} if apart or missing else found.surveys
    cables = cabling(everyone)
    addresses = proposal(cables, everyone, [node.label for node in inventory.nodes])
    differences: list[Change] = []
    for name, surveyed in found.surveys.items():
        if changing and name not in changing:
            continue
        wanted = Wanted(
            key=keys(name),
            netplan=addresses.texts.get(name),
            addresses=addresses.addresses.get(name, {}),
        )
        differences += changes(name, surveyed, wanted, steps)
        differences += [_unknown(name, step, other, error) for step in joint for other, error in missing.items()]
    errors = {name: error for name, error in found.errors.items() if name not in missing}
    return Assessment(found.surveys, errors, (*cables.troubles, *addresses.troubles), tuple(differences))


def _unknown(node: str, step: str, other: str, error: SparkclusterError) -> Change:
    """A blocked step on ``node``, because ``other`` did not answer."""
    reason = f"needs all nodes, and {other} did not answer: {error.message.removeprefix(f'{other}: ')}"
    return Change("", "", blocked=reason, hint=error.hint, node=node, step=step)


def scripts(assessed: Assessment, node: str, steps: Collection[str]) -> Scripts:
    """The scripts of ``node`` for these steps, for the login and for root."""
    accepted = [each for each in assessed.changes if each.node == node and each.step in steps]
    return Scripts(*(script(each, accepted) for each in _runs(assessed.surveys[node], node)))


def undo_scripts(survey: Survey, node: str, only: Collection[str]) -> Scripts:
    """The scripts that undo the journal entries of ``node``, of these steps or, if empty, of all.

    Raises:
        SetupError: running ranks need one of these changes.
    """
    steps = {each.step for each in survey.journal if not only or each.step in only}
    if survey.ranks and steps & {"docker-group", *(step.name for step in STEPS if step.disruptive)}:
        text = f"running ranks on {node} need these changes: {', '.join(survey.ranks)}"
        raise SetupError(text, node=node, step="undo", hint="sparkcluster down INVENTORY")
    return Scripts(*(undo(each, steps) for each in _runs(survey, node)))


def _runs(survey: Survey, node: str) -> tuple[Run, Run]:
    """The run of the login and the run of root."""
    operator = f"{getpass.getuser()}@{socket.gethostname()}"
    root = Run(node, operator, survey.user, machine=survey.machine)
    return dataclasses.replace(root, root=False), root


def run(
    fleet: Fleet,
    surveys: Mapping[str, Survey],
    texts: Mapping[str, Scripts],
    report: Report,
    *,
    password: Callable[[Host, bool], str | None],
    root_first: bool = False,
) -> dict[str, Outcome]:
    """Run the scripts of all nodes in parallel.

    Args:
        fleet: the nodes.
        surveys: by node.
        texts: scripts by node.
        report: receives their output.
        password: returns the sudo password of a node, or None; its second argument is true on a retry.
        root_first: run root's script first; the login's script then removes its key.
    """

    def one(host: Host) -> Outcome:
        outcome, text, sudo = Outcome(), texts[host.name], surveys[host.name].sudo
        try:
            if text.login and not root_first:
                _as_login(host, text.login, outcome, report)
            if text.root and sudo != "absent":
                _as_root(host, text.root, outcome, report, sudo=sudo, password=password)
            elif text.root:
                outcome.by_hand = "sudo is not installed"
            # Keep the key while root's part is incomplete, so that a retry can log in.
            if text.login and root_first and outcome.ok:
                _as_login(host, text.login, outcome, report)
        except SparkclusterError as error:
            outcome.error = error
        return outcome

    outcomes = fleet.each(one, [name for name, text in texts.items() if any(text)], limit_s=RUN_S)
    return {
        name: Outcome(error=found) if isinstance(found, SparkclusterError) else found
        for name, found in outcomes.items()
    }


def _as_login(host: Host, text: str, outcome: Outcome, report: Report) -> None:
    with stream_as_root(host, text.encode(), sudo="root", task="setup") as stream:  # without sudo: as the login
        _follow(stream, outcome, report)


def _as_root(
    host: Host,
    text: str,
    outcome: Outcome,
    report: Report,
    *,
    sudo: Sudo,
    password: Callable[[Host, bool], str | None],
) -> None:
    """Run a script as root; if the login cannot become root, note that it must be run by hand."""
    typed = None
    for number in range(TRIES):
        if sudo == "password" and (typed := password(host, number > 0)) is None:
            outcome.by_hand = "sudo needs a password, and none was entered"
            return
        try:
            asking = f"{CONFIRMED_ANEW}{text}".encode()
            stream = stream_as_root(host, asking, sudo=sudo, password=typed, task="setup")
            break
        except SudoRefused as error:
            if error.reason != "wrong password" or number + 1 == TRIES:
                outcome.by_hand = error.message.removeprefix(f"{host.name}: ")
                return

    def confirm() -> None:
        def once() -> None:
            with stream_as_root(fresh, CONFIRM.encode(), sudo=sudo, password=typed, task="confirm") as answer:
                for _ in answer.lines(CONFIRM_S):
                    pass

        with host.separate_connection() as fresh:
            _once_reached(fresh, once)

    with stream:
        _follow(stream, outcome, report, confirm)


def _once_reached(host: Host, task: Callable[[], None]) -> None:
    """Call ``task`` as soon as ``host``, whose addresses are changing, is reachable."""
    until = time.monotonic() + CONFIRM_S
    while True:
        try:
            return task()
        except HostSilent:
            if time.monotonic() > until:
                raise
        time.sleep(1)
        host.renew()


def _follow(stream: Stream, outcome: Outcome, report: Report, confirm: Callable[[], None] | None = None) -> None:
    """Read the output of a script until it ends."""
    name, step, failed = stream.name, "setup", False
    for line in stream.lines(SILENCE_S, within_s=RUN_S):
        event = parse_line(line.decode(errors="replace"))
        if event.step is None:
            continue
        step = event.step
        if event.kind == "done":
            outcome.done.append(step)
        elif event.kind == "failed":
            outcome.failed[step] = event.text
            failed = True
        elif event.kind == "left":
            outcome.left.append(event.text)
        elif event.kind == "confirm" and confirm is not None:
            report.progress(name, f"opening a new connection to confirm {step}")
            try:
                confirm()
            except SparkclusterError as error:
                # The node rolls back its network automatically and reports it.
                report.note(f"{name}: {step}: not confirmed: {error.message}")
            continue
        report.progress(name, f"{step}: {event.text or event.kind}")
    ended = stream.finish()
    if ended.exit_code == EXIT_BUSY:
        hint = "retry when it has finished"
        raise SetupError(f"another setup is running on {name}", node=name, step="setup", hint=hint)
    if not ended.ok and not failed:
        raise SetupError(f"the script failed on {name}: {ended.reason}", node=name, step=step)
