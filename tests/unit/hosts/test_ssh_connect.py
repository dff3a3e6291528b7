"""Connecting to real sshds: every kind of failure has a distinct error and hint."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sparkcluster.errors import (
    AuthFailed,
    HostKeyChanged,
    HostKeyUnknown,
    HostLost,
    HostRefused,
    HostTimeout,
    HostUnknown,
    UsageError,
)
from sparkcluster.hosts import known_hosts
from sparkcluster.hosts.ssh import SshHost


@pytest.fixture
def silent_port():
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield listener.getsockname()[1]


def fails(host, kind, match=None):
    with pytest.raises(kind, match=match) as caught:
        host.run(["true"])
    host.close()
    assert caught.value.node == "spark-1"
    assert "\n" not in caught.value.message
    return caught.value


def test_an_unresolvable_name(server):
    error = fails(server.host(host="no-such-host.invalid"), HostUnknown, "no-such-host.invalid does not resolve")
    assert "ping no-such-host.invalid" in error.hint


def test_a_port_without_a_listener(server):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        fails(server.host(port=sock.getsockname()[1]), HostRefused, "connection refused")


def test_an_sshd_that_hangs_times_out_once(server, silent_port):
    error = fails(server.host(port=silent_port, connect_timeout_s=0.5), HostTimeout, r"sent nothing for 0\.5 s")
    assert "sudo systemctl restart ssh" in error.hint


def test_an_unknown_host_key_is_refused(start_sshd):
    server = start_sshd()
    error = fails(server.host(), HostKeyUnknown, "is unknown .*SHA256:")
    assert f"ssh -p {server.port} " in error.hint
    assert "host_keys: accept-new" in error.hint
    assert not server.known_hosts.exists()


def test_accept_new_stores_the_key_for_this_user_only_and_then_checks_it(start_sshd):
    server = start_sshd()
    host = server.host(host_keys="accept-new")
    assert host.run(["true"]).ok
    host.close()
    assert server.known_hosts.stat().st_mode & 0o777 == 0o600
    assert server.known_hosts.read_text().startswith(f"[127.0.0.1]:{server.port} ssh-ed25519 ")
    again = server.host()
    assert again.run(["true"]).ok
    again.close()


@pytest.mark.parametrize("policy", ["reject", "accept-new"])
def test_a_changed_host_key_is_refused_under_every_policy(start_sshd, policy):
    server, other = start_sshd("one"), start_sshd("two")
    public = other.host_key.with_suffix(".pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {' '.join(public)}\n")
    before = server.known_hosts.read_text()
    error = fails(server.host(host_keys=policy), HostKeyChanged, "has changed")
    assert error.hint == f"ssh-keygen -R '[127.0.0.1]:{server.port}' -f {server.known_hosts}"
    assert server.known_hosts.read_text() == before


def test_a_login_with_an_unauthorized_key(start_sshd, tmp_path):
    server = start_sshd()
    server.trust()
    other = Path(str(start_sshd("other").host_key))
    error = fails(server.host(identity=other), AuthFailed, "no key was accepted")
    assert error.hint.startswith(f"ssh-copy-id -i {other} -p {server.port} ")


def test_an_invalid_private_key_is_a_usage_error(server, tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    error = fails(server.host(identity=tmp_path / "gone"), UsageError, f"identity {tmp_path}/gone does not exist")
    assert error.exit_code == 2
    (tmp_path / "text").write_text("not a key\n")
    fails(server.host(identity=tmp_path / "text"), UsageError, "text is not a private key, is damaged")
    public = server.identity.with_suffix(".pub")
    error = fails(server.host(identity=public), UsageError, "id.pub is a public key")
    assert error.hint == f"use the private key: {server.identity}"


# A KEXINIT of RFC 4253 whose lists of names are not UTF-8.
_LISTS = b"\x14" + bytes(16) + 10 * b"\x00\x00\x00\x02\xff\xfe" + bytes(5)
UNREADABLE = struct.pack(">IB", 1 + len(_LISTS) + 9, 9) + _LISTS + bytes(9)


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "banner, or does not speak SSH"),
        (b"", "the server closed the connection before it sent an SSH banner"),
        (b"SSH-2.0-x\r\n" + UNREADABLE, "the server sent an invalid message"),
    ],
)
def test_another_program_on_the_port_is_reported_without_class_names(server, greeting, reason):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            accepted = listener.accept()[0]
            accepted.sendall(greeting)
            accepted.shutdown(socket.SHUT_WR)
            accepted.recv(4096)
            accepted.close()

        thread = threading.Thread(target=greet)
        thread.start()
        error = fails(server.host(port=listener.getsockname()[1]), HostLost, reason)
        thread.join(5)
    assert not re.search(r"Error|Exception|paramiko|Errno", error.message)


def test_a_key_with_a_passphrase_is_reported(start_sshd, tmp_path):
    server = start_sshd()
    server.trust()
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    error = fails(server.host(identity=locked), AuthFailed, "locked is protected by a passphrase")
    assert error.hint == f"ssh-add {locked}"


@contextlib.contextmanager
def ssh_agent(place, server):
    """An agent at ``place`` with the key of ``server``."""
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 5
        while not place.exists() and time.monotonic() < until:
            time.sleep(0.01)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(place)}
        subprocess.run(["ssh-add", "-q", str(server.identity)], check=True, env=environment)
        yield
    finally:
        agent.terminate()
        agent.wait()


def test_the_ssh_agent_comes_from_ssh_config(start_sshd, tmp_path, monkeypatch):
    """Such as 1Password's, whose socket has another path. With IdentitiesOnly the public key selects one of its keys."""
    server = start_sshd()
    server.trust()
    place, public = tmp_path / "agent", server.identity.with_suffix(".pub")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with ssh_agent(place, server):
        for more in ({"identities_only": False}, {"identities": (public,)}, {"identity": public}):
            host = server.host(**{"identity": None, "agent": str(place), **more})
            assert host.run(["true"]).ok
            host.close()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        fails(server.host(identity=None, identities_only=False, agent="none"), AuthFailed, "no key to offer")
    nowhere = server.host(identity=None, identities_only=False, agent=str(tmp_path / "nowhere"))
    fails(nowhere, AuthFailed, f"there is no key to offer; no agent answers at {tmp_path}/nowhere")


