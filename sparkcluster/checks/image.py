"""Checks of the image: its engine and the engine's arguments, its libraries for RDMA, and its NCCL version."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from sparkcluster import engines
from sparkcluster.checks.check import (
    PREFLIGHT,
    Context,
    Seen,
    check,
    container_check,
    container_node_check,
    image_check,
    interconnect_check,
    node_check,
)
from sparkcluster.checks.compare import listed
from sparkcluster.facts.base import Unread
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.engine import engine_of, expected_images, has_token
from sparkcluster.facts.model import Facts
from sparkcluster.findings import edit, here, on_node
from sparkcluster.printable import shell
from sparkcluster.suggest import closest
from sparkcluster.topology import parallel

ARCHITECTURES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}
STAGE = here("sparkcluster stage INVENTORY image")
BRINGS = dataclasses.replace(STAGE, note="stages it now")
NEWER_RAY = edit("use an image with Ray 2.52 or newer, or executor: native in the playbook")


@container_check(
    "IMG-001",
    "Every node has the same image",
    needs=("image",),
    source="ray-project: `Version mismatch`",
    remedy=(on_node("docker rmi --force {image}"), STAGE),
)
def same(context: Context) -> Iterator[Seen]:
    """Ranks of different builds exit with `Version mismatch`, or give wrong answers.

    Builds are compared by layers, environment and entry point, since containerd's image store uses different IDs. The
    expected build is the one named by a digest or recorded by a release, else the build on the head. `up` and `stage`
    replace a different image, after a question unless the expected build was staged before.
    """
    right = expected_images(context.spec, context.facts, context.topology.by_rank or list(context.facts))
    first = next(iter(right.values()), None)
    for name, image in context.images():
        if name not in right:
            reference = str(context.spec.reference)
            same_layers = first is not None and first.layers == image.layers
            yield Seen(
                f"{name} has a different build of {reference} than {listed(right or ['recorded'])}",
                f"image ID {image.id[:19]}{f', on {listed(right)} {first.id[:19]}' if first else ''}"
                f"{'; same layers, but different environment or entry point' if same_layers else ''}",
                node=name,
                values={"image": reference},
            )


@image_check(
    "IMG-002",
    "The image is built for the node's processor",
    source="docs.docker.com, multi-platform images",
    remedy=[on_node("docker pull --platform linux/{platform} {image}")],
)
def architecture(context: Context, name: str, image: Image) -> Iterator[Seen]:
    """The container exits with `exec format error` before the first log line."""
    node, built = context.facts[name].architecture, image.architecture
    if foreign(context, name, image):
        values = {"platform": ARCHITECTURES.get(node, node), "image": image.reference}
        yield Seen(f"the image on {name} is built for {built}, the node is {node}", image.reference, values=values)


def foreign(context: Context, name: str, image: Image) -> bool:
    """Whether an image is built for a different processor than the node's."""
    node, built = context.facts[name].architecture, image.architecture
    return bool(built) and ARCHITECTURES.get(built or "", built) != ARCHITECTURES.get(node, node)


