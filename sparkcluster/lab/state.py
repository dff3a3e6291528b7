"""Where a lab is and what belongs to it, so that all of it can be removed.

Every name in a lab follows from its number ``k``, which is reserved and stored before anything is made.
After a crash at any point, the number is therefore enough to find every resource.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkcluster.errors import LabError, UsageError
from sparkcluster.lab.spec import LabSpec

RESERVATIONS = Path("/run/sparkcluster-lab")
"""Numbers in use on this machine, whatever their labs' directories; gone after a reboot, as the labs are."""

MOST_LABS = 200


def base_directory() -> Path:
    """Directory of all labs: ``SPARKCLUSTER_LAB_DIR``, by default /var/lib/sparkcluster-lab."""
    return Path(os.environ.get("SPARKCLUSTER_LAB_DIR") or "/var/lib/sparkcluster-lab").absolute()


def directory_of(name: str) -> Path:
    """Directory of the lab ``name``.

    Raises:
        UsageError: the name is invalid.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,49}", name) or name == "cache":
        raise UsageError(f"{name!r} is not a lab name", hint="use lower-case letters, digits and dashes, as `lab`")
    return base_directory() / name


@dataclasses.dataclass(slots=True)
class State:
    """The state of a lab.

    Attributes:
        index: the lab's number k on this machine.
        stage: ``creating`` until every Spark has answered, then ``up``.
        faults: per Spark, the faults that are on it and what heals them.
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
    def file(self) -> Path:
        """The file that holds this state."""
        return self.directory / "state.json"

    @property
    def host_device(self) -> str:
        """The machine's own end of the management network."""
        return f"sclab{self.index}"

    @property
    def switch(self) -> str:
        """Network namespace of the switches."""
        return f"sclab{self.index}-sw"

    def netns(self, spark: int) -> str:
        """Network namespace of Spark number ``spark``."""
        return f"sclab{self.index}-{spark}"

    def cgroup(self, spark: int) -> str:
        """Control group of Spark number ``spark``."""
        return f"sclab{self.index}-{spark}"

    def node_directory(self, spark: int) -> Path:
        """Files of Spark number ``spark`` on the machine."""
        return self.directory / "nodes" / self.spec.sparks[spark].name

    def management(self, spark: int) -> str:
        """Management address of Spark number ``spark``."""
        return f"10.77.{self.index}.{11 + spark}"

    @property
    def gateway(self) -> str:
        """Management address of the machine itself."""
        return f"10.77.{self.index}.1"

    def write(self) -> None:
        """Write the state atomically."""
        values = {
            "id": self.id,
            "name": self.name,
            "index": self.index,
            "engine": self.engine,
            "stage": self.stage,
            "faults": self.faults,
            "spec": self.spec.as_json(),
        }
        write_atomically(self.file, json.dumps(values, indent=1))

    @classmethod
    def read(cls, directory: Path) -> State | None:
        """The state in ``directory``, None where no lab is."""
        try:
            values = json.loads((directory / "state.json").read_text())
        except FileNotFoundError:
            return None
        spec = LabSpec.from_json(values.pop("spec"))
        return cls(directory=directory, spec=spec, **values)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace ``path`` atomically by a file with ``text``."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, which the holder may remove; the lock ends with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as file:
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
    """Lock file of the lab ``name``, beside its directory."""
    return directory_of(name).with_name(f".{name}.lock")


def create(name: str, engine: str, spec: LabSpec) -> State:
    """Reserve a number for a new lab and write its state, before anything else of it exists.

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
    """Release the number of a lab. The lock file stays: others may be waiting for it."""
    with locked(RESERVATIONS / "lock"):
        if owns(state):
            (RESERVATIONS / str(state.index)).unlink(missing_ok=True)


def owns(state: State) -> bool:
    """Whether the lab's number is still reserved for this lab, and not for another."""
    try:
        return (RESERVATIONS / str(state.index)).read_text().split(" ")[0] == state.id
    except FileNotFoundError:
        return False


def _free(index: int) -> bool:
    if Path(f"/sys/class/net/sclab{index}").exists() or list(Path("/run/netns").glob(f"sclab{index}-*")):
        return False
    # The kernel writes destinations as little-endian hex: 10.77.k.0 must not be in use here already.
    if f"\t00{index:02X}4D0A\t" in Path("/proc/net/route").read_text():
        return False
    try:
        _, directory = (RESERVATIONS / str(index)).read_text().strip().split(" ", 1)
    except FileNotFoundError:
        return True
    except ValueError:
        return True
    # The directory was deleted by hand and nothing of the lab runs: the number is free.
    return not (Path(directory) / "state.json").exists()
