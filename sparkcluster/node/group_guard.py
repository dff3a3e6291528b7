"""Watches a group from its head, and restarts it if it is dead: after a reboot, or because a rank ended.

All ranks or none, like ``up``: the head's guard takes the lease on every node of the group, has all ranks stopped and
started, and releases the lease once the model has answered. Each node runs the steps in its own record; nothing
from the network determines what is run.

For a model on demand, the gateway requests it through the ``door`` of its node. A group that is wanted and not running
is started once; a group that is not wanted is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

from sparkcluster.node import ask, events, wire
from sparkcluster.node.own_rank import Document, OwnRank
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import GAVE_UP, STOPPED_FILE, Movement, stall_limit_s

DIAL_S, HELLO_S, ANSWER_S = 5.0, 20.0, 360.0
COUNTERS_S = 2.0
RETRY_S = 2.0
"""Time between two attempts: HTTP 500 may be a single failed request; a dead engine fails the next one too."""
REFUSED_S = 1.0
FIRST_S = 120.0
"""Limit for the first answer, which compiles kernels: 25 to 60 s on a Spark (seed)."""
LINE_BYTES = 1 << 16
JOURNAL_FILE = "journal.jsonl"
ENDED = ("exited", "dead", "gone", "created")
LIMITS = {"starts": 5, "within_s": 3600.0, "pause_s": 10.0, "probe_s": 30.0, "look_s": 2.0, "wedge_s": 600.0}
LIMITS["load_s"] = 120.0
"""Restarts within a time; the first pause between two, which doubles; intervals of probes and checks.

A dead engine whose ranks still run is called wedged. If it wedges again within ``wedge_s`` of its first answer after
the restart, the group stays down. A load that cannot begin within ``load_s``, while no other cluster starts or stops on
its nodes, has failed.
"""
EVENT_FAILED = "on_event failed"
"""A journal entry that is not an act of the guard."""


def secret(token: str, listener: str) -> str:
    """The shared secret of the guard of node ``listener`` and its clients: the token, bound to that node."""
    return "%s %s" % (token, listener)


def door_address(start: dict[str, Any]) -> str | None:
    """The address where the head with this start.json listens for the ``door``: the engine's."""
    return urlsplit(start["ask"]["endpoint"]).hostname if start else None


