"""The difference between two plans, as lines for a person, each with its class. Pure."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal

from sparkcluster.plan.docker_run import mounts

# Environment is compared separately; the others contain the release or the plan hash, which differ between any two
# plans.
SKIPPED = ("--env", "--name", "--label", "--env-file")

Class = Literal["image", "weights", "arguments", "secrets", "addresses", "text"]
Flag = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        kind: its class; ``arguments`` is all that a rank is started with and no other class has.
        text: a line for a person.
        restarts: whether it takes effect by a restart alone. Not so a name that the ranks are not started with.
    """

    kind: Class
    text: str
    restarts: bool = True


def difference(old: Mapping[str, Any], new: Mapping[str, Any], own: Collection[str] = ()) -> list[str]:
    """The lines of ``changes``."""
    return [change.text for change in changes(old, new, own)]


def changes(old: Mapping[str, Any], new: Mapping[str, Any], own: Collection[str] = ()) -> list[Change]:
    """One for each difference between two plans in JSON form: of the recorded release, and the requested one.

    ``own`` are the variables and engine flags that sparkcluster sets whatever is written. Those of them that the
    recorded ranks lack are one line for all nodes: another version made that plan, and nobody changed an inventory or
    playbook.
    """
    labels: Mapping[str, Class] = {"model": _model_class(old, new), "image": "image"}
    found = [
        Change(kind, f"{label}: {old.get(label)} → {new.get(label)}", restarts=False)
        for label, kind in labels.items()
        if old.get(label) != new.get(label)
    ]
    if old.get("groups") != new.get("groups"):
        found.append(Change("arguments", f"groups: {_groups(old)} → {_groups(new)}"))
    before: Mapping[str, Any] = old.get("nodes", {})
    after: Mapping[str, Any] = new.get("nodes", {})
    found += [Change("arguments", f"{name}: leaves the cluster") for name in before if name not in after]
    found += [Change("arguments", f"{name}: joins the cluster") for name in after if name not in before]
    kept = [name for name in after if name in before]
    added = {**_added(old, new, kept, own), **_added_flags(old, new, kept, own)} if kept else {}
    if added:
        values = ", ".join(
            name if value is None else f"{name}{' ' if name.startswith('--') else '='}{value}"
            for name, value in added.items()
        )
        text = f"set by this version of sparkcluster, not by inventory or playbook: {values}"
        found.append(Change("arguments", text))
    on: dict[tuple[Class, str], list[str]] = {}
    for name in kept:
        for kind, line in _node(before[name], after[name], added):
            on.setdefault((kind, line), []).append(name)
    for (kind, line), names in on.items():
        where = "every node" if len(names) == len(kept) > 1 else ", ".join(names)
        found.append(Change(kind, f"{where}: {line}"))
    return found


def _model_class(old: Mapping[str, Any], new: Mapping[str, Any]) -> Class:
    """The class of another name of the model: that of other weights, or only what the API calls them."""
    weights = [
        [container.get("launcher", {}).get("model") for node in plan.get("nodes", {}).values()
         for container in node.get("containers", ())][:1]
        for plan in (old, new)
    ]  # fmt: skip
    return "weights" if weights[0] != weights[1] else "arguments"


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


def _added_flags(
    old: Mapping[str, Any], new: Mapping[str, Any], kept: Sequence[str], own: Collection[str]
) -> dict[str, Any]:
    """The engine flags among ``own`` that no recorded rank has, with values; none of a record without commands."""
    before, after = ([_engine(plan["nodes"][name]) for name in kept] for plan in (old, new))
    if not all(before):
        return {}
    recorded = {flag[0] for flags in before for flag in flags}
    return {
        flag[0]: _joined(flag[1:]) for flags in after for flag in flags if flag[0] in own and flag[0] not in recorded
    }


def _engine(node: Mapping[str, Any]) -> list[Flag]:
    """The command of a node's engine."""
    containers = node.get("containers", ())
    return [flag for each in containers for flag in _grouped(each.get("launcher", {}).get("engine", []))]


def _node(old: Mapping[str, Any], new: Mapping[str, Any], added: Collection[str]) -> Iterator[tuple[Class, str]]:
    if old.get("rank") != new.get("rank"):
        yield "arguments", f"rank {old.get('rank')} → {new.get('rank')}"
    env = {name: value for name, value in new.get("env", {}).items() if name not in added}
    yield from (("arguments", line) for line in _values("env", old.get("env", {}), env))
    before, after = old.get("secrets", []), new.get("secrets", [])
    yield from (("secrets", f"{_secret(name)}: removed") for name in before if name not in after)
    yield from (("secrets", f"{_secret(name)}: added") for name in after if name not in before)
    nothing: Mapping[str, Any] = {}  # of a record that is damaged, or of another version
    for was, is_ in zip_longest(old.get("containers", ()), new["containers"], fillvalue=nothing):
        yield from _container(was, is_, added)


