"""Watches a group from its head, and restarts it whole where it is dead: after a reboot, or because a rank is gone.

All ranks or none, as ``up`` does: the head's guard takes the lease on every node of the group, has all ranks stopped,
then started, and lets go once the model has answered. Each node runs the steps that it has recorded itself; nothing
that comes over the network says what is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkcluster.node import ask, common, enabled, wire
from sparkcluster.node.own_rank import OwnRank, Report, Session
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import Movement, stall_limit_s

DIAL_S, HELLO_S, CHANGE_S = 5.0, 20.0, 360.0
COUNTERS_S = 2.0
AGAIN_S = 2.0
"""HTTP 500 may be the failure of a single request; a dead engine fails the next one too."""
REFUSED_S = 1.0
LINE_BYTES = 1 << 16
ENDED = ("exited", "dead", "gone", "created")
LIMITS = {"starts": 5, "within_s": 3600.0, "pause_s": 10.0, "most_pause_s": 600.0, "probe_s": 30.0, "look_s": 2.0}
"""Restarts of a group in a time, the first pause between two, which doubles, and how often it is looked at."""


def secret(token: str, listener: str) -> str:
    """What the guard of node ``listener`` and who calls it prove to each other: the token, for that node alone."""
    return "%s %s" % (token, listener)


def keep_alive(sock: socket.socket) -> None:
    """Break the connection when the other machine is gone for 20 s: a lease that was taken over it ends with it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Peer:
    """The guard of another node, with the methods of a ``Session``, which is at the other end of the connection."""

    def __init__(self, name: str, sock: socket.socket) -> None:
        self._name, self._sock, self._lines = name, sock, sock.makefile("rb")
        keep_alive(sock)

    def ask(self, word: str) -> Report:
        """As of a session; Failed also where the connection broke."""
        try:
            self._sock.settimeout(HELLO_S if word == "hello" else CHANGE_S)
            self._sock.sendall(json.dumps({"do": word}).encode() + b"\n")
            answer = json.loads(self._lines.readline(LINE_BYTES))
        except (OSError, ValueError) as error:
            self.close()  # an answer that comes late would be taken for that to the next question
            raise Failed("%s: not reachable: %s" % (self._name, error)) from None
        if answer.get("failed"):
            raise Failed(str(answer["failed"]))
        return dict(answer["report"])

    def close(self) -> None:
        """End the conversation, and with it the lease, if it was taken."""
        self._lines.close()
        self._sock.close()


class Group:
    """The guards of a group's nodes, called from its head. To be closed.

    Attributes:
        errors: of nodes that cannot be reached, or did not do what was asked, by name.
    """

    def __init__(self, own: OwnRank, token: str, start: Report) -> None:
        self.members: dict[str, Session | Peer] = {own.node: Session(own)}
        self.errors: dict[str, str] = {}

        def call(name: str) -> None:
            address, port = start["peers"][name], int(own.config["port"])
            try:
                sock = wire.dial(address, port, secret(token, name), start["address"], DIAL_S)
                self.members[name] = Peer(name, sock)
            except Failed as error:
                self.errors[name] = "%s: not reachable: %s" % (name, error)

        _each(call, start["peers"])

    def close(self) -> None:
        """Let go of every lease that was taken."""
        for member in self.members.values():
            member.close()

    def reports(self, word: str = "hello") -> dict[str, Report]:
        """How every node of the group is after it did what ``word`` says; those that failed are left out."""
        found: dict[str, Report] = {}

        def ask(name: str) -> None:
            try:
                found[name] = self.members[name].ask(word)
            except Failed as error:
                self.errors[name] = str(error)

        _each(ask, self.members)
        return found

    def all(self, word: str) -> None:
        """Have every node stop or start its rank.

        Raises:
            Failed: one could not.
        """
        self.reports(word)
        self.check()

    def check(self) -> None:
        """Raise Failed if there was an error of a node."""
        if self.errors:
            raise Failed("; ".join(sorted(self.errors.values())))

    def take(self) -> None:
        """Take the lease on every node, in the order of their names.

        Raises:
            Failed: somebody has it on one.
        """
        for name in sorted(self.members):
            self.members[name].ask("take")


