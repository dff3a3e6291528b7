"""This machine as a host: the same semantics as over SSH."""

from __future__ import annotations

import signal

import pytest

from sparkcluster.errors import CommandFailed, CommandTimeout
from sparkcluster.hosts.local import LocalHost

from .conftest import gone


@pytest.fixture
def host():
    return LocalHost("spark-1")


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
    mark = str(tmp_path)
    with pytest.raises(CommandTimeout):
        host.run(["sh", "-c", 'sh -c "sleep 600; true" "$0" & wait', mark], timeout_s=0.5)
    assert gone(mark)


def test_arguments_reach_the_program_unchanged(host, tmp_path):
    argument = f"a; touch {tmp_path}/x"
    assert host.run(["echo", argument]).stdout.decode() == argument + "\n"
    assert not (tmp_path / "x").exists()


def test_a_stream_accepts_input_and_returns_lines(host):
    with host.stream(["cat"], stdin=b"one\ntw") as stream:
        lines = stream.lines(10)
        assert next(lines) == b"one"
        stream.send(b"o\nrest")
        assert next(lines) == b"two"
        result = stream.finish()
    assert (result.exit_code, result.stdout) == (0, b"rest")


def test_a_silent_stream_is_a_time_out_and_close_ends_its_process_group(host):
    with host.stream(["sh", "-c", "sleep 600 & echo $!; wait"]) as stream:
        pid = int(next(stream.lines(30)))
        with pytest.raises(CommandTimeout, match=r"printed nothing for 0\.3 s"):
            next(stream.lines(0.3))
    assert gone(pid)
