"""Watches a group from its head, and restarts it whole where it is dead: after a reboot, or because a rank is gone.

All ranks or none, as ``up`` does: the head's guard takes the lease on every node of the group over ``hello``, has all
ranks stopped, then started, and lets go once the model has answered. Each node runs the steps that it has recorded
itself; nothing that comes over the network says what is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkcluster.node import common, enabled, guard_protocol
from sparkcluster.node.engine_guard import EngineGuard, until_answered
from sparkcluster.node.guard_protocol import Conversation, Refused
from sparkcluster.node.own_rank import OwnRank
from sparkcluster.node.programs import Failed

BEAT_S, PROGRESS_S = 3.0, 1.0
HELLO_S, CHANGE_S = 20.0, 360.0
LONGEST_WAIT_S = 30.0
ENDED = ("exited", "dead", "gone", "created")
LIMITS = {"starts": 5, "within_s": 3600.0, "pause_s": 10.0, "most_pause_s": 600.0, "probe_s": 30.0, "look_s": 2.0}
"""Restarts of a group in a time, the first pause between two, which doubles, and how often it is looked at."""

Report = dict[str, Any]


class Peer:
    """The guard of another node, in a conversation that ends with its lease."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._lock = threading.Lock()
        self._over = threading.Event()

    def do(self, word: str) -> Report:
        """Have it take the lease, stop or start its rank, or just say how it is; its report then.

        Raises:
            Failed: it could not, or cannot be reached any more.
        """
        with self._lock:
            try:
                answer = self._talk.ask({"do": word}, HELLO_S if word == "hello" else CHANGE_S)
            except Refused as error:
                # An answer that comes late would be taken for that to the next question.
                self._talk.close()
                raise Failed("%s: %s" % (self._talk.other, error)) from None
        if answer.get("failed"):
            raise Failed(str(answer["failed"]))
        return dict(answer["report"])

    def beat(self) -> None:
        """Keep its lease until ``close``."""

        def run() -> None:
            while not self._over.wait(BEAT_S):
                with contextlib.suppress(Failed):  # whoever asks next hears of it
                    self.do("hello")

        threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        """Let go of its lease, if it was taken."""
        self._over.set()
        self._talk.close()


class Myself:
    """The head's own node, with the methods of a ``Peer``."""

    def __init__(self, own: OwnRank) -> None:
        self._own = own
        self._holds = False

    def do(self, word: str) -> Report:
        """As of a peer."""
        if word in ("take", "stop", "start"):
            {"take": self._own.take, "stop": self._own.stop, "start": self._own.start}[word]()
            self._holds = self._holds or word == "take"
        return self._own.report()

    def beat(self) -> None:
        """Nothing: the lock is held by this process."""

    def close(self) -> None:
        """Let go of the lease, if it was taken here."""
        if self._holds:
            self._own.release()


Member = Peer | Myself


class Group:
    """The guards of a group's nodes, called from its head. To be closed."""

    def __init__(self, own: OwnRank, token: bytes, start: Report) -> None:
        self._own, self._token, self._start = own, token, start
        self.members: dict[str, Member] = {own.node: Myself(own)}
        self.unreached: dict[str, str] = {}
        self._reach()

    def close(self) -> None:
        """Let go of every lease that was taken."""
        for member in self.members.values():
            member.close()

    def _reach(self) -> None:
        def call(name: str) -> None:
            address, port = self._start["peers"][name], int(self._own.config["port"])
            try:
                talk = guard_protocol.call(
                    (address, port), self._token, cluster=self._own.cluster, name=self._own.node, other=name,
                    source=self._start["address"],
                )  # fmt: skip
            except Refused as error:
                self.unreached[name] = str(error)
            else:
                self.members[name] = Peer(talk)

        _each(call, list(self._start["peers"]))

    def reports(self) -> dict[str, Report]:
        """How every node of the group is; those that cannot be reached are left out, and in ``unreached``."""
        found: dict[str, Report] = {}

        def ask(name: str) -> None:
            try:
                found[name] = self.members[name].do("hello")
            except Failed as error:
                self.unreached[name] = str(error)

        _each(ask, list(self.members))
        return found

    def take(self) -> None:
        """Take the lease on every node, in the order of their names.

        Raises:
            Failed: somebody has it on one.
        """
        for name in sorted(self.members):
            self.members[name].do("take")
            self.members[name].beat()

    def all(self, word: str) -> None:
        """Have every node stop or start its rank, all at once.

        Raises:
            Failed: one could not.
        """
        errors: list[str] = []

        def do(name: str) -> None:
            try:
                self.members[name].do(word)
            except Failed as error:
                errors.append(str(error))

        _each(do, list(self.members))
        if errors:
            raise Failed("; ".join(sorted(errors)))


