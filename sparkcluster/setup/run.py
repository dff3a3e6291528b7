"""``setup``: assess every node, and run on each the script of what was accepted.

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
"""A step says nothing while apt-get downloads, or Docker restarts."""
RUN_S = 1800.0
CONFIRM_S = 30.0
"""A node is tried again for so long, half of what it waits: WiFi and names in .local are away for seconds meanwhile."""
TRIES = 3
"""As many passwords as sudo takes (sudoers(5), passwd_tries)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Assessment:
    """What every node is like, what is wrong with the cabling, and what would be changed.

    ``troubles`` also say why a node gets no addresses.
    """

    surveys: dict[str, Survey]
    errors: dict[str, SparkclusterError]
    troubles: tuple[Trouble, ...]
    changes: tuple[Change, ...]

    @property
    def due(self) -> dict[str, list[str]]:
        """By step that would change something, in their order, the nodes on which it would."""
        made = [each for each in self.changes if not each.blocked]
        nodes = {step.name: [each.node for each in made if each.step == step.name] for step in STEPS}
        return {step: found for step, found in nodes.items() if found}


class Scripts(NamedTuple):
    """What a node runs: as its login, and as root; empty for nothing."""

    login: str
    root: str


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of a node.

    Attributes:
        done: steps that were done.
        failed: by step, why it was not.
        left: what an undo left, and why.
        by_hand: why root's script was not run, which somebody else may run by hand.
        error: why a script did not run, or did not end.
    """

    done: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    left: list[str] = dataclasses.field(default_factory=list)
    by_hand: str | None = None
    error: SparkclusterError | None = None

    @property
    def ok(self) -> bool:
        """Whether all of it was done."""
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
    """What would be changed, after one round trip to every node that has to be known for that.

    Args:
        fleet: all nodes of the inventory.
        inventory: the nodes, and the directory of their Hugging Face cache.
        only: names of steps; empty for all that are no options.
        options: names of options that are switched on.
        keys: the public key that a node is to accept, None to leave its authorized_keys, empty if there is none.
        changing: names of the nodes that may be changed; empty for all. If another one does not answer, the steps that
            follow from all nodes are blocked.

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
    """A step on ``node`` that cannot be done, since ``other`` did not answer."""
    reason = f"it follows from all nodes, and {other} did not answer: {error.message.removeprefix(f'{other}: ')}"
    return Change("", "", blocked=reason, hint=error.hint, node=node, step=step)


def scripts(assessed: Assessment, node: str, steps: Collection[str]) -> Scripts:
    """The scripts of ``node`` for these steps, that of the login and that of root; a script may be empty."""
    accepted = [each for each in assessed.changes if each.node == node and each.step in steps]
    return Scripts(*(script(each, accepted) for each in _runs(assessed.surveys[node], node)))


def undo_scripts(survey: Survey, node: str, only: Collection[str]) -> Scripts:
    """The scripts that undo what the journals of ``node`` have, of these steps or, without, of all.

    Raises:
        SetupError: ranks run there, and need one of them.
    """
    steps = {each.step for each in survey.journal if not only or each.step in only}
    if survey.ranks and steps & {"docker-group", *(step.name for step in STEPS if step.disruptive)}:
        text = f"ranks run on {node}, and need what would be undone: {', '.join(survey.ranks)}"
        raise SetupError(text, node=node, step="undo", hint="sparkcluster down INVENTORY")
    return Scripts(*(undo(each, steps) for each in _runs(survey, node)))


def _runs(survey: Survey, node: str) -> tuple[Run, Run]:
    """That of the login and that of root."""
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
    """Run the scripts of all nodes at once.

    Args:
        fleet: the nodes.
        surveys: by node.
        texts: the scripts by node.
        report: receives what they say.
        password: asks for the password that sudo on a node wants, None for none; again, if true, after it was refused.
        root_first: whether root's script comes before that of the login, which removes its key.
    """

    def one(host: Host) -> Outcome:
        outcome, text, sudo = Outcome(), texts[host.name], surveys[host.name].sudo
        try:
            if text.login and not root_first:
                _as_login(host, text.login, outcome, report)
            if text.root and sudo != "absent":
                _as_root(host, text.root, outcome, report, sudo=sudo, password=password)
            elif text.root:
                outcome.by_hand = "there is no sudo"
            # Without the key nobody could go on with what root has left.
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
    """Run a script as root; where the login may not become root, note that it has to be run by hand."""
    typed = None
    for number in range(TRIES):
        if sudo == "password" and (typed := password(host, number > 0)) is None:
            outcome.by_hand = "sudo wants a password, and none was given"
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

        with host.anew() as fresh:
            _once_reached(fresh, once)

    with stream:
        _follow(stream, outcome, report, confirm)


def _once_reached(host: Host, task: Callable[[], None]) -> None:
    """Call ``task`` once ``host``, whose addresses are changing, can be reached."""
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
    """Read what a script says until it ends."""
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
            report.progress(name, f"connecting anew to confirm {step}")
            try:
                confirm()
            except SparkclusterError as error:
                # The node takes its network back by itself, and says so.
                report.note(f"{name}: {step}: not confirmed: {error.message}")
            continue
        report.progress(name, f"{step}: {event.text or event.kind}")
    ended = stream.finish()
    if ended.exit_code == EXIT_BUSY:
        hint = "run this again in a minute, when it has ended"
        raise SetupError(f"another setup runs on {name}", node=name, step="setup", hint=hint)
    if not ended.ok and not failed:
        raise SetupError(f"the script ended on {name}: {ended.reason}", node=name, step=step)
