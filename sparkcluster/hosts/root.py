"""Runs a program or a script as root on a host, where the user of the login is root or may become it by sudo.

A password goes to sudo by standard input, and what follows it only once root's shell says that it runs: sudo would
take the next lines for further passwords, of which it reads three.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Literal

from sparkcluster.errors import CommandTimeout, HostLost, SudoRefused
from sparkcluster.hosts.base import Host, Stream

Sudo = Literal["root", "free", "password"]
"""How a user becomes root: it is, by sudo without a password, or by sudo with its password."""

# pam_unix answers a wrong password after 2 s, and a server of passwords may be slow
_ANSWER_S = 30.0
_PROMPT = "sparkcluster: password"
_READY = "sparkcluster: root"
_STOP = b"sparkcluster: stop\n"

# sudo closes all but the three standard files. So that its messages arrive where they are read, in the order of all
# lines, standard output and standard error change places before it, and back after it.
_SWAP = "exec 3>&1 1>&2 2>&3 3>&-; "
_BEFORE = _SWAP + 'export LC_ALL=C; exec "$@"'

# $1: what to print, and what the input begins with after lines that sudo left unread; $2: bytes of the script.
# Signals of the user do not reach root's processes: a line ends them. The end of the input does not, since a broken
# connection is no reason to leave a change half done.
_AFTER = f"""{_SWAP}
printf '\\n%s\\n' "$1"
while IFS= read -r line && [ "$line" != "$1" ]; do :; done
input=$(head -c "$2"; echo .)
exec 3<&0 </dev/null
{{
  trap '' TERM
  while IFS= read -r line; do
    [ "$line" != '{_STOP.decode().strip()}' ] || {{ kill -s TERM -- "-$$"; sleep 1; kill -s KILL -- "-$$"; }}
  done
}} <&3 3<&- >/dev/null 2>&1 &
exec 3<&-
trap : TERM
printf %s "${{input%.}}" | sh -c 'script=$(cat); eval "$script" </dev/null'
code=$?
kill -s KILL "$!"
exit "$code"
"""

_CHARACTERS = 300

Reason = Literal["wrong password", "no password", "not in sudoers", "other"]
_TRY = "log in as {user} and run: sudo true"
# By what sudo prints: the reason, the message and the hint.
_REASONS: dict[str, tuple[Reason, str, str]] = {
    r"not in the sudoers|is not allowed to|may not run sudo|I'm afraid I can't do that": (
        "not in sudoers",
        "{user} may not run this by sudo",
        "as an administrator of the node: sudo usermod -aG sudo {user}",
    ),
    r"try again|incorrect (password|authentication)": ("wrong password", "sudo refused the password of {user}", _TRY),
    r"a password is required|interactive authentication is required": (
        "no password",
        "sudo asks for the password of {user}",
        "run this on a terminal, to be asked for it",
    ),
}


def as_root(argv: Sequence[str], sudo: Sudo) -> list[str]:
    """Command line that runs ``argv`` as root; with ``password`` the first line of its input is that.

    Neither is a password that sudo remembers used, nor is this one remembered.
    """
    if sudo == "root":
        return list(argv)
    options = ["-n"] if sudo == "free" else ["-k", "-S", "-p", f"{_PROMPT}\n"]
    return ["sudo", *options, "--", *argv]


def stream_as_root(host: Host, script: bytes, *, sudo: Sudo, password: str | None = None, task: str) -> Stream:
    """Start a POSIX shell ``script`` (text) as root, once all of it has arrived; it has no input.

    ``password`` is that of the host's user; ``task`` is for messages.

    Raises:
        SudoRefused: sudo refused; nothing was run, and nothing of ``script`` sent.
        HostError: the node could not be reached.
    """
    if sudo == "password" and password is None:
        raise _refused(host, "a password is required")
    root = ["setsid", "-w", "sh", "-c", _AFTER, "sh", _READY, str(len(script))]
    typed = f"{password}\n".encode() if sudo == "password" else b""
    stream = host.stream(["sh", "-c", _BEFORE, "sh", *as_root(root, sudo)])
    stream.task = task
    try:
        with contextlib.suppress(HostLost):  # sudo may refuse before it reads: what it says is read below
            stream.send(typed)
        _await_root(host, stream)
        stream.send(f"{_READY}\n".encode() + script)
    except BaseException:
        stream.close()
        raise
    stream.stop = _STOP
    return stream


def _await_root(host: Host, stream: Stream) -> None:
    """Wait until root's shell runs."""
    said: list[str] = []
    try:
        for line in stream.lines(_ANSWER_S, within_s=2 * _ANSWER_S):
            said.append(line.decode(errors="replace").strip())
            if said[-1] == _READY:
                return
            if said.count(_PROMPT) == 2:
                said.append("Sorry, try again")  # what it says here is up to its configuration
                break
        result = stream.finish()
    except CommandTimeout:
        said.append("it asks for more than a password, or does not answer")
    else:
        said += (result.stdout + result.stderr).decode(errors="replace").splitlines()
    raise _refused(host, "\n".join(line for line in said if line and line != _PROMPT))


def _refused(host: Host, said: str) -> SudoRefused:
    """The error of ``host`` whose sudo said ``said``."""
    last = said.splitlines()[-1].removeprefix("sudo: ")[:_CHARACTERS] if said else "no output"
    found = (refusal for pattern, refusal in _REASONS.items() if re.search(pattern, said))
    reason, text, hint = next(found, ("other", "sudo failed: {last}", _TRY))
    message = f"{host.name}: {text.format(user=host.user, last=last)}"
    return SudoRefused(message, node=host.name, step="sudo", hint=hint.format(user=host.user), reason=reason)
