"""Questions on a real terminal: passwords are not shown, Ctrl-C ends the command, and displays pause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios

import pytest

from tests.unit.on_terminal import COMMAND, ROOT, OnTerminal

SETUP = """
import sys
from sparkcluster.cli.prompts import Terminal
from sparkcluster.hosts.fleet import Calls
from sparkcluster.hosts.resolve import SshTarget
a, b, c = (SshTarget(f"10.0.0.{n}", "spark", port) for n, port in ((11, 22), (12, 22), (13, 2222)))
"""


def on_terminal(program: str) -> OnTerminal:
    return OnTerminal(COMMAND + SETUP + program)


KEY = """
def run():
    with Terminal() as prompts:
        print("answer", prompts.host_key("spark-b", b, "ssh-ed25519", "SHA256:abc"))
        print("answer", prompts.host_key("sparkc\\x1b[2J", c, "ssh-rsa", "SHA256:def"))
        print("answer", prompts.confirm("one\\ntwo\\x1b[2J?"))
as_command(run)
"""


@pytest.mark.parametrize(("typed", "answer"), [("Yes\n", True), ("\n", False), ("\x04", False)])
def test_a_host_key_is_shown_and_trusted_only_after_yes(typed: str, answer: bool) -> None:
    with on_terminal(KEY) as terminal:
        terminal.until("spark-b: the host key of 10.0.0.12 is unknown: ssh-ed25519 SHA256:abc\r\n")
        terminal.until("trust and store it? [y/N] ")
        assert terminal.echo
        terminal.type(typed)
        terminal.until(f"answer {answer}")
        terminal.until("sparkc�[2J: the host key of 10.0.0.13 port 2222 is unknown: ssh-rsa SHA256:def\r\n")
        terminal.until("[y/N] ")
        terminal.type("\n")
        terminal.until("one\r\ntwo�[2J? [y/N] ")
        terminal.type("\n")
        assert terminal.end() == 0


PASSWORDS = """
def run():
    with Terminal() as prompts:
        print("->", [prompts.password("a", a, again=False), prompts.password("b", b, again=False)])
        print("->", [prompts.password("b", b, again=True), prompts.password("c", c, again=False)])
as_command(run)
"""


def test_a_password_is_not_shown_and_enter_repeats_the_previous_one() -> None:
    with on_terminal(PASSWORDS) as terminal:
        terminal.until("password of spark@10.0.0.11: ")
        assert not terminal.echo
        terminal.type("hunter2\n")
        terminal.until("password of spark@10.0.0.12 (Enter: the same as before): ")
        assert "hunter2" not in terminal.shown
        terminal.type("\n")
        terminal.until("-> ['hunter2', 'hunter2']")
        terminal.until("password of spark@10.0.0.12 (the last one was refused): ")
        terminal.type("\n")
        terminal.until("password of spark@10.0.0.13 port 2222 (Enter: the same as before): ")
        terminal.type("other\n")
        terminal.until("-> [None, 'other']")
        assert terminal.end() == 0
        assert terminal.echo


SUDO = """
def run():
    with Terminal() as prompts:
        prompts.password("a", a, again=False)
        print("->", [prompts.sudo_password("spark-a", a), prompts.sudo_password("spark-a", a, again=True)])
        print("->", [prompts.sudo_password("spark-b", b), prompts.sudo_password("here", None)])
as_command(run)
"""


def test_sudo_takes_the_login_password_on_enter_and_then_the_previous_one() -> None:
    with on_terminal(SUDO) as terminal:
        terminal.until("password of spark@10.0.0.11: ")
        terminal.type("login\n")
        terminal.until("sudo password of spark on spark-a (Enter: the login password): ")
        assert not terminal.echo
        terminal.type("\n")
        terminal.until("sudo password of spark on spark-a (the last one was refused): ")
        terminal.type("admin\n")
        terminal.until("-> ['login', 'admin']")
        terminal.until("sudo password of spark on spark-b (Enter: the same as before): ")
        terminal.type("\n")
        terminal.until(" on here (Enter: the same as before): ")
        terminal.type("mine\n")
        terminal.until("-> ['admin', 'mine']")
        assert terminal.end() == 0


THREADS = """
def run():
    with Terminal() as prompts:
        Calls(lambda target: prompts.password("x", target, again=False), {"a": a}).wait(600)
as_command(run)
"""


@pytest.mark.parametrize("by", ["key", "signal"])
def test_ctrl_c_ends_the_command_and_restores_the_echo_of_the_terminal(by: str) -> None:
    with on_terminal(THREADS) as terminal:
        terminal.until("password of spark@10.0.0.11: ")
        assert not terminal.echo
        terminal.type("hunt")
        if by == "key":
            terminal.type("\x03")
        else:
            os.kill(terminal.pid, signal.SIGINT)
        assert terminal.end() == 130
        assert terminal.echo
        assert "hunt" not in terminal.shown
        assert "interrupted" in terminal.shown


def test_ctrl_z_is_disabled_while_a_password_is_read() -> None:
    with on_terminal(THREADS) as terminal:
        before = termios.tcgetattr(terminal.terminal)[6][termios.VSUSP]
        terminal.until("password of spark@10.0.0.11: ")
        assert termios.tcgetattr(terminal.terminal)[6][termios.VSUSP] == b"\0"
        terminal.type("\n")
        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.terminal)[6][termios.VSUSP] == before == b"\x1a"


NOBODY = """
def run():
    with Terminal(silent=False) as prompts:
        found = prompts.host_key("b", b, "ssh-ed25519", "SHA256:abc"), prompts.password("b", b, again=False)
        print("->", found, prompts.sudo_password("b", b))
as_command(run)
"""


def test_without_a_terminal_no_question_is_asked() -> None:
    program = COMMAND + SETUP + NOBODY
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "-> (False, None) None\n"