def _container(old: Mapping[str, Any], new: Mapping[str, Any], added: Collection[str]) -> Iterator[tuple[Class, str]]:
    if old.get("image") != new.get("image"):
        yield "image", f"image {_short(old.get('image'))} → {_short(new.get('image'))}"
    before, after = old.get("launcher", {}), new.get("launcher", {})
    class_of = _class_of(old, new)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        kind: Class = "weights" if key == "model" else "arguments"
        if key == "engine":
            wanted = [flag for flag in _grouped(after.get(key, [])) if flag[0] not in added]
            yield from _flags("engine", _grouped(before.get(key, [])), wanted, class_of)
        elif isinstance(before.get(key), dict) and isinstance(after.get(key), dict):
            yield from ((kind, line) for line in _values(key, before[key], after[key]))
        elif isinstance(before.get(key), list) and isinstance(after.get(key), list):
            yield from ((kind, line) for line in _words(key, before[key], after[key]))
        else:
            yield kind, f"{key}: {_shown(before.get(key))} → {_shown(after.get(key))}"
    yield from _run(_comparable(old), _comparable(new), class_of)


def _run(old: Sequence[Flag], new: Sequence[Flag], class_of: Callable[[Flag], Class]) -> Iterator[tuple[Class, str]]:
    """Of options of ``docker run``: bind mounts by their path in the container, the others as they are."""
    before, after = _bind_mounts(old), _bind_mounts(new)
    for target in sorted(before.keys() | after.keys()):
        (was, flag), (is_, wanted) = before.get(target, ("none", ())), after.get(target, ("none", ()))
        if flag != wanted:
            yield class_of(wanted or flag), f"mount {target}: {was} → {is_}"
    mounted = {flag for _, flag in (*before.values(), *after.values())}
    rest, wanted_rest = ([flag for flag in flags if flag not in mounted] for flags in (old, new))
    yield from _flags("run", rest, wanted_rest, class_of)


def _bind_mounts(flags: Iterable[Flag]) -> dict[str, tuple[str, Flag]]:
    """What is mounted from where, and the flag of it, by its path in the container."""
    return {target: (f"{source}{how}", flag) for flag in flags for source, target, how in mounts(flag)}


def _class_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> Callable[[Flag], Class]:
    """The class of a flag that one of two containers has: what names other weights or another image follows these."""
    models = [container.get("launcher", {}).get("model") or {} for container in (old, new)]
    differing = {model.get(key) for model in models for key in model if models[0].get(key) != models[1].get(key)}
    # As plan.build names the directories of an image's caches.
    images = {re.sub(r"[^A-Za-z0-9]", "-", _short(container.get("image"))) for container in (old, new)}
    paths = [str(value) for value in differing if str(value).startswith("/")]

    def class_of(flag: Flag) -> Class:
        mount = flag[-1] if flag[0] == "--mount" else ""
        if differing & set(flag) or "/models--" in mount or any(path in mount for path in paths):
            return "weights"
        if len(images) > 1 and any(f"/caches/{image}/" in mount for image in images):
            return "image"
        return "arguments"

    return class_of


def _comparable(container: Mapping[str, Any]) -> list[Flag]:
    """The flags of its command that are compared here."""
    name = str(container.get("name"))
    argv = [str(word).replace(name, "NAME") for word in container.get("argv", []) if word != container.get("image")]
    return [flag for flag in _grouped(argv) if flag[0] not in SKIPPED]


def _flags(
    label: str, old: Sequence[Flag], new: Sequence[Flag], class_of: Callable[[Flag], Class]
) -> Iterator[tuple[Class, str]]:
    yield from ((class_of(words), f"{label} - {_joined(words)}") for words in old if words not in new)
    yield from ((class_of(words), f"{label} + {_joined(words)}") for words in new if words not in old)


def _grouped(argv: Sequence[str]) -> list[Flag]:
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


def _words(label: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[str]:
    """What a list has lost and gained; both whole where only the order differs."""
    lines = [f"{label} - {word}" for word in old if word not in new]
    lines += [f"{label} + {word}" for word in new if word not in old]
    yield from lines or [f"{label}: {_shown(old)} → {_shown(new)}"]


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return _joined(value) if isinstance(value, list) else str(value)


def _joined(words: Sequence[Any]) -> str:
    return shlex.join(str(word) for word in words) or "none"


def _secret(name: str) -> str:
    """What people call a variable with a secret."""
    return f"API key ({name})" if name.endswith("_API_KEY") else name


def _short(image: Any) -> str:
    return str(image).removeprefix("sha256:")[:12] if image else "none"


def _groups(plan: Mapping[str, Any]) -> str:
    return " | ".join(", ".join(group) for group in plan.get("groups", [])) or "none"
