"""What a guard does on its own node: says how its rank is, holds the node's lease, starts and stops the rank.

Everything goes through the agent's own functions, under the lease and the change lock of this node.
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
CHANGE_S = 15.0  # for a change of the last operator to end

Report = dict[str, Any]


class OwnRank:
    """This node's rank of an enabled cluster, by the guard's ``directory``. To be closed by who asked it to take."""

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
        """Write a line of the guard's log."""
        sys.stdout.write("[sparkcluster] %s\n" % text)
        sys.stdout.flush()

    def wait_for(self, why: str | None) -> None:
        """Say what is waited for, in the log and in a file, which is what ``status`` shows; None for nothing.

        On a full disk the log alone has it.
        """
        path = os.path.join(self.directory, WAITS_FILE)
        changed, self.waits = why != self.waits, why
        if changed and why is not None:
            self.say("waits: %s" % why)
        with contextlib.suppress(OSError):
            if why is None:
                os.unlink(path)  # also one that was left before a reboot
            elif changed or not os.path.exists(path):
                common.write_atomically(path, json.dumps({"why": why}).encode())

    def start_document(self) -> dict[str, Any]:
        """What starts the rank of the recorded release; empty without one. OSError where it is damaged."""
        return common.read_document(os.path.join(os.path.dirname(self.directory), START_FILE)) or {}

    def ask(self, word: str) -> Report:
        """Take start lock and lease of this node, stop or start its rank under it, or do nothing (hello); how it is.

        To take them at once does not wait until memory is stable, which is for who starts a rank.

        Raises:
            Failed: it cannot be done, or must not.
        """
        if word in ("take", "take-at-once"):
            self._take(settle=word == "take")
        elif word in ("start", "stop"):
            self.say("%ss its rank" % word)
            self._change(self._start_steps() if word == "start" else self._stop_steps())
        return self._report()

    def close(self) -> None:
        """Let go of start lock and lease, if they were taken."""
        for lock in (self._lease, self._start):
            if lock is not None:
                lock.close()

    def _report(self) -> Report:
        """How this node is: ``release``, operators' ``leases`` since it was recorded, and ``ranks``, states by name.

        Nodes count their own leases, which differ; what an operator did on all of them counts the same on all.
        ``why`` is what keeps the guard from changing anything, or None; ``busy`` whether that is an operator at work;
        ``delay`` what only keeps its rank from being started now, ``locked`` that another cluster has the start lock;
        ``victims`` which ranks were killed for memory by their launchers, and what these said.
        """
        found: Report = {"release": 0, "leases": 0, "ranks": {}, "why": None, "busy": False, "delay": None}
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
                    text = "%s runs on %s, and is not of the recorded release"
                    found["why"] = text % (", ".join(sorted(others)), self.node)
                other = None if self._start is not None else start_lock.held_by(self.config)
                found["locked"] = other is not None
                found["delay"] = "%s on %s" % (other, self.node) if other else self._delay(start, present)
        except Exception as error:  # also of a document that is not what it should be
            found["why"] = "%s: %s" % (self.node, error)
        return found

    def _delay(self, start: Report, present: dict[str, str]) -> str | None:
        """That the recorded ``planned_bytes`` are not available."""
        needed, free = int(start.get("planned_bytes") or 0), start_lock.available()
        if needed <= free or any(state not in ranks.OVER for state in present.values()):
            return None
        return "%s: its rank needs %.1f GB, and %.1f GB are available" % (self.node, needed / 1e9, free / 1e9)

    def _operator(self) -> str | None:
        """Who has the lease of this node, if that is not this guard."""
        if self._lease is not None or not common.is_locked(self._lock):
            return None
        last = common.read_json(self._lease_record)
        return str(last.get("operator") or "an operator")[:200]

    def _unwanted(self, start: dict[str, Any]) -> str | None:
        """Why nothing is to be started here, whoever has the lease."""
        if not start:
            return "%s has recorded no release" % self.node
        if os.path.exists(os.path.join(self.directory, STOPPED_FILE)):
            return "the cluster was stopped by an operator; the next up that succeeds ends that"
        switch = common.read_document(os.path.join(os.path.dirname(self.directory), SWITCH_FILE))
        if switch is not None and switch["number"] > start["release"] and start["group"] in switch["groups"]:
            return "a switch to another release was cut off; sparkcluster upgrade --resume ends it"
        return None

    def _take(self, *, settle: bool) -> None:
        """Take start lock and lease, as an operator does, without an epoch: what the last operator sends is refused.

        Raises:
            Failed: somebody has one of them, nothing is to be started here, or memory is still changing.
        """
        # Not only the head looks: whoever has the token may ask.
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
        # Read under the lock: until then an operator may have been granted the next one.
        lease: dict[str, Any] = {"epoch": epoch(), "granted": False, "since": time.time(), "cluster": self.cluster}
        lease.update(operator="the guard on %s" % self.node, operation=OPERATION)
        common.write_atomically(record, json.dumps(lease).encode())
        return file

    def _start_steps(self) -> list[dict[str, Any]]:
        """What starts the rank of the recorded release."""
        start = self.start_document()
        return [{**step, "number": start["number"]} for step in start["steps"]]  # whose secrets are restored

    def _stop_steps(self) -> list[dict[str, Any]]:
        """What stops and removes every rank of the cluster on this node."""
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
