"""Why SSH failed, in words: paramiko names its classes and its own steps.

Imported for a failure alone. The fragments are of paramiko's messages (``transport.py``, ``packet.py``,
``auth_handler.py``, versions as in ``pyproject.toml``).
"""

from __future__ import annotations

CLOSED = "it closed the connection"
_UPDATE = "update OpenSSH on the node: sudo apt-get install openssh-server"
_COMMON = "it has no {} in common with this program"

_WORDS: tuple[tuple[str, str, str | None], ...] = (
    ("reading SSH protocol banner", f"{CLOSED} before its SSH greeting", "check ssh.port; another program may use it"),
    ("Indecipherable protocol version", "what listens there does not speak SSH", "check ssh.port in the inventory"),
    ("Invalid SSH banner", "what listens there does not speak SSH", "check ssh.port in the inventory"),
    ("Incompatible version", "it speaks version 1 of SSH only", _UPDATE),
    ("acceptable kex", _COMMON.format("key exchange"), _UPDATE),
    ("acceptable host key", _COMMON.format("type of host key"), _UPDATE),
    ("requested host key type", _COMMON.format("type of host key"), _UPDATE),
    ("acceptable ciphers", _COMMON.format("cipher"), _UPDATE),
    ("acceptable macs", _COMMON.format("MAC algorithm"), _UPDATE),
    ("acceptable compression", _COMMON.format("compression"), _UPDATE),
    ("Unknown host key type", _COMMON.format("type of host key"), _UPDATE),
    ("Bad host key", "it sent no valid host key", None),
    ("Signature verification", "its host key does not fit its signature", None),
    ("Key-exchange timed out", "the key exchange did not end in time", None),
    ("strict-kex", "it breaks the rules of the key exchange", None),
    ("Mismatched MAC", "a packet arrived damaged", "check cable or WiFi, and what is between"),
    ("Invalid packet", "a packet arrived damaged", "check cable or WiFi, and what is between"),
    ("Negotiation failed", CLOSED, None),
    ("No existing session", CLOSED, None),
    ("session not active", CLOSED, None),
    ("transport shut down or saw EOF", CLOSED, None),
    ("Authentication timeout", "the login did not end in time", None),
    ("Timeout opening channel", "it opened no channel in time", None),
    ("Unable to open channel", "it opened no channel", None),
)


def why(error: BaseException) -> tuple[str, str | None]:
    """The reason of a failure as a part of a sentence, and what to do about it if that is known."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower(), None
    text = " ".join(str(error).split()).rstrip(".")
    for fragment, reason, hint in _WORDS:
        if fragment in text:
            return reason, hint
    return (text[:1].lower() + text[1:200] if text else CLOSED), None
