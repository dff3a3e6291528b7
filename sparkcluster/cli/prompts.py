"""Questions to the operator on the terminal while connecting: the ``Prompts`` of ``hosts.handshake``."""

from __future__ import annotations

import getpass
import os
import select
import sys
import termios
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from sparkcluster.hosts.base import Closing
from sparkcluster.printable import clean

if TYPE_CHECKING:
    from sparkcluster.hosts.resolve import SshTarget

_LINE_BYTES = 4096  # the most that a terminal returns at once, N_TTY_BUF_SIZE of Linux
_NOTICE_S = 0.1
_LEAVE_S = 2


class Terminal(Closing):
    """Questions on the terminal; without a terminal, or if ``silent``, no question is asked and there is no answer.

    With ``nodes``, questions about connections are only asked for those nodes.

    Questions may come from any thread. Ctrl-C reaches only the main thread, so ``close`` ends a question that waits in
    another thread, and restores echo. ``paused`` stops a display meanwhile; close the terminal before the display.
    """

    def __init__(
        self,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        silent: bool = False,
        nodes: Collection[str] = (),
    ) -> None:
        self._paused = paused
        self._silent = silent or sys.stdin is None or not sys.stdin.isatty()
        self._nodes = nodes
        self._closed = False
        self._lock = threading.Lock()
        self._typed: dict[tuple[str, SshTarget | None], str] = {}

    def close(self) -> None:
        """End the waiting question, and ask no other."""
        self._closed = True
        if self._lock.acquire(timeout=_LEAVE_S):
            self._lock.release()

    def ask(self, question: str) -> str | None:
        """The line that is typed after ``question``, which may have several lines; None without a terminal."""
        with self._lock:
            return self._line(question)

    def confirm(self, question: str, *, default: bool = False) -> bool:
        """Whether ``question`` is answered with yes, or Enter if that is the ``default``; False without a terminal."""
        typed = self.ask(f"{question} [{'Y/n' if default else 'y/N'}] ")
        return typed is not None and typed.strip().lower() in {"y", "yes", *([""] if default else [])}

    def logged_in(self, target: SshTarget) -> bool:
        """Whether a password was typed to log in to ``target``."""
        return ("login", target) in self._typed

    def host_key(self, name: str, target: SshTarget, kind: str, fingerprint: str) -> bool:
        """Whether the operator trusts a host key; any answer but yes is no."""
        shown = f"{name}: the host key of {_address(target)} is unknown: {kind} {fingerprint}"
        return self._asks_about(name) and self.confirm(f"{shown}\ntrust and store it?")

    def password(self, name: str, target: SshTarget, *, again: bool) -> str | None:
        """The password of a login, or None; Enter repeats the password of the previous host."""
        if not self._asks_about(name):
            return None
        return self._secret(f"password of {target.user}@{_address(target)}", ("login", target), again=again)

    def _asks_about(self, name: str) -> bool:
        return not self._nodes or name in self._nodes

    def sudo_password(self, node: str, target: SshTarget | None, *, again: bool = False) -> str | None:
        """The password for sudo on ``node``, or None; ``target`` is None for this machine.

        Enter takes the login password of the node, else the previous sudo password.
        """
        user = target.user if target else getpass.getuser()
        return self._secret(f"sudo password of {user} on {node}", ("sudo", target), again=again)

    def _secret(self, question: str, of: tuple[str, SshTarget | None], *, again: bool) -> str | None:
        """The password typed for ``of``, a kind and a target; Enter takes a known one, unless it was refused."""
        kind, target = of
        with self._lock:
            if again:
                self._typed.pop(of, None)
            login = self._typed.get(("login", target)) if kind == "sudo" else None
            before = next((typed for (each, _), typed in reversed(self._typed.items()) if each == kind), None)
            known, note = (login, "Enter: the login password") if login else (before, "Enter: the same as before")
            if again:
                known, note = None, "the last one was refused"
            typed = self._line(f"{question} ({note}): " if known or again else f"{question}: ", hidden=True)
            if typed == "":
                typed = known
            if typed is not None:
                self._typed[of] = typed
            return typed

    def _line(self, question: str, *, hidden: bool = False) -> str | None:
        """The line that is typed, without echo if ``hidden``; None without a terminal, or at the end of input."""
        if self._silent or self._closed:
            return None
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            with self._paused():
                return self._typed_line(terminal, question, hidden=hidden)
        except (OSError, termios.error):
            return None  # the terminal was closed
        finally:
            os.close(terminal)

    def _typed_line(self, terminal: int, question: str, *, hidden: bool) -> str | None:
        before = termios.tcgetattr(terminal)
        during = [*before[:6], [*before[6]]]
        if hidden:
            during[3] &= ~termios.ECHO
            during[6][termios.VSUSP] = b"\0"  # after Ctrl-Z the shell would turn echo on again
        line = b""
        try:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, during)  # drops what was typed before the question
            os.write(terminal, clean(question, "\n").encode())
            while not self._closed:
                if select.select([terminal], [], [], _NOTICE_S)[0]:
                    line = os.read(terminal, _LINE_BYTES)
                    break
        finally:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)  # drops the part of a password that was typed
            if hidden or not line:
                os.write(terminal, b"\n")
        return line.decode(errors="replace").rstrip("\r\n") if line else None


def _address(target: SshTarget) -> str:
    return target.host if target.port == 22 else f"{target.host} port {target.port}"
