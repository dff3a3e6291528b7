"""Connecting where the operator is asked: whether to trust a host key, and for a password."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Collection, Iterable
from typing import Protocol

from sparkcluster.errors import AuthFailed, HostKeyUnknown
from sparkcluster.hosts import handshake
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


class SameMachine:
    """``prompts`` for a machine that was logged in to, at an address that it names: a password is asked for again.

    ``keys`` are the public host keys that it reported, each as ``type base64``: about these nobody is asked.
    """

    def __init__(self, prompts: Prompts, keys: Iterable[str]) -> None:
        self._prompts = prompts
        blobs = (base64.b64decode(key.partition(" ")[2]) for key in keys)
        digests = (base64.b64encode(hashlib.sha256(blob).digest()).decode() for blob in blobs)
        self._fingerprints = {f"SHA256:{digest.rstrip('=')}" for digest in digests}

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Whether it is one of the machine, or the operator accepts it."""
        return fingerprint in self._fingerprints or self._prompts.host_key(name, target, kind, fingerprint)

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """What the operator types."""
        return self._prompts.password(name, target, again=again)


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