class Completion:
    """One completion under way in a thread of its own; ``error`` is None where it was answered."""

    def __init__(self, request: dict[str, Any], timeout_s: float) -> None:
        self.ended = threading.Event()
        self.error: ask.Failed | None = None
        self._request = dict(request, timeout_s=timeout_s, idle_s=None)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            ask.complete(self._request, lambda _: None)
        except ask.Failed as error:
            self.error = error
        except Exception as error:
            self.error = ask.Failed("malformed", "%s: %s" % (type(error).__name__, error))
        self.ended.set()


def why_dead(request: dict[str, Any]) -> str | None:
    """Why the engine that ``request`` asks is dead; None where it answers, is busy, or nothing can be said."""
    first = _stalled_or_failed(request)
    if not isinstance(first, ask.Failed):
        return first
    if first.kind != "engine-dead":
        return None
    before = ask.read_counters(request).get("generated")
    time.sleep(AGAIN_S)
    second = _stalled_or_failed(request)
    if not isinstance(second, ask.Failed):
        return second
    after = ask.read_counters(request).get("generated")
    answers_others = before is not None and after is not None and before != after
    return None if second.kind != "engine-dead" or answers_others else str(second)


def _stalled_or_failed(request: dict[str, Any]) -> ask.Failed | str | None:
    """None where a completion was answered, its error, or in words for how long nothing has moved while it waits."""
    limit_s = stall_limit_s(ask.longest(request))
    completion, movement = Completion(request, 2 * limit_s + 60), Movement()
    began = time.monotonic()
    while not completion.ended.wait(COUNTERS_S):
        movement.feed(time.monotonic() - began, ask.read_counters(request))
        stalled_s = movement.stalled_s(time.monotonic() - began)
        if stalled_s is not None and stalled_s >= limit_s:
            return "no counter of the engine has moved for %.0f s while a request waits" % stalled_s
    return completion.error