def test_a_jump_host_is_checked_shared_and_used(start_sshd):
    jump, node = start_sshd("jump"), start_sshd("node")
    node.trust()
    fails(node.host(jump=jump.target()), HostKeyUnknown, rf"the host key of \[127.0.0.1\]:{jump.port}")
    jump.trust()
    shared = SshHost("spark-1", jump.target())
    hosts = [SshHost(f"spark-{number}", node.target(jump=jump.target()), shared) for number in (1, 2)]
    assert [host.run(["echo", host.name]).stdout for host in hosts] == [b"spark-1\n", b"spark-2\n"]
    for host in [*hosts, shared]:
        host.close()
    assert jump.log.read_text().count("Accepted publickey") == 1


def test_the_host_key_of_a_node_behind_a_jump_is_checked(start_sshd):
    jump, node = start_sshd("jump"), start_sshd("node")
    jump.trust()
    fails(node.host(jump=jump.target()), HostKeyUnknown, rf"\[127.0.0.1\]:{node.port}")


def test_known_hosts_is_parsed_as_by_openssh(tmp_path):
    file = tmp_path / "known_hosts"
    hashed = "|1|RbRBC8CKjHQYxFKG8AWDzZJ6MVM=|a6EHuRp7HINhpxXJsSmmp/Q0ch0="
    file.write_text(
        "# comment\n"
        "*.lab,!bad.lab ssh-ed25519 LAB\n"
        "[10.0.0.1]:2222 ssh-rsa RSA\n"
        "two ssh-ed25519 OLD\n"
        "two ssh-ed25519 NEW\n"
        "@revoked * ssh-ed25519 STOLEN\n"
        "three ssh-ed25519 STOLEN\n"
        f"{hashed} ssh-ed25519 HASHED\n"
        "broken\n"
    )

    def verdict(name, kind, blob):
        return known_hosts.check([tmp_path / "missing", file], name, kind, blob)[0]

    assert verdict("a.lab", "ssh-ed25519", "LAB") == "known"
    assert verdict("bad.lab", "ssh-ed25519", "LAB") == "unknown"
    assert verdict("[10.0.0.1]:2222", "ssh-rsa", "RSA") == "known"
    assert verdict("[10.0.0.1]:2222", "ssh-ed25519", "X") == "changed"
    assert verdict("10.0.0.1", "ssh-rsa", "RSA") == "unknown"
    assert verdict("two", "ssh-ed25519", "NEW") == "known"
    assert verdict("three", "ssh-ed25519", "STOLEN") == "revoked"
    assert known_hosts.kinds([file], "[10.0.0.1]:2222") == ["ssh-rsa"]


def test_a_hashed_name_is_found(tmp_path):
    file = tmp_path / "known_hosts"
    file.write_text("[spark]:22022 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHK3mQ2dGhqFqQe1C7cKkEO8Qn9yPpV4kqEw8Z3b1C5k\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "spark" not in file.read_text()
    blob = "AAAAC3NzaC1lZDI1NTE5AAAAIHK3mQ2dGhqFqQe1C7cKkEO8Qn9yPpV4kqEw8Z3b1C5k"
    assert known_hosts.check([file], "[spark]:22022", "ssh-ed25519", blob)[0] == "known"
    assert known_hosts.check([file], "spark", "ssh-ed25519", blob)[0] == "unknown"
