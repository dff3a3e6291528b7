"""A plan as lines for people: briefly, or whole. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.plan.cost import Difference
from sparkcluster.plan.docker_run import INSIDE, mounts
from sparkcluster.spec import Spec, library, powers

NOW = {
    "empty": "is down: up starts it",
    "started": "is starting: up waits for its answer",
    "serving": "runs as planned: up asks it, and leaves it if it answers",
    "other": "runs, and not as planned: up refuses if it answers; --replace restarts it",
    "remains": "has ended, or in part: up removes what is left, and starts it",
    "taken": "has ranks here with another state_dir: up refuses",
}
"""What a group is in now, by ``release.states.State``, and what ``up`` does then."""


def brief(document: Mapping[str, Any]) -> Iterator[str]:
    """Per node what distinguishes it: mounts, ports, and the variables that are not the same on all nodes."""
    nodes: Mapping[str, Any] = document["nodes"]
    yield _headline(document)
    yield f"image  {document['image']}" if document["image"] else "image  none, runtime process"
    for name, endpoint in document["endpoints"].items():
        yield f"{name}  {endpoint}"
    same = _same(node["env"] for node in nodes.values())
    mounted = {
        name: [line for each in node["containers"] for line in _mounts(each["argv"])] for name, node in nodes.items()
    }
    everywhere = [line for line in next(iter(mounted.values()), []) if all(line in lines for lines in mounted.values())]
    yield from everywhere
    for name, node in nodes.items():
        yield ""
        yield _rank(name, node)
        yield from (line for line in mounted[name] if line not in everywhere)
        for container in node["containers"]:
            found = ", ".join(f"{port} ({what})" for what, port in ports(container["launcher"]))
            if found:
                yield f"  ports  {found}"
        for variable, value in sorted(node["env"].items()):
            if variable not in same:
                yield f"  env    {variable}={value}"
        for variable in node["secrets"]:
            yield f"  env    {variable}=(secret)"
    yield ""
    if same:
        yield f"{len(same)} variables are the same on every node"


def _mounts(argv: Iterable[str]) -> Iterator[str]:
    """What is mounted beside the launcher's own files."""
    for source, target, how in mounts(argv):
        if not target.startswith(f"{INSIDE}/"):
            yield f"  mount  {target}{how}{'' if source == target else f' from {source}'}"


def whole(document: Mapping[str, Any]) -> Iterator[str]:
    """Complete commands and variables, which can be pasted."""
    yield _headline(document)
    for name, node in document["nodes"].items():
        yield ""
        yield _rank(name, node)
        for variable, value in sorted(node["env"].items()):
            yield f"  {variable}={value}"
        for variable in node["secrets"]:
            yield f"  {variable}=(secret)"
        for container in node["containers"]:
            yield f"  $ {shlex.join(container['argv'])}"
            launcher = container["launcher"]
            if ray := (launcher.get("ray") or {}).get("start"):
                yield f"    inside: {shlex.join(ray)}"
            for line in launcher.get("setup", []):
                yield f"    inside: {line}"
            if launcher.get("engine"):
                yield f"    inside: {shlex.join(launcher['engine'])}"


def beside(spec: Spec, differing: Sequence[Difference]) -> Iterator[str]:
    """What is to be known beside the plan: what would change, and what the playbook and the inventory do."""
    if differing:
        yield "it differs from what runs:"
    yield from (f"  {line}" for each in differing for line in each.shown())
    yield from (f"after it is ready, on this machine: {shlex.join(each)}" for each in spec.inventory.after_ready)
    yield from library.shadowing(spec) + powers.lines(spec.playbook, spec.inventory)


def _headline(document: Mapping[str, Any]) -> str:
    return f"cluster {document['cluster']}  plan {document['hash'][:12]}  model {document['model']}"


def _rank(name: str, node: Mapping[str, Any]) -> str:
    return f"{name}  rank {node['rank']} ({node['role']} of {node['group']})"


def _same(environments: Iterable[Mapping[str, str]]) -> set[str]:
    """Variables that every node has, with the same value; with one node all of them are worth showing."""
    found = list(environments)
    if len(found) < 2:
        return set()
    return {name for name, value in found[0].items() if all(env.get(name) == value for env in found)}


def ports(launcher: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What listens on which port of a rank, by its commands: of Ray, and of the engine."""
    commands = {"Ray": (launcher.get("ray") or {}).get("start") or [], "engine": launcher.get("engine") or []}
    for what, words in commands.items():
        for at, word in enumerate(words):
            flag, equals, value = word.partition("=")
            if flag.endswith("port") and flag.startswith("--"):
                number = value if equals else words[at + 1] if at + 1 < len(words) else ""
                name = flag.removeprefix("--").removesuffix("port").strip("-").replace("-", " ")
                yield f"{what} {name}".strip(), number
