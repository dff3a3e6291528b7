"""Connecting where the operator is asked: whether to trust a host key, and for a password."""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from collections.abc import Collection, Iterable
from typing import Protocol

from sparkcluster.errors import AuthFailed, HostKeyUnknown
from sparkcluster.hosts import handshake, known_hosts
from sparkcluster.hosts.paramiko_transport import Transport, paramiko
from sparkcluster.hosts.resolve import SshTarget

# OpenSSH's default of NumberOfPasswordPrompts, ssh_config(5)
_TRIES = 3


class Prompts(Protocol):
    """What the operator is asked about node ``name``. ``target`` is where the question comes from: it or a jump host.

    Called from the threads that connect. What is raised here, KeyboardInterrupt too, reaches who waits for them.
    """

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Whether to store the key of type ``kind`` (as known_hosts names it) as that of ``target``."""

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """The password of ``target.user`` there, None for none; ``again`` after it refused the last one."""


class About:
    """``prompts`` about the nodes ``names`` alone: about others nobody is asked."""

    def __init__(self, prompts: Prompts, names: Collection[str]) -> None:
        self._prompts = prompts
        self._names = names

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Ask about one of the nodes."""
        return name in self._names and self._prompts.host_key(name, target, kind, fingerprint)

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """Ask about one of the nodes."""
        return self._prompts.password(name, target, again=again) if name in self._names else None


class Remembering:
    """``prompts``, and what they answered, in memory: for a machine that is reached at another address next."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._accepted: dict[tuple[str, str], set[str]] = {}
        self._typed: dict[tuple[str, str], tuple[str, str]] = {}

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Ask, and remember a yes."""
        accepted = self._prompts.host_key(name, target, kind, fingerprint)
        if accepted:
            self._accepted.setdefault((name, target.host), set()).add(fingerprint)
        return accepted

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """Ask, and remember what is typed; of a node that was logged in to, that was right."""
        typed = self._prompts.password(name, target, again=again)
        if typed is not None:
            self._typed[name, target.host] = target.user, typed
        return typed

    def elsewhere(self, name: str, host: str, keys: Iterable[str]) -> SameMachine:
        """Prompts for the machine that node ``name`` is, which was logged in to at the address ``host``.

        Args:
            name: the node.
            host: where it was reached.
            keys: its public host keys as it reported them there, each as ``type base64``.
        """
        return SameMachine(self._prompts, keys, self._accepted.get((name, host), set()), self._typed.get((name, host)))


class SameMachine:
    """``prompts`` for a machine that was logged in to at another address.

    Its host keys are accepted, those that it reported there and those that the operator accepted there. The password
    that was right there is tried first, where the login is the same and one of these keys shows that it is the machine.
    """

    def __init__(
        self, prompts: Prompts | None, keys: Iterable[str], accepted: Collection[str], login: tuple[str, str] | None
    ) -> None:
        self._prompts = prompts
        self._keys = [(kind, blob) for kind, _, blob in (key.partition(" ") for key in keys)]
        self._fingerprints = {*map(_fingerprint, self._keys), *accepted}
        self._login = login
        self._shown = False

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Whether it is one of the machine, or the operator accepts it."""
        self._shown = fingerprint in self._fingerprints
        return self._shown or (self._prompts is not None and self._prompts.host_key(name, target, kind, fingerprint))

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """The password of before, or what the operator types."""
        if self._login is not None and not again and target.user == self._login[0] and self._is_shown(target):
            return self._login[1]
        return None if self._prompts is None else self._prompts.password(name, target, again=again)

    def _is_shown(self, target: SshTarget) -> bool:
        """Whether the key of ``target``, which is known by now, is one of the machine."""
        known = (known_hosts.check(target.known_hosts, target.key_name, *key)[0] for key in self._keys)
        return self._shown or "known" in known


def _fingerprint(key: tuple[str, str]) -> str:
    """SHA-256 fingerprint of a public key, as OpenSSH shows it; empty for what is no key."""
    try:
        blob = base64.b64decode(key[1], validate=True)
    except binascii.Error:
        return ""
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


class OneAtATime:
    """``prompts`` for several hosts that connect at once."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._lock = threading.Lock()

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Ask once the questions before are answered."""
        with self._lock:
            return self._prompts.host_key(name, target, kind, fingerprint)

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """Ask once the questions before are answered."""
        with self._lock:
            return self._prompts.password(name, target, again=again)


class Asking:
    """Connects to ``target`` as often as needed, and keeps the password that it accepted, in memory and for it alone.

    No connection is open during a question: sshd closes those that are not logged in within its LoginGraceTime, and
    no answer counts against ``target.connect_timeout_s``. The key that was accepted is checked on the next connection.
    """

    def __init__(self, name: str, target: SshTarget, prompts: Prompts) -> None:
        self._name = name
        self._target = target
        self._prompts = prompts
        self._password: str | None = None

    def connect(self, through: paramiko.Transport | None) -> Transport:
        """An open connection, as of ``handshake.connect``, whose errors it raises."""
        typed, refused = self._password, 0
        while True:
            try:
                transport = handshake.connect(self._name, self._target, through, password=typed)
            except HostKeyUnknown as error:
                self._accept(error)
            except AuthFailed as error:
                refused += typed is not None
                if not error.takes_password or refused == _TRIES:
                    raise
                typed = self._prompts.password(self._name, self._target, again=typed is not None)
                if typed is None:
                    raise
            else:
                self._password = typed
                return transport

    def _accept(self, error: HostKeyUnknown) -> None:
        """Store the key that ``error`` is about if the operator accepts it; raise ``error`` if not."""
        if error.key is None:
            raise error
        kind, blob, fingerprint = error.key
        if not self._prompts.host_key(self._name, self._target, kind, fingerprint):
            raise error
        handshake.store(self._name, self._target, kind, blob)
