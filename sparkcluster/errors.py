"""Every error that a user may see, as one tree.

::

    SparkclusterError
    ├── UsageError            wrong flags or an invalid file
    │   ├── NoEngine          the imported file starts no engine
    │   ├── ConsentMissing    an inventory or playbook was not accepted on this machine
    │   └── SpecError         problems in an inventory or playbook, with file:line:column
    ├── AccessDenied          the hub requires a token for a model, or another one
    ├── NotRecorded           the model's files cannot be read, and no data is recorded for it
    ├── LeaseHeld             another operator is changing this cluster
    ├── LeaseLost             our own lease expired or was taken
    ├── HostError             a node could not be reached or queried
    │   ├── HostSilent        a command that was started there may still run
    │   │   ├── HostUnknown     its name does not resolve
    │   │   ├── HostRefused     nothing listens on its SSH port
    │   │   ├── HostTimeout     no answer within the timeout
    │   │   ├── HostLost        the connection broke
    │   │   └── CommandTimeout  a command ran into its timeout
    │   ├── HostKeyUnknown    its host key is not in known_hosts
    │   ├── HostKeyChanged    its host key is not the one in known_hosts
    │   ├── AuthFailed        it accepts none of our SSH keys
    │   ├── CommandFailed     a command failed
    │   ├── DockerFailed      it cannot list its ranks
    │   ├── HostListedTwice   two nodes of the inventory are the same machine
    │   └── SudoRefused       sudo was refused
    ├── PlanError             no plan can be made from the facts
    ├── FoundErrors           findings of severity error
    ├── StageError            weights or image did not reach a node
    │   ├── BuildFailed       an image could not be built
    │   ├── ImageIncomplete   an image store has the image without its layers
    │   ├── LayersAbsent      a node lacks image layers that it was found to have
    │   └── RegistryAuth      the registry requires a login
    ├── LaunchError           the model did not become ready
    ├── RolledBack            a switch failed, and the previous release serves again
    ├── StopError             ranks could not be removed
    ├── NotServing            no endpoint serves
    ├── PromptTooLong         the prompt does not fit in the model's context
    ├── EmptyAnswer           the answer has reasoning but no content
    ├── OtherPlan             another plan serves; it is left running
    ├── SetupError            a node cannot be set up, or its setup cannot be undone
    ├── LabError              the virtual Sparks could not be made or changed
    ├── OutputError           stdout cannot be written
    └── Interrupted           Ctrl-C

Each error carries the node it happened on, the step in progress and a hint. ``exit_code`` is one of
``sparkcluster.exit_codes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sparkcluster import exit_codes, hints

if TYPE_CHECKING:
    from sparkcluster.findings import Finding


class SparkclusterError(Exception):
    """Root of the tree.

    Args:
        message: one line, no full stop.
        node: the node that it is about.
        step: the step in progress, for example ``stage image``.
        hint: a command to type, or advice.

    Attributes:
        others: failures of other nodes in the same step.
    """

    exit_code = exit_codes.FAILED

    def __init__(
        self, message: str, *, node: str | None = None, step: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.step = step
        self.hint = hint
        self.others: tuple[SparkclusterError, ...] = ()

    @property
    def kind(self) -> str:
        """Stable name of the error in JSON."""
        return type(self).__name__

    def finding(self, code: str, **parts: Any) -> Finding:
        """The error as a finding; ``parts`` adds fields or overrides those of the error."""
        from sparkcluster.findings import Finding, remedies  # noqa: PLC0415 - slow to import, only for failures

        fields = {"summary": self.message, "node": self.node, "remedies": remedies([self.hint or ""])}
        return Finding(code, **{"severity": "error", **fields, **parts})

    def as_json(self) -> dict[str, Any]:
        """The error in the stable JSON format."""
        error: dict[str, Any] = {
            "kind": self.kind,
            "message": self.message,
            "node": self.node,
            "step": self.step,
            "hint": self.hint and hints.command_line(self.hint),
            **self.details(),
            **({"others": [other.as_json()["error"] for other in self.others]} if self.others else {}),
        }
        return {"error": error}

    def details(self) -> dict[str, Any]:
        """Fields of ``as_json`` that only this kind of error has."""
        return {}


class UsageError(SparkclusterError):
    """Wrong flags or malformed input."""

    exit_code = exit_codes.USAGE


class NoEngine(UsageError):
    """The imported file starts no engine."""


class ConsentMissing(UsageError):
    """An inventory or playbook was not accepted on this machine."""


class Problem(NamedTuple):
    """One problem in a file that the user wrote; lines and columns count from 1, and are 0 for a flag."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str | None = None

    @property
    def summary(self) -> str:
        """The problem without its place in the file."""
        return f"{self.path}: {self.message}" if self.path else self.message

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.summary}"


