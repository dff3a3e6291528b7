"""The location of a lab and the names of its resources, so that all of them can be removed.

Every name in a lab is derived from its number ``k``, which is reserved and stored before anything else is created. So
after a crash at any point, the number is enough to find every resource.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sparkcluster.errors import LabError, UsageError
from sparkcluster.lab.spec import FUNCTIONS, Function, LabSpec, SparkSpec

RESERVATIONS = Path("/run/sparkcluster-lab")
"""Numbers in use on this machine, in any lab directory; cleared by a reboot, like the labs."""

MOST_LABS = 200
REGISTRY_PORT = 5000
STATE_FILE = "state.json"
"""The file that identifies a directory as a lab's; removed last."""


def directory_of(name: str) -> Path:
    """Directory of the lab ``name``, below ``SPARKCLUSTER_LAB_DIR`` (default: /var/lib/sparkcluster-lab).

    Raises:
        UsageError: the name is invalid.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,49}", name) or name == "cache":
        raise UsageError(f"{name!r} is not a lab name", hint="use lower-case letters, digits and dashes, such as `lab`")
    base = os.environ.get("SPARKCLUSTER_LAB_DIR") or "/var/lib/sparkcluster-lab"
    return Path(base).absolute() / name


@dataclasses.dataclass(slots=True)
class State:
    """The state of a lab.

    Attributes:
        index: the lab's number k on this machine.
        stage: ``creating`` until every Spark has answered, then ``up``.
        faults: per Spark, its active faults and the steps that undo them.
    """

    id: str
    name: str
    directory: Path
    index: int
    engine: str
    spec: LabSpec
    stage: str = "creating"
    faults: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    @property
    def host_device(self) -> str:
        """The machine's end of the management network."""
        return f"sclab{self.index}"

    @property
    def switch(self) -> str:
        """Network namespace of the switches."""
        return f"{self.host_device}-sw"

    @property
    def nodes(self) -> list[Node]:
        """All virtual Sparks, in the order of the spec."""
        return [Node(self, index) for index in range(len(self.spec.sparks))]

    @property
    def gateway(self) -> str:
        """Management address of the machine itself."""
        return f"10.77.{self.index}.1"

    @property
    def registry(self) -> str:
        """Address of an image registry on ``REGISTRY_PORT``; not the machine's, so that ``silence`` spares it."""
        return f"10.77.{self.index}.2"

    @property
    def password(self) -> str | None:
        """Password of the user ``spark`` on every Spark of a bare lab; None in a ready lab, where it has none."""
        return f"spark-{self.id[:8]}" if self.spec.bare else None

    def write(self) -> None:
        """Write the state atomically."""
        write_atomically(
            self.directory / STATE_FILE, _AS_JSON.dump_json(self, indent=1, exclude={"directory"}).decode()
        )

    @classmethod
    def read(cls, directory: Path) -> State | None:
        """The state in ``directory``; None if there is no lab: the directory does not exist or is empty.

        Raises:
            LabError: the directory was not created by ``lab up``: it is a link, or has no state written by root.
        """
        file = directory / STATE_FILE
        try:
            if all(each.name.startswith(f".{STATE_FILE}.") for each in directory.iterdir()):
                return None
            mark = file.lstat()
            if stat.S_ISREG(mark.st_mode) and mark.st_uid == os.geteuid() and not directory.is_symlink():
                found = _AS_JSON.validate_python({**json.loads(file.read_text()), "directory": directory})
                if found.name == directory.name:
                    return found
        except FileNotFoundError:
            if not directory.exists():
                return None
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        hint = "choose another --name, or remove it"
        raise LabError(f"{directory} was not created by `sparkcluster lab up`; not changed", hint=hint)


_AS_JSON = TypeAdapter(State)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A virtual Spark of a lab: its spec, and all names derived from its index (from 0)."""

    state: State
    index: int

    @property
    def spec(self) -> SparkSpec:
        """This Spark's part of the lab's spec."""
        return self.state.spec.sparks[self.index]

    @property
    def name(self) -> str:
        """Its hostname, also its name in the inventory."""
        return self.spec.name

    @property
    def host(self) -> str:
        """Its management address."""
        return f"10.77.{self.state.index}.{11 + self.index}"

    @property
    def unit(self) -> str:
        """Name of its network namespace, and of its control group."""
        return f"{self.state.host_device}-{self.index}"

    @property
    def directory(self) -> Path:
        """Directory of its files on the machine."""
        return self.state.directory / "nodes" / self.name

    @property
    def model_path(self) -> str:
        """Directory of the tiny model on it; root cannot log in on a bare Spark."""
        return "/home/spark/models/tiny" if self.state.spec.bare else "/root/models/tiny"

    @property
    def rails(self) -> dict[str, int]:
        """Rail of each cabled interface, by factory name."""
        return self.state.spec.rails(self.index)

    @property
    def cabled(self) -> list[Function]:
        """Functions with a cable, by rail: the first twin of each port before the second."""
        rails = self.rails
        return sorted((f for f in FUNCTIONS if f.netdev in rails), key=lambda f: rails[f.netdev])

    def address(self, function: Function) -> str | None:
        """Address with prefix of an interface; None for none."""
        return self.state.spec.address(self.index, function)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace ``path`` atomically with a file containing ``text``."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextlib.contextmanager
def locked(path: Path, *, busy: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file ``path``, which the holder may remove; the lock is released when the process exits.

    ``busy`` is called before waiting for another process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy()
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_still(path, file.fileno()):
                continue
            yield
            return


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether ``path`` is still the open file, and was not removed meanwhile."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def lock_of(name: str) -> Path:
    """Lock file of the lab ``name``, next to its directory."""
    return directory_of(name).with_name(f".{name}.lock")


def create(name: str, engine: str, spec: LabSpec) -> State:
    """Reserve a number for a new lab and write its state, before anything else is created.

    Raises:
        LabError: all numbers are taken.
    """
    directory = directory_of(name)
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    identity = uuid.uuid4().hex
    with locked(RESERVATIONS / "lock"):
        for index in range(MOST_LABS):
            if not _free(index):
                continue
            state = State(identity, name, directory, index, engine, spec)
            state.write()
            (RESERVATIONS / str(index)).write_text(f"{identity} {directory}\n")
            return state
    raise LabError("this machine has the maximum number of labs", hint="sparkcluster lab down")


def release(state: State) -> None:
    """Release the number of a lab. The lock file is kept: other processes may be waiting for it."""
    with locked(RESERVATIONS / "lock"):
        if owns(state):
            (RESERVATIONS / str(state.index)).unlink(missing_ok=True)


def owns(state: State) -> bool:
    """Whether the lab's number is still reserved for this lab."""
    try:
        return (RESERVATIONS / str(state.index)).read_text().split(" ")[0] == state.id
    except FileNotFoundError:
        return False


def network_namespaces(index: int) -> list[Path]:
    """Network namespaces of lab number ``index``."""
    return list(Path("/run/netns").glob(f"sclab{index}-*"))


def _free(index: int) -> bool:
    if Path(f"/sys/class/net/sclab{index}").exists() or network_namespaces(index):
        return False
    # The kernel writes destinations as little-endian hex: 10.77.k.0 must not be in use here already.
    if f"\t00{index:02X}4D0A\t" in Path("/proc/net/route").read_text():
        return False
    try:
        _, directory = (RESERVATIONS / str(index)).read_text().strip().split(" ", 1)
    except (FileNotFoundError, ValueError):
        return True
    # The directory was deleted manually and nothing of the lab is running: the number is free.
    return not (Path(directory) / STATE_FILE).exists()
