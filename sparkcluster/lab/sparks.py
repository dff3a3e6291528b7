"""Controls a virtual Spark from the machine: boot it, run programs on it, kill it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import sparkcluster
from sparkcluster.errors import LabError
from sparkcluster.lab import bare, cgroups, network, node_files, system
from sparkcluster.lab.machine import SPARK_PATH, TOOLS, run, wait_until
from sparkcluster.lab.state import Node, State, write_atomically

BOOT_LIMIT_S = 90.0
DEATH_LIMIT_S = 20.0


@dataclasses.dataclass(frozen=True, slots=True)
class Spark(Node):
    """A virtual Spark that can be booted, entered and killed."""

    @property
    def pid(self) -> int | None:
        """Process ID on the machine of its first process; None if it is down."""
        try:
            pid = int((self.directory / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if pid in cgroups.processes(self.unit) else None

    @property
    def image_engine(self) -> str | None:
        """The engine whose image it has; None without an image."""
        return self.state.engine if self.state.engine != "none" and self.spec.image == "present" else None

    def prepare(self, client_key: str) -> None:
        """Create its disk, its key and its boot configuration."""
        self.directory.mkdir(parents=True, exist_ok=True)
        disk = self.directory / "disk.ext4"
        with disk.open("wb") as file:
            file.truncate(self.spec.disk_gb * 10**9)
        # No journal: the disk need not survive a crash of the machine.
        extended = "lazy_itable_init=1,nodiscard"
        run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", extended, str(disk)])
        key = self.directory / "host_key"
        make_key(key, self.name)
        hardware = node_files.hardware(self)
        node_files.write_hardware(self, hardware)
        is_bare = self.state.spec.bare
        config = {
            "directory": str(self.directory),
            "hostname": self.name,
            "system": str(system.root(self.spec.system, bare=is_bare)),
            "cgroup": self.unit,
            "hardware": hardware,
            "files": node_files.files(self, key.read_text(), client_key),
            "links": node_files.links(perftest=not is_bare),
            "absent": bare.ABSENT if is_bare else (),
            "root_owned": bare.CACHE,
            "image_engine": None if self.spec.containerd else self.image_engine,
            "model_path": self.model_path if self.spec.model == "present" else None,
        }
        write_atomically(self.directory / "boot.json", json.dumps(config), mode=0o600)

    def boot(self) -> None:
        """Start it; returns immediately."""
        (self.directory / "hardware" / "ready.json").unlink(missing_ok=True)
        (self.directory / "pid").unlink(missing_ok=True)
        # If processes use up the available memory that it shows, the kernel kills one in its group.
        cgroups.make(self.unit, self.spec.memory_available_kb * 1024 // self.spec.memory_scale)
        network.configure(self)
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(sparkcluster.__file__).parent.parent),
            "PATH": SPARK_PATH,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # setsid --fork: the Spark keeps running after `lab up`.
        argv = ["setsid", "--fork", "nsenter", f"--net=/run/netns/{self.unit}", "--"]
        argv += ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--"]
        argv += [sys.executable, "-P", "-m", "sparkcluster.lab.boot", str(self.directory / "boot.json")]
        with (self.directory / "boot.log").open("ab") as log:
            null = subprocess.DEVNULL
            subprocess.run(argv, stdin=null, stdout=log, stderr=log, env=environment, cwd="/", check=True)

    def wait(self, limit_s: float = BOOT_LIMIT_S) -> None:
        """Wait until SSH and Docker answer.

        Raises:
            LabError: they did not answer within the limit; with the last line of the boot log.
        """
        until = time.monotonic() + limit_s
        booting = False
        while time.monotonic() < until:
            alive = self.pid is not None
            booting = booting or alive
            if booting and not alive:
                break
            if (self.directory / "hardware" / "ready.json").exists() and self.ssh_answers():
                return
            time.sleep(0.02)
        log = (self.directory / "boot.log").read_text(errors="replace").strip().splitlines()
        raise LabError(
            f"{self.name} did not boot: {log[-1] if log else 'no output'}",
            node=self.name,
            step="boot",
        )

    def load_image(self) -> None:
        """Load its image into containerd's store; an image in Docker's own store is mounted at boot."""
        engine = self.image_engine
        if engine and self.spec.containerd:
            from sparkcluster.lab import images

            command = self.enter(["docker", "load", "--quiet"])
            run(["sh", "-c", 'exec "$@" < "$0"', str(images.archive(engine)), *command], timeout_s=600)

    def ssh_answers(self) -> bool:
        """Whether its sshd sends its banner on the management address."""
        try:
            with socket.create_connection((self.host, 22), timeout=1.0) as client:
                return client.recv(4) == b"SSH-"
        except OSError:
            return False

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        timeout_s: float = 60.0,
        text_in: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the Spark as root, bypassing its sshd.

        Raises:
            LabError: the Spark is down, the program failed and ``check`` is set, or took too long.
        """
        return run(self.enter(argv), check=check, timeout_s=timeout_s, text_in=text_in)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The command on the machine that runs ``argv`` on the Spark.

        Raises:
            LabError: the Spark is down.
        """
        pid = self.pid
        if pid is None:
            raise LabError(f"{self.name} is down", node=self.name, hint="sparkcluster lab heal")
        inside = ["/usr/bin/env", "-i", f"PATH={SPARK_PATH}", "HOME=/root", "LANG=C.UTF-8", *argv]
        return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--", *inside]

    def sync_hardware(self) -> None:
        """Update its sysfs from the hardware file."""
        self.run([f"{TOOLS}/sync"])

    def kill(self) -> None:
        """Kill every process of the Spark and wait until its disk is free.

        Raises:
            LabError: a process did not end.
        """

        def gone() -> bool:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.processes() and not self._disk_in_use()

        if not wait_until(gone, limit_s=DEATH_LIMIT_S):
            raise LabError(f"processes of {self.name} did not end: {sorted(self.processes())}", node=self.name)
        (self.directory / "pid").unlink(missing_ok=True)

    def reboot(self) -> None:
        """Kill it, start it again and wait until it answers."""
        self.kill()
        self.boot()
        self.wait()

    def processes(self) -> set[int]:
        """IDs of all its processes on the machine, without zombies."""
        found = cgroups.processes(self.unit) | network.processes(self.unit)
        return {pid for pid in found if not _zombie(pid)}

    def _disk_in_use(self) -> bool:
        disk = str(self.directory / "disk.ext4")
        for file in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                if file.read_text().strip() == disk:
                    return True
        return False


def sparks_of(state: State) -> list[Spark]:
    """All virtual Sparks of a lab, in the order of its spec."""
    return [Spark(state, node.index) for node in state.nodes]


def make_key(path: Path, comment: str) -> None:
    """Create an ed25519 key pair at ``path``."""
    for file in (path, path.with_name(path.name + ".pub")):
        file.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
