"""Text of an inventory: written for discovered Sparks, or edited in place. Pure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import yaml

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.report import count
from sparkcluster.spec.document import KeyPath, parse, parse_scalar, path_text

# Also used by the examples in inventory/: the first fits one Spark, the second a pair.
ONE_SPARK, PAIR = "qwen3.6-35b-a3b-nvfp4", "gpt-oss-120b"

GONE = object()
"""Marks a value for removal."""

USER = re.compile(r"[a-z_][a-z0-9_.-]*\$?")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A node to write.

    Attributes:
        name: from ``node_names``.
        host: address or name of the node.
        user: login name; None leaves it to ssh_config.
        files: ``identity`` and ``known_hosts`` for the node's ``ssh`` section.
    """

    name: str
    host: str
    user: str | None = None
    files: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


def node_names(hostnames: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """A unique name for each node: its hostname without domain and invalid characters."""
    used = {name.lower() for name in taken}
    names = []
    for hostname in hostnames:
        label = re.sub(r"[^A-Za-z0-9_-]+", "-", hostname.partition(".")[0])[:56].strip("-_") or "spark"
        numbered = [label, *(f"{label}-{number}" for number in range(2, len(used) + 3))]
        name = next(each for each in numbered if each.lower() not in used)
        used.add(name.lower())
        names.append(name)
    return names


def pairs(names: Sequence[str], cabled: Collection[frozenset[str]]) -> list[list[str]]:
    """``names`` in groups of two, cabled pairs first; a group of one for a node left over."""
    left, groups = list(names), list[list[str]]()
    while left:
        name = left.pop(0)
        loose = [each for each in left if not any(each in pair for pair in cabled)]
        other = ([each for each in left if frozenset({name, each}) in cabled] or loose)[:1]
        left = [each for each in left if each not in other]
        groups.append([name, *other])
    return groups


def new_text(
    cluster: str,
    entries: Sequence[Entry],
    *,
    cabled: Collection[frozenset[str]] = (),
    files: Mapping[str, str | None] | None = None,
) -> str:
    """An inventory of ``entries``, the head first, with a comment for each section.

    ``cabled`` are pairs of nodes joined by a cable or switch; ``files`` are the SSH files for all nodes.
    """
    user = common_user(entries)
    ssh = [f"  {pair}" for pair in _ssh_pairs(user, files or {})]
    head = "ssh:                              # for every node; a node's ssh section overrides it key by key"
    first = "" if len(entries) == 1 else f"{' ' * 28}# the first is the head and serves the endpoint"
    lines = [
        "# Written by sparkcluster discover. Every key, with its default: docs/inventory.md",
        "",
        f"cluster: {scalar(cluster)}",
        "",
        *([head, *ssh, ""] if ssh else []),
        "# Reserve these addresses in your DHCP server: a node whose address changes is not found.",
        f"nodes:{first}",
        *node_lines(entries, user=user, indent=2),
        "",
        *_serving([entry.name for entry in entries], cabled),
        "",
        "api:",
        "  host: management                # the head's LAN address; 127.0.0.1: that machine only",
        "  port: 8000",
        "  key:                            # required from clients: without it, anyone who reaches the port has access",
        "    env: SPARK_API_KEY            # export SPARK_API_KEY=$(openssl rand -hex 24) before `up`; keep it",
        "",
    ]
    return "\n".join(lines)


def _ssh_pairs(user: str | None, files: Mapping[str, str | None]) -> list[str]:
    return [f"{key}: {scalar(value)}" for key, value in {"user": user, **files}.items() if value is not None]


def _serving(names: Sequence[str], cabled: Collection[frozenset[str]]) -> list[str]:
    """Lines for the playbook and the groups that serve it."""
    listed = "`sparkcluster playbooks` lists the others; for another model, copy one of them and set its path here."
    if len(names) == 1:
        return [f"# {listed}", f"playbook: {ONE_SPARK}"]
    playbook = ["# Fits one Spark; two have room for its full context.", f"# {listed}", f"playbook: {PAIR}"]
    if len(names) == 2:
        return playbook
    groups = pairs(names, cabled)
    return [
        f"# {count(len(groups), 'group')}, each with the complete model and an endpoint on its first node, the head.",
        "# If the model needs more Sparks, write larger groups. Without groups, all nodes serve one model together.",
        "groups:",
        *(
            f"  - {{name: group-{number}, nodes: [{', '.join(map(scalar, group))}]}}"
            for number, group in enumerate(groups, 1)
        ),
        "",
        *playbook,
    ]


def common_user(entries: Iterable[Entry]) -> str | None:
    """The most frequent login name of ``entries``, for the ``ssh`` section; None leaves it to ssh_config."""
    users = Counter(entry.user for entry in entries if entry.user is not None and USER.fullmatch(entry.user))
    return users.most_common(1)[0][0] if users else None


def node_lines(entries: Iterable[Entry], *, user: str | None, indent: int) -> list[str]:
    """Lines of the ``nodes`` list; nodes with SSH files or a login name other than ``user`` get an ``ssh`` section."""
    space = " " * indent
    lines = []
    for entry in entries:
        lines += [f"{space}- host: {scalar(entry.host)}", f"{space}  name: {scalar(entry.name)}"]
        other = entry.user if entry.user != user and USER.fullmatch(entry.user or "") else None
        if own := _ssh_pairs(other, entry.files):
            lines.append(f"{space}  ssh: {{{', '.join(own)}}}")
    return lines


def scalar(text: str) -> str:
    """``text`` as a YAML scalar, unquoted if YAML reads it as a string."""
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", text):
        return text
    if re.fullmatch(r"([A-Za-z]|~?/)[A-Za-z0-9._/@:-]*[A-Za-z0-9._/@-]", text):
        read = parse_scalar(text, "", "value")
        if read.data == {"value": text} and not read.problems:
            return text
    return json.dumps(text, ensure_ascii=False)


def with_nodes(text: str, file: str, entries: Sequence[Entry], *, user: str | None) -> str:
    """The inventory ``text`` with ``entries`` appended to its nodes; all else unchanged.

    ``file`` is its path for messages, ``user`` the login name of its ``ssh`` section.

    Raises:
        UsageError: the text cannot be edited in place; the message has the lines to paste.
        SpecError: the text is not YAML.
    """
    before = parse(text, file).data
    lines = "\n".join(node_lines(entries, user=user, indent=2))
    hint = "add these lines to its nodes"
    entries_of = before.get("models") or []
    if before.get("groups") or (entries_of and all(each.get("nodes") or each.get("groups") for each in entries_of)):
        what = "models" if entries_of else "groups"
        why, hint = f"every node must be in one of its {what}", f"{hint}, and each name to one of its {what}"
        raise UsageError(f"{file} is unchanged: {why}\n{lines}", hint=hint)
    listed = before.get("nodes")
    nodes = [*(listed if isinstance(listed, list) else ()), *parse(f"nodes:\n{lines}", file).data["nodes"]]
    why = f"its nodes are not a list with one key per line\n{lines}"
    return _as_wanted(_extended(text, entries, user), file, {**before, "nodes": nodes}, why, hint)


def _extended(text: str, entries: Sequence[Entry], user: str | None) -> str | None:
    """``text`` with ``entries`` after the last node; None if the end of the nodes is unclear."""
    root = _root(text)
    nodes = next((value for key, value in root.value if key.value == "nodes"), None) if root else None
    if not isinstance(nodes, yaml.SequenceNode) or nodes.flow_style or not nodes.value:
        return None
    at, indent = _after(text, nodes), nodes.start_mark.column
    # A comment indented like the node's keys belongs to the node.
    while (line := text[at : _next_line(text, at)]).lstrip(" ").startswith("#") and line.index("#") > indent:
        at = _next_line(text, at)
    return _inserted(text, at, node_lines(entries, user=user, indent=indent))


def _inserted(text: str, at: int, lines: Sequence[str]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    joint = "" if text[:at].endswith("\n") else newline
    return f"{text[:at]}{joint}{newline.join(lines)}{newline}{text[at:]}"


def _as_wanted(made: str | None, file: str, wanted: Mapping[str, Any], why: str, hint: str) -> str:
    """``made`` if it parses to ``wanted``; otherwise raises UsageError."""
    with contextlib.suppress(SpecError):
        if made is not None and parse(made, file).data == wanted:
            return made
    raise UsageError(f"{file} is unchanged: {why}", hint=hint)


def for_more(text: str, names: Sequence[str], cabled: Collection[frozenset[str]]) -> str:
    """The inventory ``text`` with the default playbook and groups for ``names`` in place of those for one Spark.

    Unchanged if it serves anything else.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    one, more = (newline.join(["", *_serving(each, cabled), ""]) for each in (names[:1], names))
    return text.replace(one, more, 1)


def with_values(text: str, file: str, values: Mapping[KeyPath, Any]) -> str:
    """The inventory ``text`` with ``values`` set by path and GONE values removed; all else unchanged.

    A path may pass through a list, as in ``("models", 0, "playbook")``, but not end at an entry.

    Raises:
        UsageError: the text cannot be edited in place; the message has the lines to write.
        SpecError: the text is not YAML.
    """
    wanted = parse(text, file).data
    made: str | None = text
    lines = []
    for path, value in values.items():
        holder: Any = wanted
        for name in path[:-1]:
            inner = holder.get(name) if isinstance(holder, dict) else holder[name]
            holder[name] = [*inner] if isinstance(inner, list) else {**inner} if isinstance(inner, dict) else {}
            holder = holder[name]
        holder[path[-1]] = value
        lines += [] if value is GONE else _lines(path, value)
        if value is GONE:
            del holder[path[-1]]
        made = _put(made, path, value) if made is not None else None
    first = next(iter(values))
    where = path_text(first[:2]) if first[0] == "models" else first[0]
    why = "\n".join([f"edit its {where} section by hand, so that it has", *lines])
    hint = "replace these keys if they are there; only a section with one key per line is edited automatically"
    return _as_wanted(made, file, wanted, why, hint)


def _lines(path: KeyPath, value: Any) -> list[str]:
    """YAML lines that set ``value`` at ``path``, relative to the innermost list entry."""
    begins = max((at + 1 for at, each in enumerate(path) if isinstance(each, int)), default=0)
    path = tuple(map(str, path[begins:]))
    words = [*path[:-1], f"{path[-1]}: {scalar(value) if isinstance(value, str) else json.dumps(value)}"]
    return [f"{'  ' * depth}{word}{':' * (depth < len(path) - 1)}" for depth, word in enumerate(words)]


def _put(text: str, path: KeyPath, value: Any) -> str | None:
    """``text`` with ``value`` at ``path``; None if the position is unclear."""
    holder: yaml.Node | None = _root(text)
    for depth, name in enumerate(path):
        if isinstance(holder, yaml.SequenceNode) and isinstance(name, int):
            holder = holder.value[name]
            continue
        if not isinstance(holder, yaml.MappingNode):
            return None
        key, found = next((each for each in holder.value if each[0].value == name), (None, None))
        if key is None or found is None:
            if value is GONE or holder.flow_style:
                return text if value is GONE else None
            return _added(text, holder, _lines(path[depth:], value))
        if depth < len(path) - 1:
            holder = found
        elif value is GONE and not holder.flow_style:
            return text[: key.start_mark.index - key.start_mark.column] + text[_after(text, found) :]
        elif isinstance(found, yaml.ScalarNode) and value is not GONE:
            return text[: key.end_mark.index] + _lines(("",), value)[0] + text[found.end_mark.index :]
    return None


def _added(text: str, holder: yaml.MappingNode, lines: Sequence[str]) -> str:
    """``text`` with ``lines`` in ``holder``: after ``playbook``, else at its end."""
    beside = [each for name, each in holder.value if lines[0] != "api:" and name.value == "playbook"]
    if not beside and holder.start_mark.column == 0:
        return _inserted(text, len(text), ["", *lines])
    indent = " " * holder.start_mark.column
    return _inserted(text, _after(text, (beside or [holder])[0]), [indent + line for line in lines])


def _root(text: str) -> yaml.MappingNode | None:
    """The top-level block mapping of the YAML ``text``; None if it is anything else."""
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError:  # such as an alias whose anchor was removed
        return None
    return root if isinstance(root, yaml.MappingNode) and not root.flow_style else None


def _after(text: str, node: yaml.Node) -> int:
    """Offset in ``text`` of the line after the last line of ``node``."""
    last = node
    while isinstance(last, yaml.CollectionNode) and not last.flow_style and last.value:
        last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
    at = last.end_mark.index
    # the end mark of a block scalar is already after its last line
    return at if text[:at].endswith("\n") else _next_line(text, at)


def _next_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1