@node_check(
    "IMG-003",
    "The image contains the engine",
    source="general",
    remedy=[
        edit("set image in the playbook (runtime process: runtime.python in the inventory) to one that has the engine")
    ],
)
def engine(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """No rank can start from an image without the engine, or without a Python that runs.

    An image for another processor is IMG-002. An image that could not be read in time is IMG-009.
    """
    title = context.engine.title
    if not context.docker:
        if not isinstance(facts.engine, EngineFacts) or not facts.engine.version:
            seen = facts.engine.unread if isinstance(facts.engine, Unread) else f"no {title} in its environment"
            yield Seen(f"the Python of runtime process on {name} has no {title}", seen)
    elif isinstance(facts.image, Image) and not foreign(context, name, facts.image):
        image, inside = facts.image, facts.image.inside
        if isinstance(inside, Unread) and answered(inside):
            yield Seen(f"the image {image.reference} on {name} runs no Python", inside.unread)
        elif isinstance(inside, EngineFacts) and not inside.version:
            yield Seen(f"the image {image.reference} on {name} has no {title}", inside.python)


@interconnect_check(
    "IMG-004",
    "Ray requires a token",
    source="docs.ray.io, Ray token authentication: since 2.52",
    remedy=[NEWER_RAY],
)
def token(context: Context) -> Iterator[Seen]:
    """Anyone who reaches Ray can run commands on every node: Ray before 2.52 has no token.

    If the node or the image has a C compiler, this is a warning: sparkcluster builds a library there that restricts Ray
    to the interconnect. Without a compiler, Ray would listen on every network of the node, and `up` does not start it.
    """
    for group in context.topology.groups:
        found = engine_of(context.facts[group.head.name])
        if found is None or found.ray_version is None:
            continue
        executor = parallel.executor(context.spec.playbook, found, nodes=group.size, bring_ray=False)
        if executor != "ray" or has_token(found, brought=False):
            continue
        yield Seen(
            f"Ray {found.ray_version} of {context.called(group)} has no token authentication",
            found.ray_version,
            severity="warning",
            node=group.head.name,
        )
        for name in group.names:
            inside = engine_of(context.facts[name])
            if not context.facts[name].compiler and inside is not None and not inside.compiler:
                yield Seen(
                    f"Ray {found.ray_version} has no token and would listen on every network of {name}",
                    "no C compiler on the node or in the image to build the library that restricts it",
                    (on_node("sudo apt-get install gcc"), dataclasses.replace(NEWER_RAY, instead=True)),
                    node=name,
                )


@interconnect_check(
    "IMG-006",
    "Ray is present where the ranks need it",
    severity="info",
    remedy=(BRINGS, edit("set executor: native in the playbook", instead=True)),
)
def ray(context: Context) -> Iterator[Seen]:
    """The worker exits with `ray: command not found` if neither the image nor sparkcluster provides Ray.

    `up` and `stage` copy a matching Ray to every node, as files outside the image; the image is not changed. With
    runtime `process` nothing is copied, and a playbook that requires Ray cannot be planned.
    """
    if not context.docker or context.spec.playbook.executor == "native" or "ray" not in context.engine.executors:
        return
    required = context.spec.playbook.executor == "ray"
    backend = "a matching version" if required else "it, or uses the engine's own multi-node backend"
    for group in context.topology.groups:
        for name in group.names if group.size > 1 else ():
            found = engine_of(context.facts[name])
            if found and found.version and found.ray_version is None and not context.facts[name].rays:
                seen = f"Python {found.python_version}, {found.platform}"
                yield Seen(f"the image on {name} has no Ray: up copies {backend}", seen, node=name)


@check(
    "IMG-007",
    "The image has the flags and parsers of the playbook",
    remedy="use the name of the flag or parser in this image, or an image that has it",
)
def flags(context: Context) -> Iterator[Seen]:
    """The engine exits with `unrecognized arguments` or `invalid tool call parser` before it loads the model.

    Flags and parsers are read once from the image and cached by its ID. Parsers from plugins of the playbook are not
    checked.
    """
    playbook = context.spec.playbook
    for nodes, supported in _supported(context, "flags") if playbook.command is None else ():
        for written, value in playbook.args.items():
            # A dot separates a part of a JSON flag, as --compilation-config.mode.
            name = written.replace("_", "-").partition(".")[0]
            if value is None or {name, f"no-{name}"} & supported or name.removeprefix("no-") in supported:
                continue
            near = closest(name, supported)
            other = f"write {near} instead of {written}" if near else f"remove {written}, or use another image"
            remedy = edit(context.engine.gone_argument(name) or other)
            seen = f"args.{written} of playbook {playbook.name}"
            yield Seen(f"the image has no flag --{name}", seen, [remedy], ("args", written), node=nodes)
    args = {name.replace("_", "-"): (name, value) for name, value in playbook.args.items()}
    for flag, field, plugin in (
        ("tool-call-parser", "tool_parsers", "tool-parser-plugin"),
        ("reasoning-parser", "reasoning_parsers", "reasoning-parser-plugin"),
    ):
        written, value = args.get(flag, ("", None))
        if not isinstance(value, str) or args.get(plugin, ("", None))[1]:
            continue
        for nodes, supported in _supported(context, field):
            if value not in supported:
                near = closest(value, supported)
                remedy = edit(f"write {flag}: {near or 'one of these'} in args of the playbook")
                seen = f"it has {', '.join(sorted(supported))}"
                yield Seen(f"the image has no {flag} {value}", seen, [remedy], ("args", written), node=nodes)


@check(
    "SPEC-013",
    "Arguments are those of the engine",
    stage="written",
    severity="error",
    source="the tables of arguments in sparkcluster/engines",
    remedy="write the engine's own argument, or remove it",
)
def of_another_engine(context: Context) -> Iterator[Seen]:
    """An argument of another engine makes this engine fail at startup, or has no effect.

    Compared with the tables of all engines. An argument that is in none of them may be new, and is not reported.
    """
    if context.engine.judges_arguments:
        return
    for name in context.spec.playbook.args:
        found = engines.foreign(context.engine, name)
        if found is not None:
            other, own = found
            remedy = [edit(own or f"remove it: {context.engine.title} has none")]
            summary = f"{name} is an argument of {other.title}, and not of {context.engine.title}"
            yield Seen(summary, f"args.{name}", remedy, at=("args", name))


@container_node_check(
    "IMG-009",
    "The content of the image was read",
    severity="warning",
    source="general",
    remedy=[BRINGS],
)
def content_read(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Its engine, Ray version, flags and parsers are unknown until it is staged.

    Checks pull nothing. `up` copies or pulls the image, reads it, and stops if it does not fit. A warning if reading
    took too long, which means that the Docker engine or the disk is very slow.
    """
    inside = facts.image.inside if isinstance(facts.image, Image) else None
    if isinstance(inside, Unread) and not answered(inside):
        yield Seen(
            f"the image on {name} could not be read in time",
            inside.unread,
            (dataclasses.replace(PREFLIGHT, note="retries"), on_node("docker ps"), on_node("uptime")),
        )
    elif facts.image is None and context.spec.reference is not None:
        yield Seen(
            f"the image is not on {name} yet: up stages it",
            f"{context.spec.reference}; engine, flags and parsers are unknown",
            severity="info",
        )


def answered(unread: Unread) -> bool:
    """Whether the image ran but failed; a time-out or lost connection does not say anything about the image."""
    return re.search(r"no answer within|timed? ?out|outlived|lost|refused", unread.unread.lower()) is None


def _supported(context: Context, field: str) -> Iterator[tuple[str | None, frozenset[str]]]:
    """Values of ``field`` with the node that has them; None as the node if all nodes have the same."""
    answers: dict[frozenset[str], list[str]] = {}
    for name, facts in context.facts.items():
        found = engine_of(facts)
        values = None if found is None else getattr(found, field)
        if values:
            answers.setdefault(frozenset(values), []).append(name)
    for supported, names in answers.items():
        if len(answers) == 1:
            yield None, supported
        else:
            for name in names:
                yield name, supported


NCCL_OF_RINGS = (2, 30, 7)
_VERBS = {"no libibverbs": "no libibverbs", "no mlx5": "no libibverbs provider for ConnectX (mlx5)"}
_RDMA_PACKAGES = "libibverbs1 ibverbs-providers"


@container_check(
    "IMG-011",
    "The image has the RDMA libraries",
    source="NVIDIA/nvidia-container-toolkit#1877, dstackai/dstack#2712; rdma-core: a provider and its configuration",
    remedy="use an image with libibverbs1 and ibverbs-providers",
)
def verbs(context: Context) -> Iterator[Seen]:
    """NCCL logs `Failed to open libibverbs.so` or `No device found` and falls back to TCP: 1 to 3 GB/s instead of 22.

    CUDA images for ARM servers do not contain these libraries; libraries on the node are not used.
    `allow: [{code: IMG-011, reason: …}]` in the playbook accepts TCP.
    """
    missing: dict[str, list[str]] = {}
    for name, member in context.topology.members.items():
        found = engine_of(context.facts[name])
        if member.hcas and found is not None and found.verbs in _VERBS:
            missing.setdefault(found.verbs, []).append(name)
    for verdict, names in missing.items():
        reference = str(context.spec.reference)
        lines = [f"FROM {reference}", "USER root", f"RUN apt-get update && apt-get install -y {_RDMA_PACKAGES}"]
        lines += [f"USER {image.user}" for name, image in context.images() if name == names[0] and image.user]
        printed = shell(r"printf '%s\n'", *lines)
        tag = re.sub(r"[^a-z0-9]+", "-", reference.partition("@")[0].rpartition("/")[2].lower()).strip("-")
        yield Seen(
            f"the image has {_VERBS[verdict]}: NCCL would use TCP",
            f"{reference} on {listed(names)}",
            (
                here(f"{printed} | docker build --tag {tag}:rdma -"),
                edit(f"set image: {tag}:rdma in the playbook, then {STAGE.text}"),
            ),
        )


@interconnect_check(
    "IMG-012",
    "NCCL can route between the subnets of a ring",
    source="NVIDIA/nccl v2.30.7-1, src/transport/net_ib/connect.cc: NCCL_IB_SUBNET_AWARE_ROUTING is new there",
    remedy=[edit("use an image with NCCL 2.30.7 or newer, or a switch, or two Sparks")],
)
def ring_nccl(context: Context) -> Iterator[Seen]:
    """Ranks hang in the first collective: an older NCCL pairs HCAs that no cable connects, since it ignores subnets.

    Checks the library that torch loads, which may differ from the installed package. For an older build with this
    change, write `allow: [{code: IMG-012, reason: …}]` in the playbook. A warning if the version is unknown, or if the
    playbook loads its own NCCL.
    """
    own = next((name for name, value in context.spec.playbook.env.items() if "libnccl" in value), None)
    for group in context.topology.groups:
        versions: dict[str | None, list[str]] = {}
        for member in group.members if group.kind == "ring" else ():
            found = engine_of(context.facts[member.name])
            if member.hcas and found is not None:
                versions.setdefault(None if own else found.nccl_loaded, []).append(member.name)
        for version, names in versions.items():
            if version is None or tuple(map(int, re.findall(r"\d+", version)[:3])) < NCCL_OF_RINGS:
                yield Seen(
                    f"NCCL {version} cannot route between the subnets of a ring"
                    if version
                    else "the version of NCCL is unknown; a ring needs 2.30.7",
                    f"on {listed(names)}; {own} in env of the playbook" if own else f"on {listed(names)}",
                    severity=None if version else "warning",
                )
