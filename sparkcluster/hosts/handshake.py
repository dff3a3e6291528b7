"""Opens a verified SSH connection: TCP, host key, login, with an error for each way to fail."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from sparkcluster.errors import (
    AuthFailed,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostLost,
    HostRefused,
    HostTimeout,
    HostUnknown,
    SparkclusterError,
    UsageError,
)
from sparkcluster.hosts import known_hosts
from sparkcluster.hosts.base import remaining_s
from sparkcluster.hosts.paramiko_transport import Agent, Proxy, Transport, Tunnel, paramiko
from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.printable import shell

E = TypeVar("E", bound=SparkclusterError)

KEEPALIVE_S = 10
# A handshake takes a second of CPU on a busy controller; more at once only slow each other down.
_HANDSHAKES = threading.BoundedSemaphore(8)
_PASSWORD_METHODS = {"password", "keyboard-interactive"}


def connect(
    name: str, target: SshTarget, through: paramiko.Transport | None = None, *, password: str | None = None
) -> Transport:
    """An open connection to ``target``, through the connection ``through`` if it has a jump host.

    TCP, handshake and login together take at most ``target.connect_timeout_s`` seconds. ``password`` is tried once,
    instead of keys.

    Raises:
        HostError: its class says what is wrong; it names node ``name``.
        UsageError: the identity that the inventory names cannot be read.
    """
    login = _Login(name, target, password)
    with _HANDSHAKES:
        deadline = time.monotonic() + target.connect_timeout_s
        sock = _reach(name, target, through, deadline)
        login.deadline = deadline
        try:
            return _handshake(name, target, sock, login, deadline)
        except BaseException:
            sock.close()
            raise


def _handshake(name: str, target: SshTarget, sock: Any, login: _Login, deadline: float) -> Transport:
    transport = Transport(sock)
    transport.limit(handshake_s=remaining_s(deadline), send_s=target.connect_timeout_s)
    transport.prefer(known_hosts.kinds(target.known_hosts, target.key_name))
    try:
        transport.start_client(timeout=remaining_s(deadline))
        _check_host_key(name, target, transport.get_remote_server_key())
        login.authenticate(transport)
    except (HostError, UsageError):
        transport.close()
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        if time.monotonic() >= deadline - 0.1:
            raise _error(
                HostTimeout,
                name,
                f"sshd on {target.host} port {target.port} accepted the connection and then sent "
                f"nothing for {target.connect_timeout_s:g} s",
                f"run ssh -v {target.login} true to see where it stops; on the node: sudo systemctl restart ssh",
            ) from error
        from sparkcluster.hosts import reasons

        reason, remedy = reasons.why(error)
        raise _error(
            HostLost,
            name,
            f"the SSH handshake with {target.host} port {target.port} failed: {reason}",
            remedy or f"ssh -v {target.login} true",
        ) from error
    transport.set_keepalive(KEEPALIVE_S)
    return transport


def _error(kind: type[E], name: str, text: str, hint: str | None = None) -> E:
    """An error of connecting to node ``name``."""
    return kind(f"{name}: {text}", node=name, step="connect", hint=hint)


def _reach(name: str, target: SshTarget, through: paramiko.Transport | None, deadline: float) -> Any:
    """A socket to the node's sshd, or an object used as one."""
    if through is not None:
        try:
            return Tunnel(
                through.open_channel(
                    "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=remaining_s(deadline)
                )
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            from sparkcluster.hosts import reasons

            late = time.monotonic() >= deadline - 0.1
            kind, verb = (HostTimeout, "does not reach") if late else (HostRefused, "cannot reach")
            jump = target.jump.host if target.jump else "the jump host"
            reason = getattr(error, "text", "").lower() or reasons.why(error)[0]  # text: of a channel that was refused
            raise _error(kind, name, f"{jump} {verb} {target.host} port {target.port}: {reason}") from error
    if target.proxy_command:
        return Proxy(target.proxy_command)
    return _tcp(name, target, deadline)


def _tcp(name: str, target: SshTarget, deadline: float) -> socket.socket:
    where = f"{target.host} port {target.port}"
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name with an empty or too long part
        raise _error(
            HostUnknown,
            name,
            f"{target.host} does not resolve to an address",
            f"{shell('getent hosts', target.host)}, or set host to an address",
        ) from error
    failure: OSError = ConnectionRefusedError()
    for index, (family, kind, protocol, _, address) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(remaining_s(deadline) / (len(found) - index))
            sock.connect(address)
        except OSError as error:
            failure = error
            sock.close()
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A node that vanished is detected after two keep-alives, not after 15 minutes.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * KEEPALIVE_S * 1000)
        return sock
    if isinstance(failure, TimeoutError):
        text = f"no answer from {where} within {target.connect_timeout_s:g} s"
        raise _error(HostTimeout, name, text, f"ping {target.host}") from failure
    refused = isinstance(failure, ConnectionRefusedError)
    hint = "on the node: sudo systemctl start ssh" if refused else f"ping {target.host}, and check its power"
    if sys.platform == "darwin" and failure.errno == errno.EHOSTUNREACH:
        # Apple's TN3179: what a program that may not use the local network gets
        hint += "; on macOS: System Settings, Privacy & Security, Local Network: allow your terminal"
    reason = (failure.strerror or str(failure)).lower()
    raise _error(HostRefused, name, f"{where}: {reason}", hint) from failure


