"""This machine as a host: the same semantics as over SSH."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from sparkcluster.errors import CommandFailed, CommandTimeout, HostLost
from sparkcluster.hosts.local import LocalHost


@pytest.fixture
def host():
    return LocalHost("spark-1")


def gone(pid: int) -> bool:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_a_command_returns_stdout_stderr_and_exit_code(host):
    result = host.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"in", b"err\n")
    assert host.run(["sh", "-c", "kill -9 $$"]).exit_code == -signal.SIGKILL
    assert host.run(["no-such-command"]).exit_code == 127


def test_a_command_that_cannot_be_started_is_an_error_of_its_node(host):
    with pytest.raises(CommandFailed, match=r"true could not be started on .*: Argument list too long") as caught:
        host.run(["true", "1" * 200_000])
    assert caught.value.node == host.name


def test_a_command_that_times_out_is_killed_with_its_children(host, tmp_path):
    mark = tmp_path / "pid"
    with pytest.raises(CommandTimeout):
        host.run(["sh", "-c", 'sleep 600 & echo $! >"$0"; wait', str(mark)], timeout_s=0.5)
    assert gone(int(mark.read_text()))


def test_a_command_that_does_not_stop_printing_is_killed_at_its_limit(host):
    begin = time.monotonic()
    with pytest.raises(CommandTimeout, match=r"did not end within 0\.3 s"):
        host.run(["sh", "-c", "while :; do echo more; done"], timeout_s=0.3)
    assert time.monotonic() - begin < 3


def test_a_child_in_another_session_that_holds_the_input_open_delays_nothing(host):
    begin = time.monotonic()
    with pytest.raises(CommandTimeout):
        host.run(["sh", "-c", "setsid sleep 5 <&0 & sleep 60"], stdin=b"x" * 1_000_000, timeout_s=0.3)
    assert time.monotonic() - begin < 3


def test_20_mb_go_there_and_back(host):
    data = b"x" * 20_000_000
    assert host.run(["cat"], stdin=data).stdout == data


def test_arguments_reach_the_program_as_they_are(host, tmp_path):
    argument = f"a; touch {tmp_path}/x"
    assert host.run(["echo", argument]).stdout.decode() == argument + "\n"
    assert not (tmp_path / "x").exists()


def test_a_stream_takes_input_and_gives_lines(host):
    with host.stream(["cat"], stdin=b"one\ntw") as stream:
        lines = stream.lines(10)
        assert next(lines) == b"one"
        stream.send(b"o\nrest")
        assert next(lines) == b"two"
        result = stream.finish()
    assert (result.exit_code, result.stdout) == (0, b"rest")


def test_a_silent_stream_is_a_time_out_and_closing_ends_its_group(host):
    with host.stream(["sh", "-c", "sleep 600 & echo $!; wait"]) as stream:
        lines = stream.lines(0.3)
        pid = int(next(lines))
        with pytest.raises(CommandTimeout, match=r"printed nothing for 0\.3 s"):
            next(lines)
    assert gone(pid)


def test_finish_returns_exit_code_and_stderr(host):
    with host.stream(["sh", "-c", "printf a; echo why >&2; exit 4"]) as stream:
        assert list(stream.lines(10)) == [b"a"]
        result = stream.finish()
    assert (result.exit_code, result.stderr) == (4, b"why\n")


def test_sending_to_a_command_that_ended_is_an_error(host):
    stream = host.stream(["true"])
    list(stream.lines(10))
    with pytest.raises(HostLost):
        stream.send(b"x" * 1_000_000)
    stream.close()


def test_a_command_that_takes_no_signals_of_ours_ends_with_its_input(host, monkeypatch):
    """As sudo does, which is root's."""
    refused = []

    def killpg(pid, number):
        refused.append((pid, number))
        raise PermissionError

    stream = host.stream(["cat"], stdin=b"x")
    monkeypatch.setattr("os.killpg", killpg)
    stream.close()
    assert [number for _, number in refused] == [signal.SIGTERM, signal.SIGKILL]
    assert gone(refused[0][0])