class SpecError(UsageError):
    """An inventory or playbook that cannot be used; lists every problem in it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems), hint=self.problems[0].hint)

    def details(self) -> dict[str, Any]:
        """Every problem."""
        return {"problems": [problem._asdict() for problem in self.problems]}


class AccessDenied(SparkclusterError):
    """The hub requires a token for a model, or another one."""


class NotRecorded(SparkclusterError):
    """The model's files cannot be read, and no data is recorded for it."""


class LeaseHeld(SparkclusterError):
    """Another operator is changing this cluster."""

    exit_code = exit_codes.LEASE_HELD


class LeaseLost(SparkclusterError):
    """Our lease expired or was taken; nothing was changed after that."""


class HostError(SparkclusterError):
    """A node could not be reached or queried.

    ``code`` is the code of the finding that reports it.
    """

    code = "SSH-010"


class HostSilent(HostError):
    """The node, its sshd or a command on it did not answer; a command that was started there may still run."""


class HostUnknown(HostSilent):
    """The node's name does not resolve."""

    code = "SSH-001"


class HostRefused(HostSilent):
    """Nothing listens on the node's SSH port, or a firewall rejects the connection."""

    code = "SSH-002"


class HostTimeout(HostSilent):
    """The node did not answer within the timeout."""

    code = "SSH-003"


class HostKeyUnknown(HostError):
    """The node's host key is not in known_hosts.

    Attributes:
        key: its type, the key in base64 and its fingerprint.
    """

    code = "SSH-004"
    key: tuple[str, str, str] | None = None


class HostKeyChanged(HostError):
    """The node's host key is not the one in known_hosts."""

    code = "SSH-005"


class AuthFailed(HostError):
    """The node accepts none of our SSH keys."""

    code = "SSH-006"
    takes_password = False
    """Whether the node accepts a password, so that the user can be asked for it."""


class HostLost(HostSilent):
    """The connection to the node broke."""

    code = "SSH-007"


class CommandTimeout(HostSilent):
    """A command on the node ran into its timeout."""

    code = "SSH-008"


class CommandFailed(HostError):
    """A command on the node failed."""

    code = "SSH-009"


class DockerFailed(HostError):
    """Docker on the node does not answer, so it is unknown which ranks run there."""

    code = "HOST-001"


class HostListedTwice(HostError):
    """The node has the machine ID and a hardware address of another node of the inventory."""

    code = "SSH-011"


class SudoRefused(HostError):
    """sudo on the node refused to run a command as root; ``reason`` says why."""

    def __init__(
        self,
        message: str,
        *,
        reason: Literal["wrong password", "no password", "not in sudoers", "other"],
        **context: str | None,
    ) -> None:
        super().__init__(message, **context)
        self.reason = reason

    def details(self) -> dict[str, Any]:
        """The reason."""
        return {"reason": self.reason}


class PlanError(SparkclusterError):
    """No plan can be made from the facts."""