class GroupGuard:
    """What the guard on the head of a group does, one ``look`` after the other; on another node each does nothing."""

    def __init__(self, own: OwnRank, token: bytes, say: Callable[[str], None]) -> None:
        self._own, self._token, self._say = own, token, say
        self._limits = {**LIMITS, **own.config.get("limits", {})}
        self._look_s = float(self._limits["look_s"])
        self._engine: EngineGuard | None = None
        self._waits: str | None = None
        self._waited = self._seen_gone = 0
        self._ended_at = float("-inf")
        self._last_failure = ""

    def sleep(self, seconds: float) -> None:
        """Wait until the next look, or until the cluster is disabled."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._own.is_enabled:
            time.sleep(min(0.5, max(until - time.monotonic(), 0)))

    def look(self) -> float:
        """Look at the group, and restart it if it is dead; the seconds until the next look."""
        start = self._own.start_document()
        if start.get("head") is not True:
            self._forget()
            self.wait_for(None)
            return self._look_s
        self._follow(start)
        with contextlib.closing(Group(self._own, self._token, start)) as group:
            reports = group.reports()
        why = problem(self._own.node, reports, group.unreached)
        if why is not None:
            self._forget()
            self.wait_for(why, passing=any(report.get("busy") for report in reports.values()))
            self._waited = min(self._waited + 1, 20)
            # A node that boots is met soon; one that is off is not asked every second.
            return min(self._look_s * 1.3**self._waited, LONGEST_WAIT_S) if group.unreached else self._look_s
        self._waited = 0
        reason = gone(reports)
        if reason is not None:
            self._seen_gone += 1
            if self._seen_gone < 2:
                return self._look_s / 2
        else:
            self._seen_gone = 0
            if self._engine is not None:
                self._engine.want()
                reason = self._engine.dead
        if reason is None:
            self.wait_for(None)
            return self._look_s
        return self._restart_if_allowed(start, reason)

    def wait_for(self, why: str | None, *, passing: bool = False) -> None:
        """Say what is waited for, in the log and, unless it is ``passing``, in a file, which is what ``status`` shows.

        The lease says who is at work, and does not outlive that; a file would, until the next look. On a full disk the
        log alone has it.
        """
        path = os.path.join(self._own.directory, enabled.WAITS_FILE)
        changed, self._waits = why != self._waits, why
        if changed and why is not None:
            self._say("waits: %s" % why)
        if why is None or passing:
            with contextlib.suppress(FileNotFoundError):  # also one that was left before a reboot
                os.unlink(path)
            return
        if not changed and os.path.exists(path):
            return
        with contextlib.suppress(OSError):
            self._write(enabled.WAITS_FILE, {"why": why, "since": time.time()})

    def _follow(self, start: Report) -> None:
        """Ask the engine of this start from now on, and no earlier one."""
        request = start.get("ask")
        if self._engine is not None and self._engine.request != request:
            self._engine.close()
            self._engine = None
        if self._engine is None and request:
            self._engine = EngineGuard(request, float(self._limits["probe_s"]))
        if self._engine is not None and self._engine.failed is not None:
            raise Failed("its engine cannot be asked: %s" % self._engine.failed)

    def _forget(self) -> None:
        self._seen_gone = 0
        if self._engine is not None:
            self._engine.forget()

    def _restart_if_allowed(self, start: Report, reason: str) -> float:
        """Restart the group unless it was restarted too often, or a moment ago."""
        if os.path.exists(os.path.join(self._own.directory, enabled.GAVE_UP_FILE)):
            self.wait_for("it gave up: %s" % reason)
            return self._look_s
        now, limits = time.time(), self._limits
        # Starts that fail slowly are as many in a longer time.
        slow_s = limits["starts"] * (start["ready_timeout_s"] + limits["most_pause_s"])
        within_s = max(float(limits["within_s"]), slow_s)
        starts = self._starts(now, within_s)
        if len(starts) >= limits["starts"]:
            minutes = within_s / 60
            why = "%d starts in %.0f min, and still: %s" % (len(starts), minutes, self._last_failure or reason)
            self._write(enabled.GAVE_UP_FILE, {"why": why, "at": now})
            self._journal("gave up", start, why=why)
            return self._look_s
        pause_s = min(limits["pause_s"] * 2 ** (len(starts) - 1), limits["most_pause_s"]) if starts else 0.0
        left_s = max(starts[-1] + pause_s - now if starts else 0.0, self._ended_at + pause_s - time.monotonic())
        if left_s > 0:
            self.wait_for("%s; it is started again after a pause" % reason)
            return float(min(left_s, self._look_s))
        self.wait_for(None)
        with contextlib.closing(Group(self._own, self._token, start)) as group:
            try:
                group.take()
                reports = group.reports()
                hindered = problem(self._own.node, reports, group.unreached) is not None
                engine_dead = self._engine is not None and self._engine.dead is not None
                if hindered or self._own.start_document() != start or not (gone(reports) or engine_dead):
                    return self._look_s  # an operator came first
            except Failed as error:
                self.wait_for(str(error))
                return self._look_s
            self._write(enabled.STARTS_FILE, [*starts, now])
            self._restart(group, start, reason)
        self._ended_at = time.monotonic()
        self._forget()
        return self._look_s / 2

    def _restart(self, group: Group, start: Report, reason: str) -> None:
        began = time.monotonic()
        self._journal("restart", start, why=reason)
        try:
            group.all("stop")
            group.all("start")
            self._until_served(group, start)
        except (Failed, OSError) as error:
            self._last_failure = str(error)
            self._journal("failed", start, why=str(error), seconds=round(time.monotonic() - began, 1))
            # What has ended stays, for its log.
            for name, report in group.reports().items():
                if any(state not in ENDED for state in report["ranks"].values()):
                    with contextlib.suppress(Failed):
                        group.members[name].do("stop")
        else:
            self._last_failure = ""
            self._journal("serving", start, seconds=round(time.monotonic() - began, 1))

    def _until_served(self, group: Group, start: Report) -> None:
        """Wait until the model has answered.

        Raises:
            Failed: a rank ended, a node is lost, or the limit passed.
        """
        limit_s = start["ready_timeout_s"]
        over, answered = threading.Event(), threading.Event()

        def ask() -> None:
            if until_answered(start["ask"], limit_s, lambda: not over.is_set()):
                answered.set()

        threading.Thread(target=ask, daemon=True).start()
        until = time.monotonic() + limit_s
        try:
            while not answered.wait(PROGRESS_S):
                reports = group.reports()
                if group.unreached:
                    raise Failed("; ".join(sorted(group.unreached.values())))
                ended = gone(reports)
                if ended:
                    raise Failed("%s: it ended while the group started" % ended)
                if time.monotonic() > until:
                    raise Failed("the model did not answer within %.0f s" % limit_s)
        finally:
            over.set()

    def _starts(self, now: float, within_s: float) -> list[float]:
        times = common.read_model(os.path.join(self._own.directory, enabled.STARTS_FILE), [float]) or []
        return [each for each in times if now - within_s < each <= now]

    def _journal(self, act: str, start: Report, **more: Any) -> None:
        entry = {"act": act, "node": self._own.node, "group": start["group"], "release": start["number"], **more}
        enabled.journal(self._own.directory, **entry)
        self._say("%s of %s: %s" % (act, start["group"], more.get("why") or "release %d" % start["number"]))

    def _write(self, name: str, document: Any) -> None:
        common.write_atomically(os.path.join(self._own.directory, name), json.dumps(document).encode())


def problem(node: str, reports: dict[str, Report], unreached: dict[str, str]) -> str | None:
    """What keeps a group from being changed, or None: ``reports`` of its nodes, of which ``node`` is the head. Pure."""
    own = reports.get(node)
    if own is None:
        return unreached.get(node, "%s does not answer" % node)
    for report in (own, *reports.values()):
        if report["why"] is not None:
            return str(report["why"])
    if unreached:
        return "; ".join("%s: %s" % each for each in sorted(unreached.items()))
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


def _each(do: Callable[[str], None], names: list[str]) -> None:
    """Call ``do`` with every name, all at once."""
    if names:
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(do, names))