def _check_host_key(name: str, target: SshTarget, key: paramiko.PKey) -> None:
    """Accept a node's key, store it if host_keys is accept-new, or raise."""
    kind, blob = key.get_name(), key.get_base64()
    verdict, file = known_hosts.check(target.known_hosts, target.key_name, kind, blob)
    shown = f"{kind} {key.fingerprint}"
    if verdict == "unknown" and target.host_keys == "accept-new":
        verdict, file = store(name, target, kind, blob), target.known_hosts[0]
    if verdict == "known":
        return
    if verdict == "unknown":
        unknown = _error(
            HostKeyUnknown,
            name,
            f"the host key of {target.key_name} is unknown ({shown})",
            f"run ssh {target.login} true once to compare and store it, or set host_keys: accept-new",
        )
        unknown.key = kind, blob, key.fingerprint
        raise unknown
    forget = shell("ssh-keygen -R", target.key_name, "-f", file)
    text = "is revoked" if verdict == "revoked" else "has changed"
    raise _error(
        HostKeyChanged,
        name,
        f"the host key of {target.key_name} {text} ({shown}): reinstalled, or another machine answers",
        forget if verdict == "changed" else f"find {target.key_name} in {file}",
    )


def store(name: str, target: SshTarget, kind: str, blob: str) -> known_hosts.Verdict:
    """Store a key of ``target`` in its first known_hosts file; the verdict after it.

    Raises:
        UsageError: the file cannot be written, or is no known_hosts file.
    """
    file = target.known_hosts[0]
    try:
        return known_hosts.store(file, target.key_name, kind, blob)
    except OSError as error:
        raise _error(UsageError, name, f"its host key cannot be stored in {file}: {error.strerror}") from error


def public_keys(name: str, target: SshTarget) -> list[str]:
    """The keys that a login to ``target`` offers, in their order, each as ``type base64``; no certificates.

    Raises:
        UsageError: the identity that the inventory names cannot be read.
    """
    login, agent = _Login(name, target, None), Agent(target.agent)
    try:
        keys = [(key.get_name(), key.get_base64()) for key in login._keys(agent)]  # noqa: SLF001
    finally:
        agent.close()
    return list(dict.fromkeys(f"{kind} {blob}" for kind, blob in keys if "-cert-" not in kind))