def keep_alive(sock: socket.socket) -> None:
    """Break the connection if the other machine is gone for 20 s: a lease that was taken over it then ends."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Peer:
    """The guard of another node: a remote ``OwnRank``."""

    def __init__(self, node: str, address: str, port: int, token: str, source: str = "") -> None:
        self._name = node
        self._place = (address, port, secret(token, node), source, DIAL_S)
        self._sock: socket.socket | None = None

    def ask(self, word: str, **more: Any) -> Document:
        """As in ``OwnRank``; also Failed if there is no connection or it broke, which ends the lease."""
        try:
            if self._sock is None:
                self._sock = wire.dial(*self._place)
                self._lines = self._sock.makefile("rb")
                keep_alive(self._sock)
            self._sock.settimeout({"hello": HELLO_S, "states": DIAL_S, "want": DIAL_S}.get(word, ANSWER_S))
            self._sock.sendall(json.dumps({"do": word, **more}).encode() + b"\n")
            answer = json.loads(self._lines.readline(LINE_BYTES))
        except (Failed, OSError, ValueError) as error:
            self.close()  # a late answer would be taken for the next one
            raise Failed("%s: not reachable: %s" % (self._name, error)) from None
        if answer.get("failed"):
            raise Failed(str(answer["failed"]))
        return dict(answer["report"])

    def close(self) -> None:
        """End the conversation, and with it the lease, if taken."""
        if self._sock is not None:
            self._lines.close()
            self._sock.close()
            self._sock = None


class GuardedGroup:
    """The guards of a group's nodes, called from its head. Must be closed.

    Attributes:
        errors: by name of nodes that cannot be reached, or failed.
    """

    def __init__(self, own: OwnRank, start: Document) -> None:
        more = {"port": own.config["port"], "token": own.config["token"], "source": start["address"]}
        self.members: dict[str, OwnRank | Peer] = {name: Peer(name, at, **more) for name, at in start["peers"].items()}
        self.members[own.node] = OwnRank(own.directory)
        self.errors: dict[str, str] = {}

    def close(self) -> None:
        """Release every lease that was taken."""
        for member in self.members.values():
            member.close()

    def reports(self, word: str = "hello") -> dict[str, Document]:
        """Send the command ``word`` to all nodes; the reports of those that did not fail."""
        found: dict[str, Document] = {}

        def ask(name: str) -> None:
            try:
                found[name] = self.members[name].ask(word)
            except (Failed, OSError) as error:
                self.errors[name] = str(error)

        with ThreadPoolExecutor() as pool:
            list(pool.map(ask, self.members))
        return found

    def all(self, word: str = "hello") -> dict[str, Document]:
        """Send the command ``word`` to all nodes; the reports of all.

        Raises:
            Failed: a node failed.
        """
        found = self.reports(word)
        if self.errors:
            raise Failed("; ".join(sorted(self.errors.values())))
        return found


def why_dead(request: dict[str, Any]) -> str | None:
    """Why the engine at ``request`` is dead; None if it answers, is busy, or nothing is known."""
    limit_s, why = stall_limit_s(ask.longest(request)), None
    asked = {**request, "first_s": 2 * limit_s + 60, "token_s": limit_s}
    for pause_s in (0.0, RETRY_S):
        time.sleep(pause_s)
        movement, completion = Movement(), ThreadPoolExecutor(1).submit(ask.answer, asked, lambda _: None)
        while not wait([completion], COUNTERS_S).done:
            movement.feed(time.monotonic(), ask.read_counters(request))
            stalled_s = movement.stalled_s(time.monotonic()) or 0.0
            if stalled_s >= limit_s:
                return "no counter of the engine has moved for %.0f s while a request waits" % stalled_s
        error = completion.result().get("error", {})
        if error.get("kind") != "engine-dead":
            return None
        why = str(error["message"])
    return why


class GroupGuard:
    """The guard of a group, on its head: ``check`` is called repeatedly; other threads call ``reply``."""

    def __init__(self, own: OwnRank) -> None:
        self._own = own
        self._path = os.path.join(own.directory, JOURNAL_FILE)
        self.limits = {**LIMITS, **own.config.get("limits", {})}
        self._next = time.monotonic() + self.limits["probe_s"]
        self._generated: float | None = None
        # ``_wanted``
        #   True: the model should run; always, unless it is on demand.
        #   False: it should be unloaded.
        #   None: undecided; the first check without a problem sets True if an earlier guard loaded the model and it
        #   still runs, else False.
        # For ``reply``: ``_runs``, by the last check (True until the first check); ``_failed``, why it was left down.
        self._on_demand = bool(own.config.get("on_demand"))
        self._wanted = None if self._on_demand else True
        self._loading, self._begin_by = False, 0.0
        self._runs, self._serves, self._busy = True, False, False
        self._problem: str | None = "its guard has not checked it yet"
        self._failed: str | None = None

    def reply(self, request: dict[str, Any]) -> Document:
        """The ``state`` for the ``door``, at any time; ``want`` sets whether the model should ``run``."""
        if request["do"] == "want" and self._wanted != request["run"]:
            if request["run"]:
                self._failed, self._loading = None, not self._serves
            self._wanted = bool(request["run"])
        if self._busy:
            return {"state": "starting", "why": self._problem}
        if self._problem is not None:
            return {"state": "unreachable" if self._runs else "failed", "why": self._problem}
        if self._wanted:
            return {"state": "ready", "why": None} if self._serves else {"state": "starting", "why": self._own.waits}
        if self._runs:
            return {"state": "stopping", "why": self._own.waits}
        return {"state": "failed" if self._failed else "stopped", "why": self._failed}

    def check(self, start: Document) -> None:
        """Check the group of the document ``start``; restart it if it is dead, or report why not.

        If it is left down, ranks that have not ended are stopped, retrying every ``probe_s``; if it is not wanted,
        immediately.
        """
        began = time.monotonic()
        with contextlib.closing(GuardedGroup(self._own, start)) as group:
            reports = group.reports()
            why = problem(reports, group.errors)
            self._store(start, reports, why)
            down = None if why else self._left_down(start)
            ended = None if why or down is not None else not_running(reports)
            self._serves = down is None and not (why or ended)
            wedged = self._engine_dead(start["ask"]) if self._serves else None
            if wedged is not None:
                reports = group.reports()  # that took minutes; an operator may have taken the lease
                why = problem(reports, group.errors)
            dead = None if why else ended or wedged
            if ended is None or any(report.get("locked") for report in reports.values()):
                self._begin_by = time.monotonic() + self.limits["load_s"]
            elif self._on_demand and time.monotonic() > self._begin_by:
                self._leave_down("load failed", start, self._own.waits or ended)
                return
            if dead is not None:
                wedged_again = wedged is not None and self._wedged_again(start, time.monotonic() - began)
                why = self._why_not_now(start, dead, reports, twice=wedged_again) or _delays(reports)
                down = self._left_down(start)
            if dead is None or why is not None or down is not None:
                # The lease tells that an operator is at work, and for how long.
                self._own.wait_for(None if any(report["busy"] for report in reports.values()) else why or down or None)
                if down is None or not any(map(_runs, reports.values())) or (down and time.monotonic() < self._next):
                    return
                self._next = time.monotonic() + self.limits["probe_s"]
            try:
                for name in sorted(group.members):
                    group.members[name].ask("take-at-once" if down == "" else "take")
            except (Failed, OSError) as error:
                self._own.wait_for(down or str(error))
                return
            reports = group.reports()
            if problem(reports, group.errors) is not None or self._own.start_document() != start:
                return
            delays = _delays(reports)  # the last holder of the start lock may have used the memory
            self._own.wait_for(down or delays)
            if down is not None:
                self._stop_running(group)
            elif delays is None:
                self._restart(group, start, str(dead), wedged=wedged is not None)

    def _store(self, start: Document, reports: dict[str, Document], why: str | None) -> None:
        """Store the result of a check for ``reply``; a model that cannot be started now is no longer wanted.

        A model that an earlier guard loaded is wanted if it served and runs; so no model is wanted after a reboot.
        """
        self._problem, self._busy = why, any(report["busy"] for report in reports.values())
        readable = [report for report in reports.values() if report["why"] is None]
        if readable or os.path.exists(os.path.join(self._own.directory, STOPPED_FILE)):
            self._runs = any(map(_runs, readable))
        if why is None and self._wanted is None:
            served = [act["act"] for act in self._acts(start)[-1:]] == ["serving"]
            self._wanted = served and not_running(reports) is None
        elif why is not None and self._on_demand and not (self._busy or self._runs):
            self._wanted = False

    def _engine_dead(self, request: dict[str, Any]) -> str | None:
        """Why the engine is dead; asked at most every ``probe_s``, and not while it generates tokens for others."""
        if time.monotonic() < self._next:
            return None
        before, now = self._generated, ask.read_counters(request).get("generated")
        why = why_dead(request) if before is None or now in (None, before) else None
        self._generated = ask.read_counters(request).get("generated")
        if why is None:
            self._next = time.monotonic() + self.limits["probe_s"]
        return why

    def _left_down(self, start: Document) -> str | None:
        """Why only an operator may start the group, from the last act; None if the guard may.

        Empty for a model on demand that is not wanted.
        """
        if self._on_demand:
            return None if self._wanted else ""
        acts = self._acts(start)
        if not acts or acts[-1]["act"] not in ("gave up", "victim"):
            return None
        words = GAVE_UP if acts[-1]["act"] == "gave up" else ""
        return "%s%s; sparkcluster up INVENTORY starts it" % (words, acts[-1]["why"])

    def _wedged_again(self, start: Document, took_s: float) -> bool:
        """Whether the engine wedged soon after its first answer following a restart for a wedge.

        ``took_s`` is how long it took to detect this wedge; for a long context that is longer than "soon".
        """
        acts = self._acts(start)
        restarts = [at for at, act in enumerate(acts) if act["act"] == "restart" and act.get("wedged")]
        served = [act["at"] for act in acts[restarts[-1] :] if act["act"] == "serving"] if restarts else []
        soon_s = self.limits["wedge_s"] + took_s + self.limits["probe_s"]
        return bool(served) and _time(soon_s) < served[0] <= _time()

    def _why_not_now(self, start: Document, dead: str, reports: dict[str, Document], *, twice: bool) -> str | None:
        """Why a dead group is not restarted now: out of memory, too many restarts, or too soon.

        ``twice``: it wedged a second time.
        """
        if self._loading:
            return None
        limits, acts = self.limits, self._acts(start)
        # Starts that fail slowly are counted over a longer time.
        slow_s = limits["starts"] * start["ready_timeout_s"] + limits["pause_s"] * 2 ** limits["starts"]
        within_s = max(limits["within_s"], slow_s)
        starts = sum(act["act"] == "restart" and _time(within_s) < act["at"] <= _time() for act in acts)
        if _victims(reports):
            self._leave_down("victim", start, _victims(reports))
        elif twice:
            self._leave_down("gave up", start, "the engine hung again after a restart: %s" % dead)
        elif starts >= limits["starts"]:
            why = "%d restarts in %.0f min failed: %s" % (starts, within_s / 60, acts[-1].get("why", dead))
            self._leave_down("gave up", start, why)
        elif starts and _time(limits["pause_s"] * 2 ** (starts - 1)) < acts[-1]["at"]:
            return "%s; restarting after a pause" % dead
        return self._left_down(start)

    def _leave_down(self, act: str, start: Document, why: str, **more: Any) -> None:
        """Journal why the group is down; a model on demand stays down until it is requested again."""
        self._journal(act, start, why=why, **more)
        if self._on_demand:
            self._failed, self._wanted = why, False

    def _restart(self, group: GuardedGroup, start: Document, dead: str, *, wedged: bool) -> None:
        began = time.monotonic()
        self._runs, self._serves = True, False
        self._journal("load" if self._loading else "restart", start, why=dead, wedged=wedged)
        try:
            group.all("stop")
            group.all("start")
            self._until_answered(group, start)
        except Failed as error:
            wanted = self._wanted
            self._stop_running(group)
            if wanted:
                why, seconds = _victims(group.reports()) or str(error), round(time.monotonic() - began, 1)
                self._leave_down("load failed" if self._on_demand else "failed", start, why, seconds=seconds)
        else:
            self._journal("serving", start, seconds=round(time.monotonic() - began, 1))
            self._loading, self._serves = False, True

    def _until_answered(self, group: GuardedGroup, start: Document) -> None:
        """Wait until the engine, which may be starting, answers a completion.

        Raises:
            Failed: it takes too long, a rank ended meanwhile, or the model is no longer wanted.
        """
        until = time.monotonic() + start["ready_timeout_s"]
        while "done" not in ask.answer({**start["ask"], "first_s": FIRST_S, "token_s": FIRST_S}, lambda _: None):
            ended = not_running(group.all())
            if ended or time.monotonic() > until:
                raise Failed(ended or "the model did not answer within %.0f s" % start["ready_timeout_s"])
            if not self._wanted:
                raise Failed("it was unloaded while starting")
            time.sleep(REFUSED_S)

    def _stop_running(self, group: GuardedGroup) -> None:
        """Stop the ranks that have not ended; the others are kept for their logs and exit codes."""
        for name, report in group.reports().items():
            if _runs(report):
                try:
                    group.members[name].ask("stop")
                except Failed as error:
                    self._own.say(str(error))

    def _acts(self, start: Document) -> list[dict[str, Any]]:
        """Journal entries since ``start`` was recorded or enabled, which changes its epoch."""
        acts = []
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # a write cut off by a power loss
                    acts.append(json.loads(line))
        return [act for act in acts if act.get("epoch") == start["epoch"] and act["act"] != EVENT_FAILED]

    def _journal(self, act: str, start: Document, **more: Any) -> None:
        """Write an act to the disk, so that a reboot does not reset limit and pauses; log it; run ``on_event``."""
        entry = {"at": _time(), "act": act, "node": self._own.node, "group": start["group"]}
        entry.update(release=start["number"], epoch=start["epoch"], **more)
        with open(self._path, "ab", buffering=0) as file:
            file.write(json.dumps(entry).encode() + b"\n")
            os.fsync(file.fileno())
        self._own.say("%s of %s: %s" % (act, start["group"], more.get("why") or "release %d" % start["number"]))
        events.tell(self._own.config, entry, lambda why: self._journal(EVENT_FAILED, start, why=why))


def _time(ago_s: float = 0.0) -> str:
    """The time ``ago_s`` seconds ago; sorts as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago_s))


