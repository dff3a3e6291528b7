"""Commands over a real sshd: output, input, exit codes, limits."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from sparkcluster.errors import CommandTimeout, HostLost, HostTimeout, UsageError

from .conftest import gone

MB = 1_000_000
BOTH = (
    "import sys,threading\n"
    "def pour(to): to.write(b'x' * 10_000_000); to.flush()\n"
    "one = threading.Thread(target=pour, args=(sys.stderr.buffer,)); one.start(); pour(sys.stdout.buffer); one.join()\n"
    "print(len(sys.stdin.buffer.read()))"
)


def test_a_command_returns_stdout_stderr_and_exit_code(host):
    result = host.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


def test_a_command_that_floods_both_outputs_before_reading_does_not_deadlock(host):
    result = host.run(["python3", "-c", BOTH], stdin=b"y" * 10 * MB, timeout_s=60)
    assert result.stdout.endswith(b"10000000\n")
    assert len(result.stdout) == 10 * MB + len(b"10000000\n")


@pytest.mark.parametrize(
    "nasty",
    ["$(touch {})", "' ; touch {} ; '", "a\ntouch {}\n", "ü \\ *", ""],
)
def test_arguments_reach_the_program_unchanged(host, tmp_path, nasty):
    mark = tmp_path / "x"
    argument = nasty.format(mark)
    result = host.run(["python3", "-c", "import sys; print(ascii(sys.argv[1]))", argument])
    assert result.stdout.decode().strip() == ascii(argument)
    assert not mark.exists()


def test_a_nul_byte_is_refused(host):
    with pytest.raises(UsageError):
        host.run(["echo", "a\0b"])


def test_a_command_that_times_out_is_killed(host, tmp_path):
    mark = str(tmp_path)
    with pytest.raises(CommandTimeout, match=r"sh on spark-1 did not end within 0\.5 s") as caught:
        host.run(["sh", "-c", 'trap "" TERM; while :; do sleep 0.05; done', mark], timeout_s=0.5)
    assert caught.value.node == "spark-1"
    assert gone(mark)
    assert host.run(["true"]).ok


def test_many_concurrent_commands_share_one_connection(server, host):
    host.run(["true"])
    before = server.log.read_text().count("Accepted publickey")
    results: dict[int, bytes] = {}

    def ask(number: int) -> None:
        results[number] = host.run(["echo", str(number)], timeout_s=60).stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: b"%d\n" % number for number in range(25)}
    assert server.log.read_text().count("Accepted publickey") == before


def test_a_stream_accepts_input_and_returns_lines(host):
    with host.stream(["cat"], stdin=b"one\ntw") as stream:
        lines = stream.lines(10)
        assert next(lines) == b"one"
        stream.send(b"o\nrest")
        assert next(lines) == b"two"
        result = stream.finish()
    assert (result.exit_code, result.stdout) == (0, b"rest")


def test_closing_a_stream_ends_its_process(host):
    stream = host.stream(["sh", "-c", "echo $$; exec sleep 600"])
    pid = int(next(stream.lines(10)))
    stream.close()
    stream.close()
    assert gone(pid)


def test_a_broken_connection_is_reported_immediately_and_reopened_for_the_next_command(start_sshd):
    server = start_sshd()
    server.trust()
    host = server.host()
    host.run(["true"])

    def cut() -> None:
        for pid in server.children():
            os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(0.3, cut)
    timer.start()
    with pytest.raises(HostLost, match="connection to spark-1 broke during sleep"):
        host.run(["sleep", "600"], timeout_s=300)
    assert host.run(["echo", "back"]).stdout == b"back\n"
    host.close()
    with pytest.raises(HostLost):
        host.run(["true"])


def test_an_sshd_that_stops_after_login_times_out_once(start_sshd):
    server = start_sshd()
    server.trust()
    host = server.host(connect_timeout_s=1.5)
    host.run(["true"])
    for pid in server.children():
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(HostTimeout, match=r"opened no session within 1\.5 s"):
        host.run(["true"])
    host.close()