class _Login:
    """Tries keys in the order of OpenSSH: the inventory's, the agent's, then the files of ssh_config; or a password."""

    def __init__(self, name: str, target: SshTarget, password: str | None) -> None:
        self.name = name
        self.target = target
        self._password = password
        self.deadline = time.monotonic() + target.connect_timeout_s
        self.locked: list[Path] = []
        self.public: list[Path] = []
        self.tried = 0
        if target.identity is not None:
            from sparkcluster import private_key

            agent = target.agent != "none" and bool(target.agent or os.environ.get("SSH_AUTH_SOCK"))
            found = private_key.wrong(str(target.identity), agent=agent)
            if found:
                raise _error(UsageError, name, f"identity {target.identity} {found[0]}", found[1])

    def authenticate(self, transport: Transport) -> None:
        """Log in on ``transport``, or raise AuthFailed."""
        if self._password is not None:
            self._by_password(transport, self._password)
            return
        agent = Agent(self.target.agent)
        reason, hint = "no key was accepted", None
        try:
            for key in self._keys(agent):
                self.tried += 1
                transport.limit(login_s=remaining_s(self.deadline))
                try:
                    more = transport.auth_publickey(self.target.user, key)
                except paramiko.BadAuthenticationType as error:
                    reason = f"it accepts {', '.join(error.allowed_types)} only"
                    hint = "on the node: PubkeyAuthentication yes in /etc/ssh/sshd_config"
                    break
                except paramiko.AuthenticationException:
                    if time.monotonic() >= self.deadline - 0.1:
                        raise
                    if not transport.is_active():
                        reason = f"it closed the connection after {self.tried} key{'' if self.tried == 1 else 's'}"
                        hint = "give ssh.identity: the node allows few tries (MaxAuthTries of its sshd)"
                        break
                    continue
                if not more:
                    return
                reason = f"it requires {', '.join(more)} besides a key"
        finally:
            agent.close()
        silent = f"; no agent answers at {agent.silent}" if agent.silent else ""
        reason = (reason if self.tried else "there is no key to offer") + silent
        self._fail(reason, self._methods(transport), hint)

    def _methods(self, transport: Transport) -> set[str]:
        """How sshd lets this user log in; both ways to send a password where it no longer says."""
        transport.limit(login_s=remaining_s(self.deadline))
        try:
            transport.auth_none(self.target.user)
        except paramiko.BadAuthenticationType as error:
            return set(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError):
            return set(_PASSWORD_METHODS)
        return set()

    def _by_password(self, transport: Transport, password: str) -> None:
        methods = self._methods(transport)
        if transport.is_authenticated():
            return  # sshd asks this user for nothing
        user, answers = self.target.user, [password]

        def answer(_title: str, _instructions: str, fields: list[Any]) -> list[str]:
            # PAM may ask for more, such as a code: a second time it would be sent as that
            return [answers.pop() if answers else "" for _ in fields]

        transport.limit(login_s=remaining_s(self.deadline))
        try:
            if "password" in methods:
                more = transport.auth_password(user, password, fallback=False)
            else:
                more = transport.auth_interactive(user, answer)
        except paramiko.BadAuthenticationType as error:
            self._fail(f"it accepts {', '.join(error.allowed_types)} only", set(error.allowed_types))
        except paramiko.AuthenticationException:
            if time.monotonic() >= self.deadline - 0.1:
                raise
            self._fail("the password was refused", methods)
        if more:
            self._fail(f"it requires {', '.join(more)} besides a password", set())

    def _fail(self, reason: str, methods: set[str], hint: str | None = None) -> NoReturn:
        target = self.target
        option = ["-i", target.identity] if target.identity else []
        hint = hint or f"{shell('ssh-copy-id', *option)} {target.login}"
        if self.locked:
            reason += f"; {self.locked[0]} is protected by a passphrase"
            hint = shell("ssh-add", self.locked[0])
        elif self.public and self.public[0] == target.identity:
            reason += f"; {self.public[0]} is a public key, and no agent has its private one"
            hint = "ssh-add the private key, or give its file as ssh.identity"
        elif not self.tried and self._password is None:
            hint = f"ssh-keygen -t ed25519, then {hint}"
        failed = _error(
            AuthFailed,
            self.name,
            f"login as {target.user} on {target.host} failed: {reason}",
            hint,
        )
        failed.takes_password = bool(methods & _PASSWORD_METHODS)
        raise failed

    def _keys(self, agent: paramiko.Agent) -> Iterator[paramiko.PKey]:
        target = self.target
        if target.identity is not None:
            try:
                key = self._load(target.identity, agent)
            except (ValueError, paramiko.SSHException) as error:
                text = f"identity {target.identity} is not a private key, or damaged, or of an unknown type"
                hint = f"{shell('ssh-keygen -y -f', target.identity)}   reads it"
                raise _error(UsageError, self.name, text, hint) from error
            if key is not None:
                yield key
        if not target.identities_only:
            yield from agent.get_keys()
        for file in target.identities:
            if not file.is_file():
                continue
            try:
                key = self._load(file, agent)
            except (ValueError, OSError, paramiko.SSHException):
                continue  # ssh skips such a file, too
            if key is not None:
                yield key

    def _load(self, file: Path, agent: paramiko.Agent) -> paramiko.PKey | None:
        """The key in ``file``; if that is public or a passphrase protects it, the agent's copy of it, or None."""
        public = file
        if file.suffix != ".pub":
            try:
                return paramiko.PKey.from_path(file)
            except (paramiko.PasswordRequiredException, TypeError):
                public = file.with_name(file.name + ".pub")
        blob = public.read_text(errors="replace").split()[1:2] if public.is_file() else []
        match = next((key for key in agent.get_keys() if [key.get_base64()] == blob), None)
        if match is None:
            (self.locked if public is not file else self.public).append(file)
        return match
