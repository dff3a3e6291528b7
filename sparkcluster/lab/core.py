"""A lab: up, open, down."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from sparkcluster.errors import LabError, UsageError
from sparkcluster.lab import cgroups, faults, images, inventory, machine, network, spec, state
from sparkcluster.lab.machine import command_line, wait_until
from sparkcluster.lab.sparks import Spark, make_key, sparks_of
from sparkcluster.lab.spec import with_access
from sparkcluster.lab.state import State
from sparkcluster.suggest import closest

OnLine = Callable[[str], None]


class Lab:
    """Virtual Sparks on this machine; as a context manager it is removed on exit.

    Attributes:
        sparks: the virtual Sparks, in the order of the inventory.
    """

    def __init__(self, found: State) -> None:
        self.state = found
        self.sparks = sparks_of(found)

    @classmethod
    def up(
        cls,
        sparks: int | None = None,
        *,
        engine: str = "stub",
        spec: Path | spec.LabSpec | None = None,
        name: str = "lab",
        bare: bool = False,
        login: str | None = None,
        sudo: str | None = None,
        report: OnLine = lambda _: None,
    ) -> Self:
        """Start a lab, unless it is already up.

        Args:
            sparks: number of Sparks; default 2, or as in ``spec``.
            engine: ``vllm``, ``stub`` or ``none``: the image in every Spark's Docker.
            spec: a spec file or a parsed spec.
            name: name of the lab; labs with different names are independent.
            bare: Sparks in factory state, without an inventory.
            login: for bare Sparks, if the spec does not set it: ``key`` or ``password``.
            sudo: for bare Sparks, if the spec does not set it: ``free``, ``password`` or ``refused``.
            report: receives progress lines.

        Raises:
            UsageError: this machine cannot run a lab, or the arguments are invalid.
            LabError: unknown engine, or a Spark did not start; the new lab was removed again.
        """
        requested = with_access(_spec(spec, sparks, bare=bare), login, sudo)
        machine.require({**machine.DEBIAN_PACKAGES, **(machine.BARE_PACKAGES if requested.bare else {})})
        if engine != "none":
            images.require(engine)
        directory = state.directory_of(name)
        with state.locked(state.lock_of(name)):
            found = State.read(directory)
            if found is not None and found.stage == "up":
                lab = cls(found)
                if all(spark.pid for spark in lab.sparks):
                    if (found.engine, found.spec) != (engine, requested):
                        raise UsageError(
                            f"lab {name} is already up with other Sparks or another engine",
                            hint=f"sparkcluster lab down --name {name}, or choose another --name",
                        )
                    report(f"lab {name} is already up")
                    return lab
            if found is not None or directory.exists():
                report(f"removing leftovers of an earlier lab {name}")
                _remove(directory, found)
            if engine != "none":
                report(f"preparing the image of engine {engine}")
                images.prepare(engine)
            lab = cls(state.create(name, engine, requested))
            try:
                lab._make(report)
            except BaseException:
                _remove(directory, lab.state)
                raise
            return lab

    @classmethod
    def open(cls, name: str = "lab") -> Self:
        """The running lab of that name.

        Raises:
            LabError: there is none.
        """
        machine.require()
        found = State.read(state.directory_of(name))
        if found is None or found.stage != "up":
            raise LabError(f"lab {name} is not up", hint=another(name) or f"sparkcluster lab up --name {name}")
        return cls(found)

    def _make(self, report: OnLine) -> None:
        make_key(self.identity, f"lab {self.name}")
        client_key = self.identity.with_suffix(".pub").read_text()
        network.up(self.state)
        report(f"booting {len(self.sparks)} virtual Sparks")
        begin = time.monotonic()

        def boot(spark: Spark) -> None:
            spark.prepare(client_key)
            spark.boot()
            spark.wait()
            spark.load_image()

        in_parallel(boot, self.sparks)
        inventory.write(self.state)
        self.state.stage = "up"
        self.state.write()
        report(f"all Sparks answered after {time.monotonic() - begin:.1f} s")

    @property
    def name(self) -> str:
        """Name of the lab."""
        return self.state.name

    @property
    def directory(self) -> Path:
        """Directory of the lab's files on the machine."""
        return self.state.directory

    @property
    def inventory(self) -> Path:
        """The generated inventory; a bare lab has none."""
        return self.state.directory / "inventory.yaml"

    @property
    def playbook(self) -> Path:
        """The generated playbook, to which the inventory refers."""
        return self.state.directory / "playbook.yaml"

    @property
    def identity(self) -> Path:
        """The operator's private key; accepted by every Spark except bare ones with ``login: password``."""
        return self.state.directory / "id_ed25519"

    @property
    def password(self) -> str | None:
        """Password of the user ``spark``; None in a ready lab, whose user has no password."""
        return self.state.password

    def spark(self, name: str) -> Spark:
        """The Spark with that name, address or number (from 1).

        Raises:
            UsageError: there is none.
        """
        for spark in self.sparks:
            if name in (spark.name, spark.host, str(spark.index + 1)):
                return spark
        names = ", ".join(spark.name for spark in self.sparks)
        raise UsageError(f"lab {self.name} has no Spark named {name}", hint=f"its Sparks: {names}")

    def fault(self, node: str, kind: str, *args: str) -> str:
        """Inject a fault into a Spark; return a line that describes it.

        Raises:
            UsageError: no such Spark or fault, or its argument is invalid.
            LabError: the fault could not be injected.
        """
        with self._changing():
            return faults.put(self.spark(node), kind, args)

    def heal(self, node: str | None = None) -> list[str]:
        """Undo all faults of one or all Sparks; return a line for each."""
        with self._changing():
            return faults.heal([self.spark(node)] if node else self.sparks)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with state.locked(state.lock_of(self.name)):
            found = State.read(self.directory)
            if found is None or found.id != self.state.id:
                raise LabError(f"lab {self.name} is down", hint=f"sparkcluster lab up --name {self.name}")
            self.state.faults = found.faults
            yield
            self.state.write()

    def down(self) -> None:
        """Remove the lab, if it is up."""
        down(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()


def another(name: str) -> str | None:
    """A hint with existing labs to use instead of ``name``; None if there are none."""
    found = (each.parent.name for each in state.directory_of(name).parent.glob("*/state.json"))
    names = sorted(each for each in found if each != name)
    near = closest(name, names)
    if near or not names:
        return f"did you mean --name {near}?" if near else None
    return f"add {' or '.join(f'--name {each}' for each in names)}"


def down(name: str = "lab", report: OnLine = lambda _: None) -> bool:
    """Remove a lab in any state; return whether it existed.

    Raises:
        LabError: a part of it could not be removed.
    """
    machine.require()
    directory = state.directory_of(name)
    if not directory.exists():
        return False
    with state.locked(state.lock_of(name)):
        report(f"removing lab {name}")
        _remove(directory, State.read(directory))
        state.lock_of(name).unlink(missing_ok=True)
    return True


def in_parallel(work: Callable[[Spark], None], sparks: Sequence[Spark]) -> None:
    """Run ``work`` for all Sparks in parallel; raise the first error after all have ended."""
    with ThreadPoolExecutor(max_workers=len(sparks)) as pool:
        list(pool.map(work, sparks))


def _spec(source: Path | spec.LabSpec | None, count: int | None, *, bare: bool) -> spec.LabSpec:
    if source is None:
        return spec.plain(2 if count is None else count, bare=bare)
    return source if isinstance(source, spec.LabSpec) else spec.load(source, count, bare=bare)


def _remove(directory: Path, found: State | None) -> None:
    """Remove a lab: processes, cables, control groups, files, in this order."""
    if found is not None and state.owns(found):
        _end_started(found)
        in_parallel(Spark.kill, sparks_of(found))
        network.down(found)

        def groups_gone() -> bool:
            return not [node for node in found.nodes if not cgroups.remove(node.unit)]

        if not wait_until(groups_gone, limit_s=10.0):
            raise LabError(f"control groups of lab {found.name} are still in use", step="lab down")
        state.release(found)

    def gone() -> bool:
        for each in directory.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            elif each.name != state.STATE_FILE:
                each.unlink()
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    if not wait_until(gone, limit_s=10.0):
        raise LabError(f"cannot remove {directory}", step="lab down", hint=f"findmnt -R {directory}")


def _end_started(found: State) -> None:
    """Kill processes of a `lab up` that was killed, which are not yet in a namespace of the lab: boots, mkfs, keys."""

    def ended() -> bool:
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        own = [pid for pid in pids if _is_started(command_line(pid), f"{found.directory}/")]
        for pid in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not own

    if not wait_until(ended, limit_s=10.0):
        raise LabError(f"processes that started lab {found.name} do not exit", step="lab down")


def _is_started(words: list[str], directory: str) -> bool:
    is_ours = "sparkcluster.lab.boot" in words or words[:1] in (["mkfs.ext4"], ["ssh-keygen"])
    return is_ours and words[-1].startswith(directory)