def until_answered(request: dict[str, Any], timeout_s: float, check: Callable[[], None]) -> None:
    """Wait until the engine, which may be starting, answers a completion; ``check`` may raise meanwhile.

    Raises:
        Failed: it does not within ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        completion = Completion(request, until - time.monotonic())
        while not completion.ended.wait(REFUSED_S):
            check()
        if completion.error is None:
            return
        check()
        time.sleep(REFUSED_S)
    raise Failed("the model did not answer within %.0f s" % timeout_s)


class EngineGuard:
    """Asks an engine every ``probe_s`` seconds at most, and not while it generates tokens for others."""

    def __init__(self, probe_s: float) -> None:
        self._probe_s = probe_s
        self._next = time.monotonic() + probe_s
        self._generated: float | None = None

    def why_dead(self, request: dict[str, Any]) -> str | None:
        """Why it is dead, or None."""
        if time.monotonic() < self._next:
            return None
        before, self._generated = self._generated, ask.read_counters(request).get("generated")
        why = None
        if before is None or self._generated in (None, before):
            why = why_dead(request)
            self._generated = ask.read_counters(request).get("generated")
        if why is None:
            self._next = time.monotonic() + self._probe_s
        return why


class GroupGuard:
    """What the guard on the head of a group does, one ``look`` after the other."""

    def __init__(self, own: OwnRank, token: str) -> None:
        self._own, self._token = own, token
        self.limits = {**LIMITS, **own.config.get("limits", {})}
        self._engine = EngineGuard(float(self.limits["probe_s"]))
        self._last_failure = ""

    def look(self, start: Report) -> None:
        """Look at the group that ``start`` is the document of, and restart it if it is dead."""
        if os.path.exists(os.path.join(self._own.directory, enabled.GAVE_UP_FILE)):
            self._own.wait_for("it gave up; the next release or enable ends that")
            return
        with contextlib.closing(Group(self._own, self._token, start)) as group:
            reports = group.reports()
        why = problem(reports, group.errors)
        if why is not None:
            self._own.wait_for(why, passing=any(report["busy"] for report in reports.values()))
            return
        dead = gone(reports) or self._engine.why_dead(start["ask"])
        if dead is None:
            self._own.wait_for(None)
        else:
            self._restart_if_allowed(start, dead)

    def _restart_if_allowed(self, start: Report, reason: str) -> None:
        """Restart the group unless it was restarted too often, or a moment ago.

        Raises:
            Failed: the lease cannot be taken.
        """
        now, limits = time.time(), self.limits
        # Starts that fail slowly are as many in a longer time.
        slow_s = limits["starts"] * (start["ready_timeout_s"] + limits["most_pause_s"])
        within_s = max(float(limits["within_s"]), slow_s)
        times = common.read_model(os.path.join(self._own.directory, enabled.STARTS_FILE), [float]) or []
        starts = [each for each in times if now - within_s < each <= now]
        if len(starts) >= limits["starts"]:
            why = "%d starts in %.0f min, and still: %s" % (len(starts), within_s / 60, self._last_failure or reason)
            self._own.write(enabled.GAVE_UP_FILE, {"why": why, "at": now})
            self._journal("gave up", start, why=why)
            return
        pause_s = min(limits["pause_s"] * 2 ** (len(starts) - 1), limits["most_pause_s"])
        if starts and now < starts[-1] + pause_s:
            self._own.wait_for("%s; it is started again after a pause" % reason)
            return
        self._own.wait_for(None)
        with contextlib.closing(Group(self._own, self._token, start)) as group:
            group.take()
            if problem(group.reports(), group.errors) is not None or self._own.start_document() != start:
                return  # an operator came first
            self._own.write(enabled.STARTS_FILE, [*starts, now])
            self._restart(group, start, reason)
        self._own.write(enabled.STARTS_FILE, [*starts, time.time()])  # the pause begins

    def _restart(self, group: Group, start: Report, reason: str) -> None:
        began = time.monotonic()
        self._journal("restart", start, why=reason)

        def check() -> None:
            ended = gone(group.reports())
            group.check()
            if ended:
                raise Failed("%s: it ended while the group started" % ended)

        self._last_failure = ""
        try:
            group.all("stop")
            group.all("start")
            until_answered(start["ask"], start["ready_timeout_s"], check)
        except (Failed, OSError) as error:
            self._last_failure = str(error)
            # What has ended stays, for its log.
            for name, report in group.reports().items():
                if any(state not in ENDED for state in report["ranks"].values()):
                    with contextlib.suppress(Failed):
                        group.members[name].ask("stop")
        act, more = ("failed", {"why": self._last_failure}) if self._last_failure else ("serving", {})
        self._journal(act, start, **more, seconds=round(time.monotonic() - began, 1))

    def _journal(self, act: str, start: Report, **more: Any) -> None:
        entry = {"act": act, "node": self._own.node, "group": start["group"], "release": start["number"], **more}
        enabled.journal(self._own.directory, **entry)
        self._own.say("%s of %s: %s" % (act, start["group"], more.get("why") or "release %d" % start["number"]))


def problem(reports: dict[str, Report], errors: dict[str, str]) -> str | None:
    """What keeps a group from being changed, or None: ``reports`` of its nodes, the ``errors`` of others. Pure."""
    for _, report in sorted(reports.items()):
        if report["why"] is not None:
            return str(report["why"])
    if errors:
        return "; ".join(sorted(errors.values()))
    for what, word in (("release", "have recorded different releases"), ("leases", "were not changed alike")):
        if len({report[what] for report in reports.values()}) > 1:
            found = ", ".join("%s: %s" % (name, reports[name][what]) for name in sorted(reports))
            return "the nodes %s (%s); sparkcluster up or enable ends it" % (word, found)
    return None


def gone(reports: dict[str, Report]) -> str | None:
    """Why a group is dead by its ranks, as ``endpoint.dead`` says it. Pure."""
    found = sorted(name for report in reports.values() for name, state in report["ranks"].items() if state in ENDED)
    if not found:
        return None
    return "%s %s not running" % (", ".join(found), "is" if len(found) == 1 else "are")


def _each(do: Callable[[str], None], names: Iterable[str]) -> None:
    """Call ``do`` with every name, all at once."""
    if list(names):
        with ThreadPoolExecutor() as pool:
            list(pool.map(do, list(names)))
