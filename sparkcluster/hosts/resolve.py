"""Resolves how to reach a node by SSH: ``ssh_config``, overridden by the inventory."""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
import subprocess
from pathlib import Path
from typing import Literal

from sparkcluster.errors import UsageError
from sparkcluster.hosts.base import Result

_JUMP = re.compile(
    r"^(?:(?P<user>[^@:\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^-@:\s\[\]][^@:\s\[\]]*)(?::(?P<port>\d{1,5}))?$"
)


HostKeys = Literal["reject", "accept-new"]


@dataclasses.dataclass(frozen=True, slots=True)
class SshSettings:
    """A node's SSH settings in the inventory, which documents them as ``ssh``; None means the value of ssh_config.

    ``new_keys`` is not in the inventory: a file that is read in addition to ``known_hosts`` and gets new keys instead.
    """

    user: str | None = None
    port: int | None = None
    identity: str | None = None
    jump: str | None = None
    known_hosts: str | None = None
    host_keys: HostKeys = "reject"
    connect_timeout_s: float = 10
    new_keys: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SshTarget:
    """How to reach an sshd, fully resolved.

    Attributes:
        host: hostname or address to connect to.
        alias: name in known_hosts.
        identity: key file from the inventory; must be readable.
        identities: key files from ssh_config; missing ones are skipped.
        identities_only: offer no other keys of the agent.
        agent: socket of ssh_config's IdentityAgent; ``none`` for no agent, None for ``SSH_AUTH_SOCK``.
        known_hosts: files with host keys; new keys are stored in the first.
        connect_timeout_s: limit for TCP, handshake and login together.
        jump: the jump host.
        proxy_command: ssh_config's ProxyCommand with its tokens expanded.
    """

    host: str
    user: str
    port: int = 22
    alias: str = ""
    identity: Path | None = None
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    known_hosts: tuple[Path, ...] = ()
    host_keys: HostKeys = "reject"
    connect_timeout_s: float = 10
    jump: SshTarget | None = None
    proxy_command: str | None = None

    @property
    def key_name(self) -> str:
        """The name in known_hosts: ``[host]:port`` for ports other than 22."""
        name = (self.alias or self.host).lower()
        return name if self.port == 22 else f"[{name}]:{self.port}"

    @property
    def login(self) -> str:
        """Arguments of ``ssh`` for a manual login."""
        port = "" if self.port == 22 else f"-p {self.port} "
        return f"{port}{self.user}@{self.host}"


def resolve(host: str, ssh: SshSettings) -> SshTarget:
    """Resolve how to reach ``host``; values in ``ssh`` override ssh_config.

    Raises:
        UsageError: ssh_config cannot be read, or a jump host is invalid.
    """
    return _resolve(host, ssh, hops=())


def _resolve(host: str, ssh: SshSettings, hops: tuple[str, ...]) -> SshTarget:
    if len(hops) > 8:
        raise UsageError(f"ProxyJump loops: {' -> '.join(hops)}", hint="check ~/.ssh/config")
    config = _ssh_config(host, ssh)
    name = config.get("hostname", [host])[0]
    user = ssh.user or config.get("user", [getpass.getuser()])[0]
    port = ssh.port or int(config.get("port", ["22"])[0])
    tokens = {"h": name, "n": host, "p": str(port), "r": user, "u": getpass.getuser(), "d": str(Path.home())}
    user_files = [ssh.known_hosts] if ssh.known_hosts else _words(config, "userknownhostsfile")
    global_files = _words(config, "globalknownhostsfile")
    files = [file for file in (ssh.new_keys, *user_files, *global_files) if file and file != "none"]
    jump = ssh.jump or next(iter(_words(config, "proxyjump")), None)
    command = " ".join(config.get("proxycommand", []))
    return SshTarget(
        host=name,
        user=user,
        port=port,
        alias=config.get("hostkeyalias", [name])[0],
        identity=Path(ssh.identity).expanduser() if ssh.identity else None,
        identities=tuple(_path(text, tokens) for text in config.get("identityfile", [])),
        identities_only=config.get("identitiesonly", ["no"])[0] == "yes",
        agent=_agent(config.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        known_hosts=tuple(_path(file, tokens) for file in files or ["~/.ssh/known_hosts"]),
        host_keys=ssh.host_keys,
        connect_timeout_s=ssh.connect_timeout_s,
        jump=_jump(jump, ssh, (*hops, host)) if jump and jump != "none" else None,
        proxy_command=_fill(command, tokens) if command and command != "none" and not jump else None,
    )


def _jump(text: str, ssh: SshSettings, hops: tuple[str, ...]) -> SshTarget:
    """The last hop of ``a,b,c``; the hops before it are its jump hosts."""
    *before, last = text.removeprefix("ssh://").split(",")
    match = _JUMP.match(last)
    if match is None:
        raise UsageError(f"invalid jump host {last!r}", hint="ssh.jump in the inventory is user@host:port")
    settings = dataclasses.replace(
        ssh,
        user=match["user"],
        port=int(match["port"]) if match["port"] else None,
        jump=",".join(before) or None,
        new_keys=None,
    )
    return _resolve(match["host"].strip("[]"), settings, hops)


def _ssh_config(host: str, ssh: SshSettings) -> dict[str, list[str]]:
    """The ssh_config of ``host``: keys in lower case, one value per line."""
    argv = ["ssh", "-G"]
    argv += ["-p", str(ssh.port)] if ssh.port else []
    argv += ["-l", ssh.user] if ssh.user else []
    try:
        done = subprocess.run(
            [*argv, "--", host],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=10,
            check=False,
            start_new_session=True,  # else Ctrl-C ends it, which looks like an invalid ssh_config
        )
    except FileNotFoundError:
        return _without_ssh(host)
    except subprocess.TimeoutExpired:
        raise UsageError(f"ssh -G {host} did not end within 10 s", hint="check Match exec in ~/.ssh/config") from None
    if done.returncode:
        reason = Result(done.returncode, done.stdout, done.stderr).reason
        raise UsageError(f"invalid ssh_config for {host}: {reason}", hint=f"ssh -G {host}")
    config: dict[str, list[str]] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        config.setdefault(key.lower(), []).append(value.strip())
    return config


def _without_ssh(host: str) -> dict[str, list[str]]:
    """Like ``_ssh_config``, if ssh is not installed."""
    from sparkcluster.hosts.paramiko_transport import paramiko, ssh_config

    try:
        found = ssh_config(host)
    except paramiko.SSHException as error:
        raise UsageError(f"invalid ssh_config for {host}: {error}") from None
    config = {key: value if isinstance(value, list) else [str(value)] for key, value in found.items()}
    config.setdefault("userknownhostsfile", ["~/.ssh/known_hosts"])
    config.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts"])
    config.setdefault("identityfile", [f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")])
    return config


def _agent(text: str, tokens: dict[str, str]) -> str | None:
    """The socket of an IdentityAgent, such as 1Password's; None for ``SSH_AUTH_SOCK``."""
    text = text.strip('"')
    if text in {"SSH_AUTH_SOCK", "$SSH_AUTH_SOCK", "${SSH_AUTH_SOCK}"}:
        return None
    return text if text == "none" else os.path.expandvars(str(_path(text, tokens)))


def _words(config: dict[str, list[str]], key: str) -> list[str]:
    return " ".join(config.get(key, [])).split()


def _fill(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: {"%": "%", **tokens}.get(match[1], match[0]), text)


def _path(text: str, tokens: dict[str, str]) -> Path:
    return Path(_fill(text, tokens)).expanduser()
