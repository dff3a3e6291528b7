"""Runs a script as root on a host, whose user must be root or be allowed to use sudo.

The password is sent to sudo by standard input. The rest is sent only once root's shell reports that it runs: sudo
asks for the password up to three times and would read the next lines as passwords.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Literal

from sparkcluster.errors import CommandTimeout, HostLost, SudoRefused
from sparkcluster.hosts.base import Host, Stream

Sudo = Literal["root", "free", "password"]
"""How a user becomes root: already root, sudo without a password, or sudo with a password."""

# pam_unix rejects a wrong password after 2 s; a remote authentication server may be slower
_ANSWER_S = 30.0
_PROMPT = "sparkcluster: password"
_READY = "sparkcluster: root"
_STOP = b"sparkcluster: stop\n"

# sudo closes all file descriptors but the three standard ones. Swapping standard output and standard error before and
# after it keeps its messages in order with all other lines.
_SWAP = "exec 3>&1 1>&2 2>&3 3>&-; "
_BEFORE = _SWAP + 'export LC_ALL=C; exec "$@"'

# $1: the line to print, and the line at which input starts, after lines that sudo did not read; $2: bytes of the
# script. The user's signals do not reach root's processes, so a line of input ends them. The end of the input does
# not: a broken connection must not leave a change half done.
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
# Patterns of sudo's messages: the reason, the message and the hint.
_REASONS: dict[str, tuple[Reason, str, str]] = {
    r"not in the sudoers|is not allowed to|may not run sudo|I'm afraid I can't do that": (
        "not in sudoers",
        "{user} is not allowed to use sudo",
        "as an administrator of the node: sudo usermod -aG sudo {user}",
    ),
    r"try again|incorrect (password|authentication)": ("wrong password", "sudo refused the password of {user}", _TRY),
    r"a password is required|interactive authentication is required": (
        "no password",
        "sudo asks for the password of {user}",
        "run the command in a terminal, which asks for the password",
    ),
}


def as_root(argv: Sequence[str], sudo: Sudo) -> list[str]:
    """Command line that runs ``argv`` as root; for ``password`` the first line of input is the password.

    sudo's cache of passwords is neither used nor updated.
    """
    if sudo == "root":
        return list(argv)
    options = ["-n"] if sudo == "free" else ["-k", "-S", "-p", f"{_PROMPT}\n"]
    return ["sudo", *options, "--", *argv]


def stream_as_root(host: Host, script: bytes, *, sudo: Sudo, password: str | None = None, task: str) -> Stream:
    """Start the POSIX shell ``script`` as root, once all of it has arrived; it gets no input.

    ``password`` is the password of the host's user; ``task`` is for messages.

    Raises:
        SudoRefused: sudo refused; nothing was run, and ``script`` was not sent.
        HostError: the node could not be reached.
    """
    if sudo == "password" and password is None:
        raise _refused(host, "a password is required")
    root = ["setsid", "-w", "sh", "-c", _AFTER, "sh", _READY, str(len(script))]
    typed = f"{password}\n".encode() if sudo == "password" else b""
    stream = host.stream(["sh", "-c", _BEFORE, "sh", *as_root(root, sudo)])
    stream.task = task
    try:
        with contextlib.suppress(HostLost):  # sudo may refuse before it reads; its message is read below
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
                said.append("Sorry, try again")  # sudo's own text depends on its configuration
                break
        result = stream.finish()
    except CommandTimeout:
        said.append("sudo asks for more than a password, or does not respond")
    else:
        said += (result.stdout + result.stderr).decode(errors="replace").splitlines()
    raise _refused(host, "\n".join(line for line in said if line and line != _PROMPT))


def _refused(host: Host, said: str) -> SudoRefused:
    """The error for ``host`` if sudo printed ``said``."""
    last = said.splitlines()[-1].removeprefix("sudo: ")[:_CHARACTERS] if said else "no output"
    found = (refusal for pattern, refusal in _REASONS.items() if re.search(pattern, said))
    reason, text, hint = next(found, ("other", "sudo failed: {last}", _TRY))
    message = f"{host.name}: {text.format(user=host.user, last=last)}"
    return SudoRefused(message, node=host.name, step="sudo", hint=hint.format(user=host.user), reason=reason)
