"""What of an image travels from one node to another, and what is said of that before it starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image, Layers
from sparkcluster.facts.layers import left_out, shared
from sparkcluster.facts.model import Facts
from sparkcluster.report import share, size


def announced(image: Image, source: str, target: str, facts: dict[str, Facts], targets: Sequence[str] = ()) -> str:
    """Which part of ``image`` the node ``target`` gets from ``source``, and why it is the whole if it is.

    All ``targets`` get the same.
    """
    whole = image.size_bytes
    going = left_out(image, facts[source], [facts[node] for node in targets or (target,)])
    there = sum(each is not None for each in shared(image, [facts[target]]))
    if going:
        rest, most = max(0, whole - sum(going.values())), "" if all(going.values()) else "at most "
        of = f"{most}{share(rest, whole)} of the image"
        return f"gets {of}: it has {there} of {len(image.layers)} layers"
    why = "it has none of its layers"
    lacking = [node for node in targets if not left_out(image, facts[source], [facts[node]])]
    sender, receiver = (read(facts[name].docker) for name in (source, target))
    files = (read(facts[source].layers) or Layers()).files
    if there and lacking and target not in lacking:
        why = f"{', '.join(lacking)} gets it as well, and has none of its layers"
    elif there and files and all(file.digest for file in files):
        why = f"{target} has its layers compressed otherwise"
    elif there and sender is not None:
        why = f"Docker {sender.version} on {source} does not say which layers it sends"
    elif receiver is not None and receiver.containerd_store:
        why = f"containerd's image store on {target} does not say which layers it has"
    return f"the whole image, {size(whole)}: {why}"
