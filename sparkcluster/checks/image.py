"""Checks of the image and of the engine in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.engine import engine_of, has_token
from sparkcluster.facts.model import Image, Unread
from sparkcluster.topology import parallel

ARCHITECTURES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}


@check("IMG-001", "Every node has the same image")
def same(context: Context) -> Iterator[Seen]:
    """Ranks of different builds end in `Version mismatch`, or in answers that are wrong."""
    found = dict(_images(context))
    marks = {name: _mark(image) for name, image in found.items()}
    common = Counter(marks.values()).most_common(1)
    for name, mark in marks.items():
        if mark != common[0][0]:
            reference = str(context.spec.playbook.image)
            yield Seen(
                "error",
                name,
                f"{name} has another build of {reference} than the others",
                f"image ID {found[name].id[:19]}",
                (f"ssh {name} docker rmi {reference}", "sparkcluster up again, which brings the right one"),
            )


@check("IMG-002", "The image is built for the node's processor")
def architecture(context: Context) -> Iterator[Seen]:
    """Another architecture ends with `exec format error` before the first log line."""
    for name, image in _images(context):
        node = context.facts[name].architecture
        built = image.architecture
        if built and ARCHITECTURES.get(built, built) != ARCHITECTURES.get(node, node):
            wanted = ARCHITECTURES.get(node, node)
            yield Seen(
                "error",
                name,
                f"the image on {name} is built for {built}, the node is {node}",
                image.reference,
                (f"docker pull --platform linux/{wanted} {image.reference}",),
            )


@check("IMG-003", "The image holds the engine")
def engine(context: Context) -> Iterator[Seen]:
    """An image without vLLM, or without a Python that runs, cannot become a rank."""
    if not context.docker:
        for name, facts in context.facts.items():
            if facts.engine is None or isinstance(facts.engine, Unread) or not facts.engine.vllm_version:
                seen = facts.engine.unread if isinstance(facts.engine, Unread) else "no vLLM beside it"
                yield Seen(
                    "error",
                    name,
                    f"the Python of runtime process on {name} has no vLLM",
                    seen,
                    ("set runtime.python in the inventory to a Python that has it",),
                )
        return
    for name, image in _images(context):
        if isinstance(image.inside, Unread):
            summary, seen = f"the image {image.reference} on {name} runs no Python", image.inside.unread
        elif image.inside is not None and not image.inside.vllm_version:
            summary, seen = f"the image {image.reference} on {name} holds no vLLM", image.inside.python
        else:
            continue
        yield Seen("error", name, summary, seen, ("set image in the playbook to one with vLLM",))


@check("IMG-004", "Ray asks its members for a token")
def token(context: Context) -> Iterator[Seen]:
    """A Ray before 2.52 has no token: whoever reaches the interconnect can run commands on every node."""
    for group in context.topology.groups:
        found = engine_of(context.facts[group.head.name])
        if found is None or found.ray_version is None:
            continue
        executor = parallel.executor(context.spec.playbook, found, nodes=group.size, bring_ray=False)
        if executor == "ray" and not has_token(found, brought=False):
            yield Seen(
                "warning",
                group.head.name,
                f"Ray {found.ray_version} of group {group.name} knows no token",
                found.ray_version,
                ("use an image with Ray 2.52 or newer, or executor: native in the playbook",),
            )


def _images(context: Context) -> Iterator[tuple[str, Image]]:
    """Nodes that have the image; where it is missing it is staged before the launch."""
    if context.docker:
        for name, facts in context.facts.items():
            if isinstance(facts.image, Image):
                yield name, facts.image


def _mark(image: Image) -> str:
    """What is the same for one build in any image store: its layers, else its digest or ID."""
    return " ".join(image.layers) if image.layers else image.digest or image.id
