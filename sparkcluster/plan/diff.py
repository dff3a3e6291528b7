"""The difference between two plans, as lines for a person."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

# Environment is compared separately; the others contain the release or the plan hash, which differ between any two
# plans.
SKIPPED = ("--env", "--name", "--label", "--env-file")


def difference(old: Mapping[str, Any], new: Mapping[str, Any], own: Collection[str] = ()) -> list[str]:
    """One line for each difference between two plans in JSON form: of the recorded release, and the requested one.

    ``own`` are the variables that sparkcluster sets on every rank whatever is written. Those of them that the recorded
    ranks lack are one line for all nodes: another version made that plan, and nobody changed an inventory or playbook.
    """
    lines = [
        f"{label}: {old.get(label)} → {new.get(label)}"
        for label in ("model", "image")
        if old.get(label) != new.get(label)
    ]
    if old.get("groups") != new.get("groups"):
        lines.append(f"groups: {_groups(old)} → {_groups(new)}")
    before: Mapping[str, Any] = old.get("nodes", {})
    after: Mapping[str, Any] = new.get("nodes", {})
    lines += [f"{name}: leaves the cluster" for name in before if name not in after]
    lines += [f"{name}: joins the cluster" for name in after if name not in before]
    kept = [name for name in after if name in before]
    added = _added(old, new, kept, own) if kept else {}
    if added:
        values = ", ".join(name if value is None else f"{name}={value}" for name, value in added.items())
        lines.append(f"set by this version of sparkcluster, not by inventory or playbook: {values}")
    for name in kept:
        lines += [f"{name}: {line}" for line in _node(before[name], after[name], added)]
    return lines


def _added(old: Mapping[str, Any], new: Mapping[str, Any], kept: Sequence[str], own: Collection[str]) -> dict[str, Any]:
    """The variables among ``own`` that no recorded rank has, with their values; none of a record without variables.

    The value is None where it differs from node to node.
    """
    before = [old["nodes"][name].get("env") for name in kept]
    after: list[Mapping[str, Any]] = [new["nodes"][name]["env"] for name in kept]
    if not all(before):
        return {}
    names = [name for name in sorted(own) if name in after[0] and not any(name in env for env in before)]
    return {name: after[0][name] if len({env.get(name) for env in after}) == 1 else None for name in names}


def _node(old: Mapping[str, Any], new: Mapping[str, Any], added: Collection[str]) -> Iterator[str]:
    if old.get("rank") != new.get("rank"):
        yield f"rank {old.get('rank')} → {new.get('rank')}"
    env = {name: value for name, value in new.get("env", {}).items() if name not in added}
    yield from _values("env", old.get("env", {}), env)
    if old.get("secrets", []) != new.get("secrets", []):
        yield f"secrets: {_names(old.get('secrets', []))} → {_names(new.get('secrets', []))}"
    nothing: Mapping[str, Any] = {}  # of a record that is damaged, or of another version
    for before, after in zip_longest(old.get("containers", ()), new["containers"], fillvalue=nothing):
        yield from _container(before, after)


def _container(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old.get("image") != new.get("image"):
        yield f"image {_short(old.get('image'))} → {_short(new.get('image'))}"
    before, after = old.get("launcher", {}), new.get("launcher", {})
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        if key == "engine":
            yield from _flags("engine", _grouped(before.get(key, [])), _grouped(after.get(key, [])))
        elif isinstance(before.get(key), dict) and isinstance(after.get(key), dict):
            yield from _values(key, before[key], after[key])
        else:
            yield f"{key}: {_shown(before.get(key))} → {_shown(after.get(key))}"
    yield from _flags("run", _comparable(old), _comparable(new))


def _comparable(container: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The flags of its command that are compared here."""
    name = str(container.get("name"))
    argv = [str(word).replace(name, "NAME") for word in container.get("argv", []) if word != container.get("image")]
    return [flag for flag in _grouped(argv) if flag[0] not in SKIPPED]


def _flags(label: str, old: Sequence[tuple[str, ...]], new: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"{label} - {_joined(words)}" for words in old if words not in new)
    yield from (f"{label} + {_joined(words)}" for words in new if words not in old)


def _grouped(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """A command cut before every flag, so that a flag stays with its values."""
    found: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            found.append([])
        found[-1].append(word)
    return [tuple(words) for words in found if words]


def _values(label: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{label} {name}: {_shown(old.get(name))} → {_shown(new.get(name))}"


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return _joined(value) if isinstance(value, list) else str(value)


def _joined(words: Sequence[Any]) -> str:
    return shlex.join(str(word) for word in words) or "none"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _short(image: Any) -> str:
    return str(image).removeprefix("sha256:")[:12] if image else "none"


def _groups(plan: Mapping[str, Any]) -> str:
    return " | ".join(", ".join(group) for group in plan.get("groups", [])) or "none"
