"""A real sshd on loopback with separate keys, for one test."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.hosts.ssh import SshHost

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def keygen(path: Path, *more: str) -> Path:
    if not path.exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path), *more],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    return path


def gone(mark: int | str, limit_s: float = 30) -> bool:
    """Whether the process ``mark``, or all processes with that word in their command line, exit; a zombie has none."""
    word = str(mark).encode()
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        running = []
        for place in [Path(f"/proc/{mark}")] if isinstance(mark, int) else Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (place / "cmdline").read_bytes()
                running += [line] * bool(line and (isinstance(mark, int) or word in line.split(b"\0")))
        if not running:
            return True
        time.sleep(0.02)
    return False


class Sshd:
    def __init__(
        self, folder: Path, host_key: Path, options: tuple[str, ...] = (), prefix: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.prefix = prefix
        folder.mkdir(parents=True, exist_ok=True)
        self.identity = keygen(folder.parent / "id")
        self.host_key = host_key
        self.port = free_port()
        self.known_hosts = folder / "known_hosts"
        authorized = folder / "authorized_keys"
        authorized.write_text(self.identity.with_suffix(".pub").read_text())
        config = folder / "sshd_config"
        config.write_text(
            "\n".join(
                [
                    *options,  # of two values the first counts
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {host_key}",
                    f"AuthorizedKeysFile {authorized}",
                    f"PidFile {folder}/pid",
                    "StrictModes no",
                    "UsePAM no",
                    "PasswordAuthentication no",
                    "PermitRootLogin yes",
                    "UseDNS no",
                ]
            )
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.config = config
        self.log = folder / "log"
        self.start()

    def start(self) -> None:
        """Start its listener, and wait until that listens."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, SSHD, "-D", "-e", "-f", str(self.config)],
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def trust(self) -> None:
        public = self.host_key.with_suffix(".pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {' '.join(public)}\n")

    def target(self, **changes) -> SshTarget:
        defaults = {
            "host": "127.0.0.1",
            "user": getpass.getuser(),
            "port": self.port,
            "identity": self.identity,
            "identities_only": True,
            "known_hosts": (self.known_hosts,),
            "connect_timeout_s": 15,
        }
        return SshTarget(**{**defaults, **changes})

    def host(self, **changes) -> SshHost:
        return SshHost("spark-1", self.target(**changes))

    def children(self) -> list[int]:
        """Processes that serve its connections: ``sshd``, since OpenSSH 9.8 ``sshd-session``, and their children."""
        found = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True)
        rows = [line.split(maxsplit=2) for line in found.stdout.splitlines()]
        pids = [self.process.pid]
        for parent in pids:
            pids += [int(pid) for pid, ppid, comm in rows if int(ppid) == parent and comm.startswith("sshd")]
        return pids[1:]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the listener and to the processes of its connections."""
        for pid in [self.process.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        for pid in [*self.children(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


PASSWORD = "correct horse"
# Its hash, from openssl passwd -6.
_HASH = "$6$sparksalt$kbtzCas1viP1fOTTpNehWTUNuVZbn0jRFmu9Ynbbl4B5dvD4NHQMzD/gIUD64Yiz7YE.nv8GlIwVZA.YXHag9/"
SUDOERS = """
Defaults use_pty, logfile=/home/sudo.log
Defaults:spark timestamp_type=global
Defaults:tty requiretty
spark, tty ALL=(ALL) ALL
free ALL=(ALL) NOPASSWD: ALL
docker ALL=(ALL) NOPASSWD: /usr/bin/docker
"""
_USERS = ("spark", "tty", "free", "docker", "plain")
# Nothing on the machine changes: files are mounted over others in a namespace that ends with its last process.
_ENTER = """
set -e
cd "$1"
for name in passwd group shadow gshadow sudoers pam.d; do mount --bind "$name" "/etc/$name"; done
for place in /home /run /var/lib/sudo; do mount -t tmpfs none "$place"; done
mkdir /run/sshd
cp "$2" /home/keys
shift 2
exec "$@"
"""


class Accounts:
    """An sshd with PAM on this machine, with users whose password is ``PASSWORD`` and a separate sudoers file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        rows = {
            "passwd": "{name}:x:{number}:{number}::/home:/bin/sh",
            "group": "{name}:x:{number}:",
            "shadow": "{name}:{hash}:20000:0:99999:7:::",
            "gshadow": "{name}:!::",
        }
        for file, row in rows.items():
            added = [row.format(name=name, number=65000 + at, hash=_HASH) for at, name in enumerate(_USERS)]
            (folder / file).write_text("\n".join([Path("/etc", file).read_text().rstrip(), *added, ""]))
        (folder / "sudoers").write_text(SUDOERS)
        (folder / "sudoers").chmod(0o440)
        (folder / "pam.d").mkdir()
        for service in ("sshd", "sudo", "other"):
            rules = [f"{kind} required pam_unix.so" for kind in ("auth", "account", "session")]
            (folder / "pam.d" / service).write_text("\n".join([f"{rules[0]} nodelay", *rules[1:], ""]))

    def start(self, name: str, *options: str) -> Sshd:
        folder = self.folder / name
        keys = keygen(self.folder / "id").with_suffix(".pub")
        unshare = ("unshare", "--mount", "--propagation", "private")
        enter = (*unshare, "sh", "-c", _ENTER, "sh", str(self.folder), str(keys))
        options = (*options, "UsePAM yes", "AuthorizedKeysFile /home/keys")
        server = Sshd(folder, keygen(self.folder / f"{name}_host_key"), options, enter)
        server.trust()
        return server


@pytest.fixture(scope="module")
def accounts(tmp_path_factory, _needs_sshd):
    if os.getuid() != 0:
        pytest.skip("only root can make users for a test")
    if not shutil.which("sudo"):
        pytest.skip("no sudo: apt-get install sudo")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    return Accounts(tmp_path_factory.mktemp("accounts") / "etc")


@pytest.fixture(scope="session")
def _needs_sshd() -> None:
    if SSHD is None or not shutil.which("ssh-keygen"):
        pytest.skip("no sshd: sudo apt-get install openssh-server")


@pytest.fixture
def start_sshd(tmp_path, _needs_sshd):
    """Starts sshds for one test: ``start_sshd("name", "Option value", …)``."""
    running: list[Sshd] = []

    def start(name: str = "sshd", *options: str) -> Sshd:
        running.append(Sshd(tmp_path / name, keygen(tmp_path / f"{name}_host_key"), options))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory, _needs_sshd):
    """An sshd that its tests do not change."""
    folder = tmp_path_factory.mktemp("sshd")
    started = Sshd(folder / "sshd", keygen(folder / "host_key"))
    started.trust()
    yield started
    started.stop()


@pytest.fixture
def host(server):
    """A host with a separate connection to ``server``."""
    made = server.host()
    yield made
    made.close()
