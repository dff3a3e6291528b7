"""What a guard does on its own node: says how its rank is, holds the node's lease, starts and stops the rank.

Everything goes through the agent's own functions, under the lease and the change lock of this node.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from typing import Any, BinaryIO

from sparkcluster.node import agent, common, enabled, ranks
from sparkcluster.node.machine import DOCKER_LIMIT_S, Machine, Unreadable
from sparkcluster.node.programs import Failed
from sparkcluster.node.shared import (
    CONFIG_FILE,
    LABEL_CLUSTER,
    LABEL_RANK_DIR,
    LABEL_RUNTIME,
    LABEL_STATE_DIR,
    STOPPED_FILE,
    SWITCH_FILE,
)

OPERATION = "restart"
BARRIER_S = 15.0  # as of an operator's lease
GRACE_S = 30
_KEPT_EPOCHS = 1000
_CONFIG = {"cluster": str, "state_dir": str, "node": str, "runtime": str, "port": int}


class Held:
    """The lease of this node, held by its guard."""

    def __init__(self, lock: BinaryIO, epoch: int) -> None:
        self.lock = lock
        self.epoch = epoch


class OwnRank:
    """This node's rank of an enabled cluster, by the guard's ``directory``."""

    def __init__(self, directory: str, machine: Machine | None = None) -> None:
        self.directory = directory
        config = common.read_model(os.path.join(directory, CONFIG_FILE), _CONFIG)
        if config is None:
            raise Failed("%s has no %s" % (directory, CONFIG_FILE))
        self.config: dict[str, Any] = config
        self.cluster, self.state_dir, self.node = config["cluster"], config["state_dir"], config["node"]
        self.held: Held | None = None
        self._machine = machine or Machine(docker_limit_s=DOCKER_LIMIT_S)
        self._taking = threading.Lock()

    @property
    def is_enabled(self) -> bool:
        """Whether this guard is still wanted."""
        return os.path.exists(os.path.join(self.directory, CONFIG_FILE))

    def start_document(self) -> dict[str, Any]:
        """What starts the rank of the recorded release; empty without one.

        Raises:
            Failed: it is damaged.
        """
        try:
            return common.read_model(enabled.start_file(self.state_dir, self.cluster), enabled.START) or {}
        except common.Damaged as error:
            raise Failed("%s; sparkcluster down, then up, writes it again" % error) from None

    def report(self) -> dict[str, Any]:
        """How this node is: ``release``, operators' ``leases`` since it was recorded, and ``ranks``, states by name.

        ``why`` is what keeps the guard from changing anything, or None; ``busy`` whether that is an operator at work.
        """
        found: dict[str, Any] = {"node": self.node, "release": 0, "leases": 0, "ranks": {}, "why": None, "busy": False}
        try:
            start = self.start_document()
            operator = self._operator()
            found.update(release=start.get("number", 0), leases=self.leases(start), busy=operator is not None)
            found["why"] = self._unwanted(start) if operator is None else "%s is changing the cluster" % operator
            if found["why"] is None:
                present = {rank["name"]: rank["state"] for rank in self._present()}
                found["ranks"] = {name: present.get(name, "gone") for name in start["ranks"]}
                others = [each for each, state in present.items() if each not in start["ranks"] and state == "running"]
                if others:
                    text = "%s runs on %s, and is not of the recorded release"
                    found["why"] = text % (", ".join(sorted(others)), self.node)
        except Unreadable as error:
            found["why"] = "the ranks of %s cannot be read: %s" % (self.node, error)
        except (Failed, OSError) as error:
            found["why"] = "%s: %s" % (self.node, error)
        return found

    def _operator(self) -> str | None:
        """Who has the lease of this node, if that is not this guard."""
        lock, record, _ = common.lease_files(self.state_dir, self.cluster, "cluster")
        if self.held is not None or not common.is_locked(lock):
            return None
        last = common.read_model(record, dict) or {}
        return str(last.get("operator") or "an operator")[:200]

    def _unwanted(self, start: dict[str, Any]) -> str | None:
        """Why nothing is to be started here, whoever has the lease."""
        if not start:
            return "%s has recorded no release" % self.node
        if os.path.exists(os.path.join(self.directory, STOPPED_FILE)):
            return "the cluster was stopped by an operator; the next up that succeeds ends that"
        path = os.path.join(common.cluster_dir(self.state_dir, self.cluster), SWITCH_FILE)
        switch = common.read_model(path, {"number": int, "groups": [str]})
        if switch is not None and switch["number"] > start["release"] and start["group"] in switch["groups"]:
            return "a switch to another release was cut off; sparkcluster upgrade --resume ends it"
        return None

    def leases(self, start: dict[str, Any]) -> int:
        """How many leases operators were granted on this node since the release was recorded: its epoch.

        Nodes count their own leases, which differ; what an operator did on all of them counts the same on all.
        """
        begin, epoch = int(start.get("epoch", 0)), self._last_epoch()
        own = [each for each in self._own_epochs() if begin < each <= epoch]
        return epoch - begin - len(own)

    def take(self) -> None:
        """Take the lease of this node, as an operator does.

        Raises:
            Failed: somebody has it, or a change of the last one has not ended.
        """
        with self._taking:
            if self.held is not None:
                raise Failed("the guard of %s is at work already" % self.node)
            lock = common.try_lock(common.lease_files(self.state_dir, self.cluster, "cluster")[0])
            if lock is None:
                raise Failed("%s has the lease on %s" % (self._operator() or "an operator", self.node))
            try:
                # Not only the head looks: whoever has the token may ask.
                unwanted = self._unwanted(self.start_document())
                if unwanted is not None:
                    raise Failed(unwanted)  # noqa: TRY301 - with the lock
                epoch = self._last_epoch()
                self._write_lease(epoch, granted=False)
                common.change_lock(self.state_dir, self.cluster, BARRIER_S).close()
                path = os.path.join(self.directory, enabled.LEASES_FILE)
                own = [*self._own_epochs(), epoch + 1][-_KEPT_EPOCHS:]
                common.write_atomically(path, json.dumps(own).encode())
                self._write_lease(epoch + 1, granted=True)
            except common.Busy as busy:
                lock.close()
                raise Failed("on %s %s" % (self.node, busy)) from None
            except BaseException:
                lock.close()
                raise
            self.held = Held(lock, epoch + 1)

    def release(self) -> None:
        """Let go of the lease."""
        held, self.held = self.held, None
        if held is not None:
            held.lock.close()

    def start(self) -> None:
        """Start the rank of the recorded release.

        Raises:
            Failed: a step failed, or the lease is not held.
        """
        start = self.start_document()
        steps = [
            dict(step, number=start["number"]) if step["do"] == "restore-secrets" else step for step in start["steps"]
        ]
        self._change(steps)

    def stop(self) -> None:
        """Stop and remove every rank of the cluster on this node.

        Raises:
            Failed: one cannot be stopped, or the lease is not held.
        """
        try:
            present = self._present()
        except Unreadable as error:
            raise Failed("the ranks of %s cannot be read: %s" % (self.node, error)) from None
        process = [rank for rank in present if rank["labels"].get(LABEL_RUNTIME) == "process"]
        containers = [rank["name"] for rank in present if rank not in process]
        steps: list[dict[str, Any]] = []
        if containers:
            steps.append({"do": "stop-containers", "names": containers, "grace_s": GRACE_S})
        if process:
            directories = [rank["labels"].get(LABEL_RANK_DIR, "") for rank in process]
            steps.append({"do": "stop-processes", "rank_dirs": directories, "grace_s": GRACE_S})
        if steps:
            self._change(steps)

    def _change(self, steps: list[dict[str, Any]]) -> None:
        held = self.held
        if held is None:
            raise Failed("the guard of %s does not hold the lease" % self.node)
        lease = {"state_dir": self.state_dir, "cluster": self.cluster, "epoch": held.epoch}
        answer = agent.main({**lease, "order": time.monotonic_ns(), "steps": steps}, None)  # type: ignore[arg-type]
        if "results" not in answer:
            failed = answer.get("failed") or {"step": "change", "message": answer.get("refused")}
            raise Failed("%s: %s: %s" % (self.node, failed["step"], failed["message"]))

    def _present(self) -> list[dict[str, Any]]:
        if self.config["runtime"] == "process":
            found = ranks.processes(self._machine, self.state_dir, self.cluster)
        else:
            found = ranks.containers(self._machine, "%s=%s" % (LABEL_CLUSTER, self.cluster))
        return [rank for rank in found if rank["labels"].get(LABEL_STATE_DIR) == self.state_dir]

    @property
    def _lease_record(self) -> str:
        return common.lease_files(self.state_dir, self.cluster, "cluster")[1]

    def _last_epoch(self) -> int:
        return int((common.read_model(self._lease_record, {"epoch": int}) or {"epoch": 0})["epoch"])

    def _own_epochs(self) -> list[int]:
        return common.read_model(os.path.join(self.directory, enabled.LEASES_FILE), [int]) or []

    def _write_lease(self, epoch: int, *, granted: bool) -> None:
        document = {
            "epoch": epoch,
            "operator": "the guard on %s" % self.node,
            "operation": OPERATION,
            "since": time.time(),
            "granted": granted,
            "mark": hashlib.sha256(os.urandom(16)).hexdigest(),  # nobody resumes it
        }
        common.write_atomically(self._lease_record, json.dumps(document).encode())
