"""What to write where a value of an inventory or playbook has the wrong shape: slips that are still YAML.

Imported for wrong input alone, as ``messages`` and ``slips`` are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from sparkcluster.spec.base import Section, options
from sparkcluster.spec.document import shown
from sparkcluster.spec.slips import missing_space

Sections = Sequence[type[Section]]

# The quotes of word processors: double ones, single ones, guillemets.
_CURLY = "\u201c\u201d\u201e\u2018\u2019\xab\xbb"
NO_SPACE = "no space after '{}:'"
WRITE_SPACE = "write '{}: …', with a space after the colon"
LIST = "write it as a list: [first, second]"
ENTRY = "write '- ' before the first key of each entry, with a space after the dash"


def subnet_of(text: object) -> str | None:
    """The subnet that was meant by an address or a subnet as text; of an address alone the usual one, /24 or /64."""
    try:
        address = ipaddress.ip_interface(str(text))
    except ValueError:
        return None
    alone = address.network.prefixlen == address.max_prefixlen
    usual = 24 if address.version == 4 else 64
    return str(ipaddress.ip_network((address.ip, usual), strict=False) if alone else address.network)


def for_section(value: object, sections: Sections, *, entry: bool) -> str | None:
    """What to write instead of ``value``, which may be shown, where one of ``sections`` is expected.

    ``entry``: it is an entry of a list.
    """
    if isinstance(value, list):
        return "write one '- ' for each entry" if entry else f"{_keys(sections)}, without '- '"
    required = _required(sections)
    if entry and len(required) == 1 and isinstance(value, str):
        return f"write {required[0]}: {value if re.fullmatch(r'[0-9A-Za-z][0-9A-Za-z.-]*', value) else '…'}"
    return _keys(sections)


def for_list(value: object, entries: Sections) -> str | None:
    """What to write instead of ``value``, which may be shown, where a list of ``entries`` or of scalars is expected."""
    names = {name for section in entries for name in section.model_fields}
    if isinstance(value, Mapping):
        if not entries:
            return "write '- ' before each entry"
        if all(str(key).startswith("-") or key in names for key in value):
            return ENTRY
        return f"write each entry as '- {next(iter(_required(entries)), 'name')}: …'"
    if entries:
        return f"write each entry in a line of its own below it, as '- {next(iter(_required(entries)), 'name')}: …'"
    if isinstance(value, str) and not re.fullmatch(r"[\w./@=+-]+( [\w./@=+-]+)*", value, re.ASCII):
        return LIST
    return f"write [{subnet_of(value) or value}]" if isinstance(value, (str, int, float)) else None


def for_unknown_key(key: str, siblings: Mapping[str, Any], sections: Sections) -> tuple[str, str] | None:
    """What is wrong with a key that ``sections`` do not have, and what to write; None if it is just unknown."""
    spaced = missing_space(key)
    if spaced:
        return NO_SPACE.format(spaced), WRITE_SPACE.format(spaced)
    if re.match(r"-+\s*\w", key):
        return "a key begins with '-'", ENTRY
    inner = {
        name: within
        for section in sections
        for name, field in section.model_fields.items()
        for within in _within(field.annotation)
        if key in within.model_fields
    }
    empty = next((name for name in inner if name in siblings and siblings[name] is None), None)
    if empty:
        return "unknown key", f"indent it below {empty}:"
    if inner:
        return "unknown key", f"put it below {' or '.join(f'{name}:' for name in inner)}"
    names = {name for section in sections for name in section.model_fields}
    other = _ELSEWHERE.get(key)
    if other in names:
        return "unknown key", f"did you mean {other}?"
    return None


# Keys of other tools, and what they are called here.
_ELSEWHERE = {
    **dict.fromkeys(("arguments", "flags", "engine_args", "vllm_args", "extra_args"), "args"),
    **dict.fromkeys(("environment", "envs", "variables"), "env"),
    "volumes": "mounts",
}


def for_text(path: Sequence[str | int], value: str) -> str | None:
    """What to write instead of a string, which may be shown, that does not have the form of its key."""
    if value[-1:] in {",", ";"}:
        return f"remove the '{value[-1]}' at its end"
    if value[:1] in _CURLY:
        return f'write it in straight quotes: "{shown(value.strip(_CURLY))[1:-1]}"'
    if path[:1] == ("nodes",) and path[-1] == "host":
        plain = re.fullmatch(r"(?:[a-z]+://)?(?:([a-z_][\w.-]*)@)?([0-9A-Za-z][0-9A-Za-z.-]*)(?::\d+)?/?", value)
        if plain:
            return f"write host: {plain[2]}" + (f", and ssh: {{user: {plain[1]}}}" if plain[1] else "")
    return None


def _within(annotation: Any) -> list[type[Section]]:
    """The sections that a key holds: one, or those of a list."""
    held = [get_args(each)[0] if get_origin(each) is list else each for each in options(annotation)]
    return [each for each in held if isinstance(each, type) and issubclass(each, Section)]


def _required(sections: Sections) -> list[str]:
    return [name for section in sections for name, field in section.model_fields.items() if field.is_required()]


def _keys(sections: Sections) -> str | None:
    names = sorted({name for section in sections for name in section.model_fields})
    return f"its keys: {', '.join(names)}" if names else None
