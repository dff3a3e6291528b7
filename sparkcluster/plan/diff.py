"""The differences between two plans, as text with a class. Pure."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sparkcluster.plan.docker_run import mounts

# Environment is compared separately; the other options contain the release or plan hash, which always differ.
SKIPPED = ("--env", "--name", "--label", "--env-file")

Class = Literal["image", "weights", "arguments", "secrets", "addresses", "text"]
Flag = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A difference.

    Attributes:
        kind: the class; ``arguments`` covers everything without another class.
        text: one line.
        restarts: whether it needs a restart; false for a name that is not an argument of the ranks.
    """

    kind: Class
    text: str
    restarts: bool = True


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The lines of ``changes``."""
    return [change.text for change in changes(old, new)]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Differences between two plans in JSON form: of the recorded and of the requested release."""
    before: Mapping[str, Any] = old.get("nodes", {})
    after: Mapping[str, Any] = new.get("nodes", {})
    # A new model name means other weights, or only another name in the API.
    weights = [next((_launcher(node).get("model") for node in nodes.values()), None) for nodes in (before, after)]
    labels: Mapping[str, Class] = {"model": "weights" if weights[0] != weights[1] else "arguments", "image": "image"}
    found = [
        Change(kind, f"{label}: {old.get(label)} → {new.get(label)}", restarts=False)
        for label, kind in labels.items()
        if old.get(label) != new.get(label)
    ]
    if old.get("groups") != new.get("groups"):
        found.append(Change("arguments", f"groups: {_groups(old)} → {_groups(new)}"))
    found += [Change("arguments", f"{name}: leaves the cluster") for name in before if name not in after]
    found += [Change("arguments", f"{name}: joins the cluster") for name in after if name not in before]
    kept = [name for name in after if name in before]
    on: dict[tuple[Class, str], list[str]] = {}
    for name in kept:
        for line in _node(before[name], after[name]):
            on.setdefault(line, []).append(name)
    for (kind, text), names in on.items():
        where = "every node" if len(names) == len(kept) > 1 else ", ".join(names)
        found.append(Change(kind, f"{where}: {text}"))
    return found


def _node(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[Class, str]]:
    """One line per changed value, and per removed or added list entry."""
    class_of = _class_of(_container(old), _container(new))
    before, after = dict(_values(old)), dict(_values(new))
    for label in sorted(before.keys() | after.keys()):
        was, is_ = (each.get(label, "none" if label.startswith("mount ") else "unset") for each in (before, after))
        if was != is_:
            yield class_of(label, (was, is_)), f"{label}: {was} → {is_}"
    names, wanted = old.get("secrets", []), new.get("secrets", [])
    yield from (("secrets", f"{_secret(name)}: removed") for name in names if name not in wanted)
    yield from (("secrets", f"{_secret(name)}: added") for name in wanted if name not in names)
    had, has = _words(old), _words(new)
    for label, flag in (each for each in had if each not in has):
        yield class_of(label, flag), f"{label} - {_joined(flag)}"
    for label, flag in (each for each in has if each not in had):
        yield class_of(label, flag), f"{label} + {_joined(flag)}"
    for key, words in _launcher(old).items():
        now = _launcher(new).get(key)
        if key != "engine" and isinstance(words, list) and words != now and sorted(words) == sorted(now or ()):
            yield "arguments", f"{key}: {_joined(words)} → {_joined(now or ())}"


def _container(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container of a node's rank."""
    found: Mapping[str, Any] = node["containers"][0]
    return found


def _launcher(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its launcher document without ``victim``, which depends on other models on the node."""
    return {key: value for key, value in _container(node)["launcher"].items() if key != "victim"}


def _values(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Single values of a node's rank by display name."""
    yield "rank", str(node.get("rank"))
    yield "image", _short(_container(node).get("image"))
    named = {"env": node.get("env", {}), **_launcher(node)}
    for key, value in named.items():
        if isinstance(value, Mapping):
            yield from ((f"{key} {name}", _shown(each)) for name, each in value.items())
        elif not isinstance(value, list):
            yield key, _shown(value)
    for flag in _run(node):
        yield from ((f"mount {target}", f"{source}{how}") for source, target, how in mounts(flag))


def _words(node: Mapping[str, Any]) -> list[tuple[str, Flag]]:
    """List entries of a node's rank: flags of the engine and of ``docker run``, and entries of other lists."""
    lists = {key: value for key, value in _launcher(node).items() if isinstance(value, list)}
    found = [("engine", flag) for flag in _grouped(lists.pop("engine", ()))]
    found += [(key, (str(word),)) for key, words in lists.items() for word in words]
    return found + [("run", flag) for flag in _run(node) if not list(mounts(flag))]


def _run(node: Mapping[str, Any]) -> list[Flag]:
    """The options of ``docker run`` to compare."""
    container = _container(node)
    name = str(container.get("name"))
    argv = [str(word).replace(name, "NAME") for word in container.get("argv", []) if word != container.get("image")]
    return [flag for flag in _grouped(argv) if flag[0] not in SKIPPED]


def _class_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> Callable[[str, Sequence[str]], Class]:
    """Function that classifies a value or flag; values that contain a changed weights or image name get that class."""
    models = [container.get("launcher", {}).get("model") or {} for container in (old, new)]
    differing = {model.get(key) for model in models for key in model if models[0].get(key) != models[1].get(key)}
    paths = ["/models--", *(str(value) for value in differing if str(value).startswith("/"))]
    # As in cache directories made by plan.build.
    images = {re.sub(r"[^A-Za-z0-9]", "-", _short(container.get("image"))) for container in (old, new)}

    def class_of(label: str, words: Sequence[str]) -> Class:
        mounted = " ".join(words) if label.startswith("mount ") else ""
        if label.startswith("model ") or differing & set(words) or any(path in mounted for path in paths):
            return "weights"
        if label == "image" or (len(images) > 1 and any(f"/caches/{image}/" in mounted for image in images)):
            return "image"
        return "arguments"

    return class_of


def _grouped(argv: Sequence[str]) -> list[Flag]:
    """A command split into flags with their values."""
    found: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            found.append([])
        found[-1].append(word)
    return [tuple(words) for words in found if words]


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return _joined(value) if isinstance(value, list) else str(value)


def _joined(words: Sequence[Any]) -> str:
    return shlex.join(str(word) for word in words) or "none"


def _secret(name: str) -> str:
    """Display name of a secret variable."""
    return f"API key ({name})" if name.endswith("_API_KEY") else name


def _short(image: Any) -> str:
    return str(image).removeprefix("sha256:")[:12] if image else "none"


def _groups(plan: Mapping[str, Any]) -> str:
    return " | ".join(", ".join(group) for group in plan.get("groups", [])) or "none"
