"""Connecting with questions to the operator: real sshds, PAM, and a second factor."""

from __future__ import annotations

import contextlib
import socket
import threading

import paramiko
import pytest

from sparkcluster.errors import AuthFailed, HostKeyChanged, HostKeyUnknown
from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.hosts.ssh import SshHost
from tests.unit.on_terminal import COMMAND, OnTerminal

from .conftest import PASSWORD, keygen


class Operator:
    """Trusts host keys or not, and gives ``passwords`` one after the other; records the questions."""

    def __init__(self, *passwords, trusts=True):
        self.passwords = list(passwords)
        self.trusts = trusts
        self.asked = []

    def host_key(self, name, target, kind, fingerprint):
        self.asked.append((name, target.key_name, kind, fingerprint))
        return self.trusts

    def password(self, name, target, *, again):
        self.asked.append((name, target.user, again))
        return self.passwords.pop(0) if self.passwords else None


def fingerprint(server):
    return paramiko.PKey.from_path(server.host_key).fingerprint


def asking(server, operator, **changes):
    return SshHost("spark-1", server.target(**changes), prompts=operator)


def test_an_accepted_host_key_is_stored_and_not_asked_about_later(start_sshd):
    server, operator = start_sshd(), Operator()
    for _ in range(2):
        with asking(server, operator) as host:
            assert host.run(["true"]).ok
    assert operator.asked == [("spark-1", f"[127.0.0.1]:{server.port}", "ssh-ed25519", fingerprint(server))]
    assert server.known_hosts.stat().st_mode & 0o777 == 0o600
    with server.host() as host:
        assert host.run(["true"]).ok


def test_a_rejected_host_key_is_an_error_and_asked_about_once(start_sshd):
    server, operator = start_sshd(), Operator(trusts=False)
    with asking(server, operator) as host:
        for _ in range(2):
            with pytest.raises(HostKeyUnknown, match="is unknown") as caught:
                host.run(["true"])
            assert "to compare and store it" in caught.value.hint
    assert len(operator.asked) == 1
    assert not server.known_hosts.exists()


@pytest.mark.parametrize("marker", ["", "@revoked "])
def test_a_changed_or_revoked_host_key_is_not_asked_about(start_sshd, marker):
    server, other, operator = start_sshd("one"), start_sshd("two"), Operator()
    key = (server if marker else other).host_key.with_suffix(".pub").read_text().split()[:2]
    server.known_hosts.write_text(f"{marker}[127.0.0.1]:{server.port} {' '.join(key)}\n")
    with asking(server, operator) as host, pytest.raises(HostKeyChanged) as caught:
        host.run(["true"])
    assert ("reinstalled" in caught.value.message) is not bool(marker)
    assert operator.asked == []


