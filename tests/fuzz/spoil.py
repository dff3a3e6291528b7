"""Documents of a hostile or broken node: honest documents with some parts replaced."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

DEEP = "(a list in a list in a list)"
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 10**12, 2**63, -(2**63) - 1, 10**40, 0.5, 1e308, float("inf"), float("nan"), "", "x", " ", "0",
    "9" * 5000, "x" * 70_000, "\u0663", "²", "\ud800", "a\0b", "a\nb", "\x1b]52;c;aGk=\x07", "\u202e", "../../../../etc/passwd",
    "-v", "--privileged", "$(touch /tmp/x)", "sha256:x", "::1", "1.2.3.4", "300.1.1.1/33", "fe80::1%eth0", [], {}, [None], [[]],
    [{}], {"": None}, {"a": {}}, ["x"], {"unread": "because"}, {"unread": 3}, DEEP, [DEEP], {"a": DEEP},
)  # fmt: skip
RAW = (
    b"", b"null", b"[]", b"{}", b"3", b'"x"', b"NaN", b"not JSON", b"\xff\xfe{\x00}\x00", b'{"a": 1', b"[" * 100_000,
    b'{"a":' * 20_000, b'{"a": "\xed\xa0\x80"}', b'{"a": 1' + b"0" * 10_000 + b"}", b'{"a": 1e999}', b"\0" * 1000,
)  # fmt: skip


def spoilt(chance: Random, document: Any) -> Any:
    """``document`` with a few of its parts replaced, removed, retyped, repeated or set to extreme values."""
    whole = {"": copy.deepcopy(document)}
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3, 6))):
        inside, key = _place(chance, whole)
        if key is not None:
            _change(chance, inside, key)
    return whole[""]


def _place(chance: Random, inside: Any) -> tuple[Any, Any]:
    """A container and a key in it, found by a random walk from the root, so that every top-level field is reached."""
    key: Any = ""
    while True:
        value = inside[key] if isinstance(inside, list) or key in inside else None
        if not isinstance(value, dict | list) or not value or chance.random() < 0.12:
            return inside, key
        inside = value
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choices(keys, [8 if isinstance(value[each], dict | list) and value[each] else 1 for each in keys])[
            0
        ]


def _change(chance: Random, inside: Any, key: Any) -> None:
    value = inside[key] if isinstance(inside, list) or key in inside else None
    way = chance.randrange(10)
    if way < 4:
        inside[key] = copy.deepcopy(chance.choice(ODD))
    elif way == 4 and key != "":
        del inside[key]
    elif way == 5 and isinstance(inside, dict) and key != "":
        inside[chance.choice(("", "x", "../../x", "\x1b[2J", "\ud800", "k" * 5000))] = inside.pop(key)
    elif isinstance(value, dict):
        inside[key] = chance.choice((list(value), list(value.values()), dict.fromkeys(value), str(value)))
    elif isinstance(value, list):
        # A megabyte at most: the time that this takes counts as the command's.
        many = value[:1] * min(5000, 2 + 10**6 // len(json.dumps(value[0]))) if value else []
        inside[key] = chance.choice(
            (many, dict(enumerate(value)), [value], value[::-1], value + value, None, "".join(map(str, value)))
        )
    elif isinstance(value, bool) or value is None:
        inside[key] = chance.choice((not value, 1, "true", [value]))
    elif isinstance(value, int | float):
        inside[key] = chance.choice((-value, str(value), value * 10**9, value / 3, [value], 2**62, -(2**62), 65536))
    else:
        long = value * min(300, 1 + 10**6 // max(1, len(value)))
        inside[key] = chance.choice(
            (value + "\n", long, value[:3], value[::-1], "-" + value, f"../{value}", [value], {value: value},
             value + "\x1b[31m", value.upper(), value + "\u0661", len(value))
        )  # fmt: skip


def line(chance: Random, document: Any) -> bytes:
    """One line of output with ``document`` corrupted, or a line that is not a document."""
    if chance.random() < 0.06:
        return chance.choice(RAW)
    text = json.dumps(spoilt(chance, document)).encode()
    return text.replace(
        json.dumps(DEEP).encode(), b"[" * 300 + b"]" * 300 if chance.random() < 0.5 else b"[" * 9000 + b"]" * 9000
    )
