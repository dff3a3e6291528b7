"""A guard's actions on its own node: report the rank's state, hold the node's lease, start and stop the rank.

All of them use the agent's functions, under the lease and the change lock of this node.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkcluster.node import agent, common, ranks, start_lock
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Unreadable
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import CONFIG_FILE, GRACE_S, START_FILE, STOPPED_FILE, SWITCH_FILE, VICTIM, WAITS_FILE

OPERATION = "restart"
CHANGE_S = 15.0  # for a change of the previous operator to end

Document = dict[str, Any]


class OwnRank:
    """This node's rank of an enabled cluster, from the guard's ``directory``. Must be closed after ``take``."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        config = common.read_document(os.path.join(directory, CONFIG_FILE))
        if config is None:
            raise Failed("%s has no %s" % (directory, CONFIG_FILE))
        self.config = config
        self.cluster, self.state_dir, self.node = config["cluster"], config["state_dir"], config["node"]
        self._lock, self._lease_record, _ = common.lease_files(config)
        self._start: BinaryIO | None = None
        self._lease: BinaryIO | None = None
        self.waits: str | None = None

    def say(self, text: str) -> None:
        """Write a line to the guard's log."""
        sys.stdout.write("[sparkcluster] %s\n" % text)
        sys.stdout.flush()

    def wait_for(self, why: str | None) -> None:
        """Report why the guard is waiting (None: it is not), in the log and in a file that ``status`` shows.

        On a full disk, only in the log.
        """
        path = os.path.join(self.directory, WAITS_FILE)
        changed, self.waits = why != self.waits, why
        if changed and why is not None:
            self.say("waits: %s" % why)
        with contextlib.suppress(OSError):
            if why is None:
                os.unlink(path)  # also one left from before a reboot
            elif changed or not os.path.exists(path):
                common.write_atomically(path, json.dumps({"why": why}).encode())

    def start_document(self) -> dict[str, Any]:
        """The steps that start the rank of the recorded release; empty if there is none. OSError if it is damaged."""
        return common.read_document(os.path.join(os.path.dirname(self.directory), START_FILE)) or {}

    def ask(self, word: str) -> Document:
        """Run a command: take the locks, stop or start the rank, or nothing (hello); return the report.

        ``take-at-once`` does not wait until memory is stable, which matters only before a start.

        Raises:
            Failed: the command failed or is not allowed.
        """
        if word in ("take", "take-at-once"):
            self._take(settle=word == "take")
        elif word in ("start", "stop"):
            self.say("%ss its rank" % word)
            self._change(self._start_steps() if word == "start" else self._stop_steps())
        return self._report()

    def close(self) -> None:
        """Release start lock and lease, if they were taken."""
        for lock in (self._lease, self._start):
            if lock is not None:
                lock.close()

    def _report(self) -> Document:
        """This node's state: ``release``, operators' ``leases`` since it was recorded, states of ``ranks`` by name.

        Each node counts its own leases; a lease taken on all nodes adds one on each. ``why`` is the reason why the
        guard must not change anything, or None; ``busy`` is whether that is an operator. ``delay`` is a reason that
        only prevents a start for now; ``locked`` is whether another cluster has the start lock. ``victims`` are ranks
        that their launchers killed for lack of memory, with their messages.
        """
        found: Document = {"release": 0, "leases": 0, "ranks": {}, "why": None, "busy": False, "delay": None}
        found.update(victims=[], locked=False)
        try:
            start = self.start_document()
            operator = self._operator()
            found.update(release=start.get("number", 0), busy=operator is not None)
            found["leases"] = self._epoch() - int(start.get("epoch", 0))
            found["why"] = self._unwanted(start) if operator is None else "%s is changing the cluster" % operator
            if found["why"] is None:
                here = self._present()
                present = {rank["name"]: rank["state"] for rank in here}
                victims = [rank for rank in here if rank["exit_code"] == VICTIM and rank["name"] in start["ranks"]]
                found["victims"] = ["%(name)s: %(error)s" % rank for rank in victims]
                found["ranks"] = {name: present.get(name, "gone") for name in start["ranks"]}
                others = [each for each, state in present.items() if each not in start["ranks"] and state == "running"]
                if others:
                    text = "%s runs on %s but is not part of the recorded release"
                    found["why"] = text % (", ".join(sorted(others)), self.node)
                other = None if self._start is not None else start_lock.held_by(self.config)
                found["locked"] = other is not None
                found["delay"] = "%s on %s" % (other, self.node) if other else self._delay(start, present)
        except Exception as error:  # includes malformed documents
            found["why"] = "%s: %s" % (self.node, error)
        return found

    def _delay(self, start: Document, present: dict[str, str]) -> str | None:
        """A message, if the recorded ``planned_bytes`` are not available."""
        needed, free = int(start.get("planned_bytes") or 0), start_lock.available()
        if needed <= free or any(state not in ranks.OVER for state in present.values()):
            return None
        return "%s: its rank needs %.1f GB, but only %.1f GB are available" % (self.node, needed / 1e9, free / 1e9)

    def _operator(self) -> str | None:
        """Who holds the lease of this node, if not this guard."""
        if self._lease is not None or not common.is_locked(self._lock):
            return None
        last = common.read_json(self._lease_record)
        return str(last.get("operator") or "an operator")[:200]

    def _unwanted(self, start: dict[str, Any]) -> str | None:
        """Why nothing may be started here, whoever has the lease."""
        if not start:
            return "%s has recorded no release" % self.node
        if os.path.exists(os.path.join(self.directory, STOPPED_FILE)):
            return "the cluster was stopped by an operator; sparkcluster up starts it"
        switch = common.read_document(os.path.join(os.path.dirname(self.directory), SWITCH_FILE))
        if switch is not None and switch["number"] > start["release"] and start["group"] in switch["groups"]:
            return "an upgrade or rollback was interrupted; sparkcluster upgrade --resume finishes it"
        return None

    def _take(self, *, settle: bool) -> None:
        """Take start lock and lease like an operator, but without an epoch: requests of the last operator are refused.

        Raises:
            Failed: another holder has one of them, nothing may be started here, or memory is still changing.
        """
        # Checked again: any client with the token may ask.
        unwanted = self._unwanted(self.start_document())
        if unwanted is not None:
            raise Failed(unwanted)
        lock, record, _ = common.lease_files({**self.config, "kind": "start"})
        self._start = self._held(lock, record, lambda: int(common.read_json(record).get("epoch", 0)))
        try:
            if settle:
                start_lock.settle(self.config)
        except common.Busy as error:
            raise Failed("%s: %s" % (self.node, error)) from None
        self._lease = self._held(self._lock, self._lease_record, self._epoch)

    def _held(self, lock: str, record: str, epoch: Callable[[], int]) -> BinaryIO:
        file = common.try_lock(lock, state_dir=self.state_dir)
        if file is None:
            last = common.read_json(record)
            who, what = last.get("operator") or "its guard", last.get("cluster") or self.cluster
            raise Failed("%s is changing %s on %s" % (str(who)[:200], str(what)[:100], self.node))
        # Read under the lock: before, an operator may have been granted the next one.
        lease: dict[str, Any] = {"epoch": epoch(), "granted": False, "since": time.time(), "cluster": self.cluster}
        lease.update(operator="the guard on %s" % self.node, operation=OPERATION)
        common.write_atomically(record, json.dumps(lease).encode())
        return file

    def _start_steps(self) -> list[dict[str, Any]]:
        """The steps that start the rank of the recorded release."""
        start = self.start_document()
        return [{**step, "number": start["number"]} for step in start["steps"]]  # to restore its secrets

    def _stop_steps(self) -> list[dict[str, Any]]:
        """The steps that stop and remove every rank of the cluster on this node."""
        places: dict[str, list[str]] = {"containers": [], "processes": []}
        kind, key = ("processes", "rank_dir") if self.config["runtime"] == "process" else ("containers", "name")
        places[kind] = [rank[key] for rank in self._present()]
        return [{"do": "stop", **places, "grace_s": GRACE_S}]

    def _change(self, steps: list[dict[str, Any]]) -> None:
        if self._lease is None:
            raise Failed("the guard of %s does not hold the lease" % self.node)
        what = "change"
        try:
            with common.change_lock(self.config, CHANGE_S):
                for step in steps:
                    what = step["do"]
                    agent.STEPS[what]({"state_dir": self.state_dir, "cluster": self.cluster}, step)
        except (Failed, OSError) as error:
            raise Failed("%s: %s: %s" % (self.node, what, error)) from None

    def _present(self) -> list[dict[str, Any]]:
        machine = Machine(docker_limit_s=DOCKER_LIMIT_S)
        try:
            return ranks.of_cluster(machine, self.config["runtime"], self.state_dir, self.cluster)
        except Unreadable as error:
            raise Failed("its ranks cannot be read: %s" % error) from None

    def _epoch(self) -> int:
        return int((common.read_document(self._lease_record) or {"epoch": 0})["epoch"])
