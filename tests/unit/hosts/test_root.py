"""Running as root: with a real sshd, PAM and sudo, and users that exist only for these tests."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from sparkcluster.errors import HostLost, SudoRefused
from sparkcluster.hosts.root import as_root, stream_as_root

from .conftest import PASSWORD, gone


@pytest.fixture(scope="module")
def sshd(accounts):
    started = accounts.start("sudo")
    yield started
    started.stop()


@pytest.fixture
def login(sshd):
    """``login(user)``: a host on which ``user`` logs in with a key."""
    with contextlib.ExitStack() as stack:
        yield lambda user: stack.enter_context(sshd.host(user=user))


def ran(host, script, sudo="password", password=PASSWORD):
    """Lines, exit code and standard error of ``script``."""
    with stream_as_root(host, script.encode(), sudo=sudo, password=password, task="setup") as stream:
        lines = [line.decode() for line in stream.lines(20)]
        result = stream.finish()
    return lines, result.exit_code, result.stderr.decode()


def refused(host, sudo="password", password=PASSWORD):
    """The error of sudo, and that the script did not run."""
    mark = f"/home/mark-{time.monotonic_ns()}"
    with pytest.raises(SudoRefused) as caught:
        stream_as_root(host, f"echo ran >{mark}\n".encode() * 3, sudo=sudo, password=password, task="setup")
    assert not host.run(["test", "-e", mark]).ok
    error = caught.value
    assert error.node == "spark-1"
    assert PASSWORD not in str(error.as_json())
    assert "\n" not in error.message
    return error


def test_the_command_line_that_becomes_root_has_no_password():
    assert as_root(["id", "-u"], "root") == ["id", "-u"]
    assert as_root(["id", "-u"], "free") == ["sudo", "-n", "--", "id", "-u"]
    assert as_root(["id"], "password") == ["sudo", "-k", "-S", "-p", "sparkcluster: password\n", "--", "id"]


@pytest.mark.parametrize(("user", "sudo"), [("root", "root"), ("free", "free"), ("spark", "password")])
def test_a_script_runs_as_root_and_returns_output_error_and_exit_code(login, user, sudo):
    script = 'id -u\nread -r line; echo "[$line]"\ncat\necho "a  b"\necho why >&2\nexit 7\necho not this\n'
    assert ran(login(user), script, sudo) == (["0", "[]", "a  b"], 7, "why\n")


def test_no_password_is_cached(login):
    host = login("spark")
    assert ran(host, "id -u")[0] == ["0"]
    assert refused(host, password="wrong").reason == "wrong password"
    assert refused(host, "free").reason == "no password"


@pytest.mark.parametrize(
    ("user", "sudo", "password", "reason"),
    [
        ("spark", "password", "wrong", "wrong password"),
        ("plain", "password", "wrong", "wrong password"),
        ("docker", "password", PASSWORD, "not in sudoers"),
        ("tty", "password", PASSWORD, "other"),
        ("spark", "free", None, "no password"),
    ],
)
def test_sudo_refuses_before_anything_runs(login, user, sudo, password, reason):
    error = refused(login(user), sudo, password)
    assert error.reason == reason
    assert error.hint


def test_closing_ends_processes_that_run_as_root(login):
    """The user may not send it a signal."""
    host, script = login("spark"), "trap '' TERM; sleep 600 & echo $!; wait"
    with stream_as_root(host, script.encode(), sudo="password", password=PASSWORD, task="setup") as stream:
        pid = int(next(stream.lines(20)))
        assert not host.run(["kill", str(pid)]).ok
        assert Path(f"/proc/{pid}").exists()
    assert gone(pid)


def test_a_broken_connection_ends_no_program(sshd):
    """Half a change of the network, or of packages, is worse than an unreported complete one."""
    with sshd.host(user="spark") as host:
        script = b"echo begun; sleep 2; echo whole >/home/whole"
        stream = stream_as_root(host, script, sudo="password", password=PASSWORD, task="setup")
        assert next(stream.lines(20)) == b"begun"
        host.transport().sock.shutdown(2)
        with pytest.raises(HostLost):
            list(stream.lines(20))
    whole = Path(f"/proc/{sshd.process.pid}/root/home/whole")
    until = time.monotonic() + 60
    while not whole.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def command_lines():
    """Command lines and environments of all other processes."""
    for place in Path("/proc").glob("[0-9]*"):
        if int(place.name) != os.getpid():
            with contextlib.suppress(OSError):
                yield (place / "cmdline").read_bytes() + (place / "environ").read_bytes()


def test_password_and_script_are_in_no_command_line_and_no_log(sshd, caplog):
    caplog.set_level("DEBUG")
    seen, over = set(), threading.Event()

    def watch():
        while not over.is_set():
            seen.update(command_lines())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with sshd.host(user="spark") as host:
            said = ran(host, "# a secret in the script\necho done; sleep 0.3; env; exit 1")
            refusals = [repr(refused(host, password=f"{PASSWORD}!")), repr(refused(host, "free", PASSWORD))]
    finally:
        over.set()
        watching.join()
    log = Path(f"/proc/{sshd.process.pid}/root/home/sudo.log").read_text()
    assert "COMMAND=" in log
    assert any(b"sudo\0-k\0-S" in line for line in seen)
    for text in (*(each.decode(errors="replace") for each in seen), log, caplog.text, str(said), *refusals):
        assert PASSWORD not in text
        assert "a secret in the script" not in text
