"""The operator's own SSH key."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

from sparkcluster.errors import UsageError
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.handshake import Login
from sparkcluster.hosts.resolve import SshTarget

DEFAULT = Path("~/.ssh/id_ed25519")
_LINE = re.compile(r"(ssh|ecdsa|sk)-\S+ [A-Za-z0-9+/=]+( [^\x00-\x1f\x7f]*)?")


def public_key(name: str, target: SshTarget) -> str | None:
    """The public key that a login to ``target`` offers first, as a line of authorized_keys; None if there is no key.

    A key with a passphrase counts, even if no agent has it.

    Raises:
        UsageError: the identity in the inventory cannot be read.
    """
    found = Login(name, target).public_keys()
    if found:
        return found[0]
    files = [each for each in (target.identity, *target.identities) if each is not None]
    for file in files:
        public = file if file.suffix == ".pub" else file.with_name(f"{file.name}.pub")
        with contextlib.suppress(OSError):  # ssh skips such files, too
            line = public.read_text(errors="replace").strip()
            if _LINE.fullmatch(line):
                return line
    return None


def create() -> str:
    """Create a key without a passphrase at ``DEFAULT``; return its public half.

    Raises:
        UsageError: ssh-keygen failed, or the file exists.
    """
    file = DEFAULT.expanduser()
    if file.exists():
        hint = f"ssh-keygen -y -f {file}   shows why; move the file elsewhere, then retry"
        raise UsageError(f"{file} exists but is not a usable private key", hint=hint)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    try:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        raise UsageError("ssh-keygen is not installed", hint="sudo apt-get install openssh-client") from None
    if done.returncode:
        reason = Result(done.returncode, done.stdout, done.stderr).reason
        raise UsageError(f"ssh-keygen failed: {reason}", hint="ssh-keygen -t ed25519")
    return file.with_name(f"{file.name}.pub").read_text().strip()
