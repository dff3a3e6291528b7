"""What is wrong with a file that should be a private SSH key: the usual mistakes, and what to type."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sparkcluster.printable import word

_PUBLIC = re.compile(rb"\s*(ssh-|ecdsa-|sk-)[\w@.-]+ AAAA|---- BEGIN SSH2 PUBLIC KEY|-----BEGIN [A-Z ]*PUBLIC KEY-----")


def wrong(written: str, *, agent: bool = True) -> tuple[str, str] | None:
    """What is wrong with the private key file ``written``, and what to type; None if nothing is seen before its use.

    A file in .pub may stand for its private key where an ``agent`` may have that, as in OpenSSH.
    """
    name = word(written)
    try:
        path = Path(written).expanduser()
        # Without O_NONBLOCK, opening a named pipe without a writer would block.
        with open(path, "rb", opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK)) as file:
            content = file.read(1 << 14)
    except FileNotFoundError:
        return "does not exist", f"ssh-keygen -t ed25519 -f {name}, then ssh-copy-id -i {name} USER@HOST for every node"
    except IsADirectoryError:
        return "is a directory", f"give the private key in it, such as {name.rstrip('/')}/id_ed25519"
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not the name of a file"
        return f"cannot be read: {reason}", f"ls -l {name}"
    if content.startswith(b"PuTTY-User-Key-File"):
        return "has the format of PuTTY", f"puttygen {name} -O private-openssh -o ~/.ssh/id_putty, and give that file"
    private = name.removesuffix(".pub")
    if _PUBLIC.match(content) and not (agent and private != name):
        return "is a public key", f"give the private one: {private}" if private != name else "give its private key"
    return None
