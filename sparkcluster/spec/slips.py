"""What was mistyped in a file that is not YAML: the parser reports a consequence, often some lines below the cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Slip = tuple[int, int, str, str]
"""Line and column from 1, what is wrong, and what to write. Values are not shown: they may be secrets."""

# Indentation with dashes, a key, what separates it from its value, and the value.
_KEY = re.compile(
    r"(?P<lead>\s*(?:-\s+)*)(?P<key>[A-Za-z_][\w.-]{0,60})(?P<sign>:?\s*=|\s*:|\s)(?P<space>\s*)(?P<value>\S.*)?"
)
_SPACE = "with a space after the colon"

# Messages of libyaml where none of the slips below is found, with ours and a hint for each.
_OTHERWISE = (
    ("mapping values are not allowed", "unexpected ':'", "quote a value that contains ': ', and check the indentation"),
    ("could not find expected ':'", "expected 'key: value'", "write 'key: value', with a space after the colon"),
    ("did not find expected key", "inconsistent indentation", "indent all keys of a section equally, with spaces"),
    ("did not find expected '-'", "expected a list entry", "start each entry with '- ', equally indented"),
    ("cannot start any token", "a value cannot begin with this character", "put the value in quotes"),
    ("found unknown escape", "unknown escape in double quotes", "use single quotes, or write \\\\ for a backslash"),
)


def slip(text: str, place: tuple[int, int], begin: tuple[int, int], reported: str) -> Slip:
    """The cause of what libyaml ``reported`` of ``text`` at ``place``; its own words if none is known.

    ``place`` and ``begin``, the place of what it was reading, are line and column from 1.
    """
    line, column = place
    lines = text.splitlines()
    near = lines[line - 1] if line <= len(lines) else ""
    tab = re.match(r"[ -]*\t", near)
    if tab:
        return line, tab.end(), "tab in the indentation", "indent with spaces"
    found = next(_elsewhere(lines, begin, reported), None) or next(_guesses(lines, line, column, reported), None)
    if found is not None:
        return found
    for fragment, message, hint in _OTHERWISE:
        if fragment in reported:
            return line, column, message, hint
    return line, column, f"not valid YAML: {reported.strip()}", "check the line above it as well"


def not_keys(text: str) -> Slip | None:
    """The slip in the first line of a file that is one text instead of keys, if it is one: no space, or a ``=``."""
    lines = text.splitlines()
    first = next((number for number, each in enumerate(lines, 1) if _content(each)), 0)
    match = _match(lines, first)
    return _no_space(lines, first) or (_no_colon(lines, first) if match and "=" in match["sign"] else None)


def missing_space(text: object) -> str | None:
    """The key in a value such as ``host:10.0.0.1``, which was to be a key and its value; None for any other value."""
    match = re.fullmatch(r"([A-Za-z_][\w-]{0,60}):(?!//)\S.*", text) if isinstance(text, str) else None
    return match[1] if match else None


def _elsewhere(lines: Sequence[str], begin: tuple[int, int], reported: str) -> Iterator[Slip]:
    """Slips that are where the parser began, or in the first line."""
    line, column = begin
    opened = lines[line - 1][column - 1 : column] if line <= len(lines) else ""
    if "unexpected end of stream" in reported:
        yield line, column, "unclosed quote", "close it on the same line"
    elif "expected ',' or" in reported:
        closing = {"[": "]", "{": "}"}.get(opened, "]")
        yield line, column, f"unclosed '{opened}'", f"close it with '{closing}', and put ',' between its entries"
    elif "<document start>" in reported:
        first = next((number for number, each in enumerate(lines, 1) if _content(each)), line)
        yield first, 1, "wrong indentation", "start this line in column 1, as the other keys"


def _guesses(lines: Sequence[str], line: int, column: int, reported: str) -> Iterator[Slip]:
    before = next((number for number in range(line - 1, 0, -1) if _content(lines[number - 1])), 0)
    near = lines[line - 1] if line <= len(lines) else ""
    mapping, colon = "mapping values" in reported, "expected ':'" in reported
    ends = "expected '-'" in reported or "expected key" in reported
    if ends:
        yield from _in_line(near, line, column)
    if mapping or colon or ends:
        yield from filter(None, (_no_space(lines, number) for number in (before, line)))
    if colon:
        yield from filter(None, [_no_colon(lines, before)])
    if mapping and re.search(r":\s", near[: column - 1]):
        yield line, column, "unexpected ':' in a value", "put the value in quotes"
    elif mapping or ends:
        yield from _indentation(lines, line, before)


def _in_line(near: str, line: int, column: int) -> Iterator[Slip]:
    if re.match(r"\s*-+[^\s-]", near):
        yield line, column, "no space after '-'", "write '- ' before the first key of a list entry"
    if re.search(r"""["']$""", near[: column - 1].rstrip()):
        yield line, column, "text after a closing quote", "put the whole value in one pair of quotes"


def _no_space(lines: Sequence[str], number: int) -> Slip | None:
    match = _match(lines, number)
    if match is None or match["sign"] != ":" or match["space"] or (match["value"] or "//").startswith("//"):
        return None
    key = match["key"]
    return number, match.end("sign"), f"no space after '{key}:'", f"write '{key}: …', {_SPACE}"


def _no_colon(lines: Sequence[str], number: int) -> Slip | None:
    match = _match(lines, number)
    if match is None or match["sign"].strip() == ":":
        return None
    key, sign = match["key"], match["sign"].strip()
    what = f"'{sign}' after '{key}'" if sign else f"no ':' after '{key}'"
    return number, match.end("key") + 1, what, f"write '{key}: …', {_SPACE}"


def _indentation(lines: Sequence[str], line: int, before: int) -> Iterator[Slip]:
    """Where a line should start that is indented like none of those above it."""
    near = lines[line - 1] if line <= len(lines) else ""
    column = len(near) - len(near.lstrip()) + 1
    is_entry = re.match(r"\s*-\s", near) is not None
    for number in range(before, 0, -1):
        match = _match(lines, number)
        if match is None or (is_entry and "-" not in match["lead"]):
            continue
        start = (match["lead"].index("-") if is_entry else match.end("lead")) + 1
        if start != column:
            how = f"'- ' in column {start}, as" if is_entry else f"this line in column {start}, below '{match['key']}'"
            yield line, column, "wrong indentation", f"start {how} in line {number}"
        return


def _match(lines: Sequence[str], number: int) -> re.Match[str] | None:
    return _KEY.fullmatch(lines[number - 1].rstrip()) if 0 < number <= len(lines) else None


def _content(text: str) -> bool:
    return bool(text.strip()) and not text.lstrip().startswith("#")