def test_a_host_key_that_changes_during_the_question_is_refused(start_sshd):
    """The key is checked on the connection that is used, too."""
    server, other = start_sshd("one"), start_sshd("two")

    class Slow(Operator):
        def host_key(self, *question):
            server.config.write_text(server.config.read_text().replace(str(server.host_key), str(other.host_key)))
            server.stop()
            server.start()
            return super().host_key(*question)

    with asking(server, Slow()) as host, pytest.raises(HostKeyChanged):
        host.run(["true"])


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A key that no server accepts."""
    return keygen(tmp_path_factory.mktemp("stranger") / "id")


@pytest.fixture(scope="module", params=["keyboard-interactive", "after one key"])
def sshd(request, accounts):
    options = {
        "keyboard-interactive": ("PasswordAuthentication no", "KbdInteractiveAuthentication yes"),
        "after one key": ("PasswordAuthentication yes", "MaxAuthTries 1"),
    }
    started = accounts.start(request.param.replace(" ", "-"), *options[request.param])
    yield started
    started.stop()


def test_a_password_logs_in_and_reconnects_after_the_connection_breaks(sshd, stranger, caplog):
    caplog.set_level("DEBUG")
    operator = Operator(PASSWORD)
    with asking(sshd, operator, user="spark", identity=stranger) as host:
        assert host.run(["id", "-un"]).stdout == b"spark\n"
        host.renew()
        assert host.run(["id", "-un"]).stdout == b"spark\n"
        assert PASSWORD not in repr(host) + repr(vars(host))
    assert operator.asked == [("spark-1", "spark", False)]
    assert "Authentication" in caplog.text
    assert PASSWORD not in caplog.text


def test_a_password_is_used_for_one_host_only(sshd, stranger):
    operator = Operator(PASSWORD)
    with asking(sshd, operator, user="spark", identity=stranger) as host:
        assert host.run(["true"]).ok
        other = SshHost("spark-2", host.target, prompts=operator)
        with other, pytest.raises(AuthFailed):
            other.run(["true"])
    assert operator.asked == [("spark-1", "spark", False), ("spark-2", "spark", False)]


def test_a_password_is_asked_for_three_times(sshd, stranger):
    operator = Operator("wrong", "", PASSWORD)
    with asking(sshd, operator, user="spark", identity=stranger) as host:
        assert host.run(["true"]).ok
    asked = [("spark-1", "spark", again) for again in (False, True, True)]
    assert operator.asked == asked
    operator = Operator("wrong", "wrong again", "guess", PASSWORD)
    with asking(sshd, operator, user="spark", identity=stranger) as host, pytest.raises(AuthFailed) as caught:
        host.run(["true"])
    assert operator.asked == asked
    assert caught.value.hint.startswith(f"ssh-copy-id -i {stranger} -p {sshd.port} spark@")
    assert "guess" not in str(caught.value.as_json())


WHOLE = """
import sys
from sparkcluster.cli.progress import reporter
from sparkcluster.cli.prompts import Terminal
from sparkcluster.hosts.connect import Address, connect
from sparkcluster.hosts.resolve import SshSettings
port, identity, known_hosts = sys.argv[1:]
settings = SshSettings("spark", int(port), identity, known_hosts=known_hosts)
nodes = {name: Address("127.0.0.1", "ssh", settings) for name in ("spark-1", "spark-2")}
def run():
    with (
        reporter(as_json=False, json_lines=False) as report,
        Terminal(report.paused) as prompts,
        connect(nodes, prompts) as fleet,
    ):
        report.step("look")
        found = fleet.each(lambda host: host.run(["id", "-un"]).stdout.decode().strip())
    print("->", *found.values())
as_command(run)
"""


def test_two_nodes_log_in_on_a_terminal_or_ctrl_c_ends_it(sshd, stranger):
    argv = str(sshd.port), str(stranger), str(sshd.known_hosts)
    question = f"password of spark@127.0.0.1 port {sshd.port}"
    with OnTerminal(COMMAND + WHOLE, *argv) as terminal:
        terminal.until(f"{question}: ")
        terminal.type(f"{PASSWORD}\n")
        terminal.until(f"{question} (Enter: the same as before): ")
        assert not terminal.echo
        terminal.type("\n")
        terminal.until("-> spark spark")
        assert terminal.end() == 0
        assert terminal.echo
        assert PASSWORD not in terminal.shown
    with OnTerminal(COMMAND + WHOLE, *argv) as terminal:
        terminal.until(f"{question}: ")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert terminal.echo
        assert terminal.shown.count(question) == 1


class CodeAsWell(paramiko.ServerInterface):
    """An sshd whose PAM requires a code after the password."""

    def __init__(self):
        self.answers = []

    def get_allowed_auths(self, username):
        return "publickey,keyboard-interactive"

    def check_auth_publickey(self, username, key):
        return paramiko.AUTH_FAILED

    def check_auth_interactive(self, username, submethods):
        return paramiko.server.InteractiveQuery("", "", ("Password: ", False))

    def check_auth_interactive_response(self, responses):
        self.answers += responses
        if len(self.answers) == 1:
            return paramiko.server.InteractiveQuery("", "", ("Verification code: ", False))
        return paramiko.AUTH_FAILED


def test_a_password_is_not_sent_as_the_answer_to_another_question(tmp_path, stranger):
    key, server = paramiko.ECDSAKey.generate(), CodeAsWell()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as open_:

        def serve():
            for _ in range(2):
                transport = paramiko.Transport(listener.accept()[0])
                open_.callback(transport.close)
                transport.add_server_key(key)
                with contextlib.suppress(paramiko.SSHException, EOFError):  # the peer may have disconnected
                    transport.start_server(server=server)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        target = SshTarget("127.0.0.1", "spark", port, identity=stranger, identities_only=True, known_hosts=(known,))
        operator = Operator(PASSWORD)
        with SshHost("spark-1", target, prompts=operator) as host, pytest.raises(AuthFailed, match="was refused"):
            host.run(["true"])
        thread.join(10)
    assert server.answers == [PASSWORD, ""]
