"""Common mistakes in the file given as private SSH key, and how to fix them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sparkcluster.printable import word

_PUBLIC = re.compile(rb"\s*(ssh-|ecdsa-|sk-)[\w@.-]+ AAAA|---- BEGIN SSH2 PUBLIC KEY|-----BEGIN [A-Z ]*PUBLIC KEY-----")


def wrong(written: str, *, agent: bool = True) -> tuple[str, str] | None:
    """What is wrong with the private key file ``written``, and a hint; None if no mistake is found.

    As in OpenSSH, a .pub file is accepted if an ``agent`` may hold its private key.
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
        return "is a directory", f"name the private key in it, such as {name.rstrip('/')}/id_ed25519"
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not the name of a file"
        return f"cannot be read: {reason}", f"ls -l {name}"
    if content.startswith(b"PuTTY-User-Key-File"):
        return "is a PuTTY key", f"puttygen {name} -O private-openssh -o ~/.ssh/id_putty, and use that file"
    private = name.removesuffix(".pub")
    if _PUBLIC.match(content) and not (agent and private != name):
        return "is a public key", f"use the private key: {private}" if private != name else "use its private key"
    return None