def _runs(report: Document) -> bool:
    """Whether a node has a rank that has not ended."""
    return any(state not in ENDED for state in report["ranks"].values())


def _victims(reports: dict[str, Document]) -> str:
    """Ranks that were killed for lack of memory; an older guard on another node does not report them."""
    return "; ".join(sorted(each for report in reports.values() for each in report.get("victims", ())))


def _delays(reports: dict[str, Document]) -> str | None:
    """Why ranks cannot be started yet, if nothing else prevents it."""
    return "; ".join(sorted({str(report["delay"]) for report in reports.values() if report.get("delay")})) or None


def problem(reports: dict[str, Document], errors: dict[str, str]) -> str | None:
    """Why a group cannot be changed, or None, from the ``reports`` of its nodes and the ``errors`` of others. Pure."""
    reasons = {report["why"] for report in reports.values()} - {None} or errors.values()
    if reasons:
        return "; ".join(sorted(reasons))
    found = {name: "release %(release)s, %(leases)s changes since" % report for name, report in reports.items()}
    if len(set(found.values())) > 1:
        each = "; ".join("%s: %s" % pair for pair in sorted(found.items()))
        return "the nodes are out of sync (%s); run sparkcluster up or enable" % each
    return None


def not_running(reports: dict[str, Document]) -> str | None:
    """Which ranks of a group are not running, or None. Pure."""
    found = sorted(name for report in reports.values() for name, state in report["ranks"].items() if state in ENDED)
    return "not running: %s" % ", ".join(found) if found else None