class FoundErrors(SparkclusterError):
    """Findings of severity error."""

    def __init__(self, findings: Sequence[Finding], result: str = "nothing was started or stopped") -> None:
        self.findings = tuple(findings)
        errors = [finding for finding in self.findings if finding.severity == "error"]
        super().__init__(
            f"{len(errors)} error{'s' * (len(errors) != 1)}; {result}",
            node=errors[0].node if len(errors) == 1 else None,
            hint=errors[0].remedy[0] if errors and errors[0].remedy else None,
        )

    def as_json(self) -> dict[str, Any]:
        """The error together with its findings."""
        return {**super().as_json(), "findings": [finding.as_json() for finding in self.findings]}


class StageError(SparkclusterError):
    """Weights or image did not reach a node."""


class BuildFailed(StageError):
    """An image could not be built; ``log`` holds the last lines of the build, oldest first."""

    def __init__(self, message: str, *, log: Sequence[str] = (), **context: str | None) -> None:
        super().__init__(message, **context)
        self.log = tuple(log)

    def details(self) -> dict[str, Any]:
        """The last log lines."""
        return {"log": list(self.log)}


class ImageIncomplete(StageError):
    """An image store has the image without its layers, so that it cannot be copied."""


class LayersAbsent(StageError):
    """A node lacks image layers that it was found to have, so it cannot load the rest of the image."""


class RegistryAuth(StageError):
    """The registry requires a login."""


class Reason(NamedTuple):
    """The log line that says why a rank failed.

    Attributes:
        node: the node whose log has it.
        number: its line number in the kept log, from 1.
        file: the kept log; empty if it could not be written.
    """

    node: str
    line: str
    number: int
    file: str = ""

    @property
    def place(self) -> str:
        """File and line, or the node if no log was kept."""
        return f"{self.file}:{self.number}" if self.file else f"log of {self.node}"


class LaunchError(SparkclusterError):
    """The group did not become ready.

    Args:
        log: last lines of the log of the rank that failed, oldest first.
        reason: the log line that says why; None if there is none.

    Attributes:
        logs: all log lines of the group that were read, by node; ``logs --failed`` shows them.
    """

    def __init__(
        self, message: str, *, log: Sequence[str] = (), reason: Reason | None = None, **context: str | None
    ) -> None:
        super().__init__(message, **context)
        self.log = tuple(log)
        self.logs: Mapping[str, Sequence[str]] = {}
        self.reason = reason

    def details(self) -> dict[str, Any]:
        """The last log lines, and the line that says why."""
        return {"log": list(self.log), "reason": self.reason._asdict() if self.reason else None}


class NotServing(SparkclusterError):
    """No endpoint serves."""


class PromptTooLong(SparkclusterError):
    """The prompt, the conversation so far and the answer together exceed the model's context."""


class EmptyAnswer(SparkclusterError):
    """The answer has no content, at most reasoning."""


class OtherPlan(SparkclusterError):
    """Another plan serves than ``up`` would start; ``up`` does not replace a working release.

    ``lines`` is the whole difference; the message has the part of it that people read.
    """

    def __init__(self, message: str, lines: Sequence[str], *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.lines = tuple(lines)

    def details(self) -> dict[str, Any]:
        """The difference."""
        return {"difference": list(self.lines)}


class RolledBack(SparkclusterError):
    """A switch to another release failed, and the previous release serves again."""

    exit_code = exit_codes.ROLLED_BACK


class StopError(SparkclusterError):
    """Ranks could not be removed."""


class SetupError(SparkclusterError):
    """A node cannot be set up, or its setup cannot be undone."""


class LabError(SparkclusterError):
    """The virtual Sparks could not be made or changed."""


class OutputError(SparkclusterError):
    """Stdout cannot be written, for example because the disk is full."""


class Interrupted(SparkclusterError):
    """The user pressed Ctrl-C; the message says what still runs."""

    exit_code = exit_codes.INTERRUPTED
    left_running = False
    """Whether everything that was started is left running."""
