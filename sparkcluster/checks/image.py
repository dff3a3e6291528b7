"""Checks of the image and of the engine in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from sparkcluster.checks.compare import outliers
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.checks.wording import listed
from sparkcluster.facts.engine import builds, engine_of, has_token
from sparkcluster.facts.model import EngineFacts, Image, Unread
from sparkcluster.topology import parallel

ARCHITECTURES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}
STAGE = "sparkcluster stage INVENTORY image"


@check(
    "IMG-001",
    "Every node has the same image",
    needs=("image",),
    scope="container",
    source="ray-project: `Version mismatch`",
    remedy="docker rmi IMAGE on the node that differs, then sparkcluster stage INVENTORY image",
)
def same(context: Context) -> Iterator[Seen]:
    """Ranks of different builds end in `Version mismatch`, or in answers that are wrong.

    Builds are told apart by the hash of their configuration, which holds layers, environment and entry point; on
    containerd's image store, which calls one build by several IDs, by these themselves. `up` and `stage` replace
    what differs by what the head of the group has.
    """
    found = dict(_images(context))
    marks = builds({name: context.facts[name] for name in found})
    common = Counter(marks.values()).most_common(1)
    for name, mark in marks.items():
        if mark != common[0][0]:
            reference = str(context.spec.playbook.image)
            others = [other for other, one in marks.items() if one == common[0][0]]
            alike = found[name].layers == found[others[0]].layers and found[name].layers
            yield Seen(
                name,
                f"{name} has another build of {reference} than the others",
                f"image ID {found[name].id[:19]}, on {listed(others)} {found[others[0]].id[:19]}"
                f"{'; layers are the same, environment or entry point are not' if alike else ''}",
                (f"docker rmi --force {reference}", STAGE),
            )


@check(
    "IMG-002",
    "The image is built for the node's processor",
    scope="container",
    source="docs.docker.com, multi-platform images",
    remedy="docker pull --platform linux/arm64 IMAGE",
)
def architecture(context: Context) -> Iterator[Seen]:
    """The container ends with `exec format error` before the first log line."""
    for name, image in _images(context):
        node, built = context.facts[name].architecture, image.architecture
        if foreign(context, name, image):
            wanted = ARCHITECTURES.get(node, node)
            yield Seen(
                name,
                f"the image on {name} is built for {built}, the node is {node}",
                image.reference,
                (f"docker pull --platform linux/{wanted} {image.reference}",),
            )


def foreign(context: Context, name: str, image: Image) -> bool:
    """Whether an image says that it is built for another processor than the node's."""
    node, built = context.facts[name].architecture, image.architecture
    return bool(built) and ARCHITECTURES.get(built or "", built) != ARCHITECTURES.get(node, node)


@check(
    "IMG-003",
    "The image holds the engine",
    source="general",
    remedy="image in the playbook; with runtime process, runtime.python in the inventory",
)
def engine(context: Context) -> Iterator[Seen]:
    """No rank can be made of an image without the engine, or without a Python that runs.

    An image for another processor runs nothing at all: that is IMG-002. One that could not be asked in time is
    IMG-009.
    """
    title = context.engine.title
    if not context.docker:
        for name, facts in context.facts.items():
            if facts.engine is None or isinstance(facts.engine, Unread) or not facts.engine.version:
                seen = facts.engine.unread if isinstance(facts.engine, Unread) else f"no {title} beside it"
                yield Seen(
                    name,
                    f"the Python of runtime process on {name} has no {title}",
                    seen,
                    ("set runtime.python in the inventory to a Python that has it",),
                )
        return
    for name, image in _images(context):
        if foreign(context, name, image):
            continue
        if isinstance(image.inside, Unread):
            if not answered(image.inside):
                continue
            summary, seen = f"the image {image.reference} on {name} runs no Python", image.inside.unread
        elif image.inside is not None and not image.inside.version:
            summary, seen = f"the image {image.reference} on {name} has no {title}", image.inside.python
        else:
            continue
        yield Seen(name, summary, seen, (f"set image in the playbook to one with {title}",))


@check(
    "IMG-004",
    "Ray asks its members for a token",
    severity="warning",
    scope="interconnect",
    source="docs.ray.io, Ray token authentication: since 2.52",
    remedy="an image with Ray 2.52 or newer, or executor: native",
)
def token(context: Context) -> Iterator[Seen]:
    """Whoever reaches the interconnect can run commands on every node: a Ray before 2.52 has no token."""
    for group in context.topology.groups:
        found = engine_of(context.facts[group.head.name])
        if found is None or found.ray_version is None:
            continue
        executor = parallel.executor(context.spec.playbook, found, nodes=group.size, bring_ray=False)
        if executor == "ray" and not has_token(found, brought=False):
            yield Seen(
                group.head.name,
                f"Ray {found.ray_version} of group {group.name} knows no token",
                found.ray_version,
                ("use an image with Ray 2.52 or newer, or executor: native in the playbook",),
            )


@check(
    "IMG-005",
    "The engine's versions are the same on every node",
    scope="interconnect",
    source="ray-project: `Version mismatch: The cluster was started with …`",
    remedy="the same packages beside runtime.python of every node",
)
def versions(context: Context) -> Iterator[Seen]:
    """Ray refuses its members with `Version mismatch`, and ranks of unlike engines wait for one another for ever.

    Told of engines that lie on the nodes themselves (runtime `process`): one image holds the same everywhere, and
    that it is one is IMG-001. An unlike torch or NCCL alone is a warning.
    """
    if context.docker:
        return
    for group in context.topology.groups:
        engines = {name: one for name in group.names if (one := engine_of(context.facts[name])) is not None}
        unlike: dict[str, list[str]] = {}
        grave: set[str] = set()
        for what, values in _packages(engines, context.engine.title).items():
            for outlier in outliers(values):
                others = f"{outlier.expected} on {listed(outlier.others)}"
                unlike.setdefault(outlier.node, []).append(f"{what} {outlier.value}, {others}")
                if what in {context.engine.title, "Ray", "Python"}:
                    grave.add(outlier.node)
        for name, seen in unlike.items():
            yield Seen(
                name,
                f"the engine of {name} is unlike that of the others",
                "; ".join(seen),
                (
                    f"install the same versions beside {engines[name].python}",
                    "or set runtime.python in the inventory to a Python that is the same on every node",
                ),
                severity="error" if name in grave else "warning",
            )


@check(
    "IMG-006",
    "Ray is there where the ranks meet in it",
    scope="interconnect",
    remedy="nothing with containers: it is brought; executor: native does without",
)
def ray(context: Context) -> Iterator[Seen]:
    """The worker ends with `ray: command not found` where the image has none and nobody brings it.

    `up` and `stage` bring a Ray that fits to every node, as a file beside the image, and never install anything in
    it. With runtime `process` nothing is brought.
    """
    if context.spec.playbook.executor == "native":
        return
    for group in context.topology.groups:
        for name in group.names if group.size > 1 else ():
            found = engine_of(context.facts[name])
            if found is None or not found.version or found.ray_version is not None:
                continue
            insists = context.spec.playbook.executor == "ray"
            if not context.docker and insists:
                yield Seen(
                    name,
                    f"{name} has no Ray, and the playbook insists on it",
                    f"beside {found.python}",
                    (f"{found.python} -m pip install 'ray>=2.52'", "or set executor: auto in the playbook"),
                )
            elif context.docker and not context.facts[name].rays:
                yield Seen(
                    name,
                    f"the image on {name} has no Ray: up brings one that fits"
                    if insists
                    else f"the image on {name} has no Ray: up brings one, or uses the engine's own multi-node backend",
                    f"Python {found.python_version}, {found.platform}",
                    ("sparkcluster stage INVENTORY image   brings it now", "or set executor: native in the playbook"),
                    severity="info",
                )


@check(
    "IMG-007",
    "The image knows the flags of the playbook",
    remedy="the flag as this image calls it, or an image that knows it",
)
def flags(context: Context) -> Iterator[Seen]:
    """The engine ends with `unrecognized arguments` as soon as it reads its command line.

    The image itself is asked which flags its engine takes, once, and the answer is kept under the image's ID.
    """
    playbook = context.spec.playbook
    if playbook.command is not None:
        return
    for nodes, known in _asked(context, "flags"):
        for written, value in playbook.args.items():
            # A part of a JSON flag stands behind a dot, as --compilation-config.mode.
            name = written.replace("_", "-").partition(".")[0]
            if value is None or {name, f"no-{name}"} & known or name.removeprefix("no-") in known:
                continue
            near = get_close_matches(name, known, n=1)
            other = f"write {near[0]} in place of {written}" if near else f"take {written} out, or use another image"
            yield Seen(
                nodes,
                f"the image knows no flag --{name}",
                f"args.{written} of playbook {playbook.name}",
                (context.engine.gone_argument(name) or f"{other} in args of the playbook",),
                ("args", written),
            )


@check(
    "IMG-008",
    "The image knows the parsers of the playbook",
    remedy="a parser that this image has",
)
def parsers(context: Context) -> Iterator[Seen]:
    """The engine ends with `invalid tool call parser` before it loads the model, or with a KeyError.

    A parser that a plugin of the playbook brings along is not judged.
    """
    args = {name.replace("_", "-"): (name, value) for name, value in context.spec.playbook.args.items()}
    for flag, field, plugin in (
        ("tool-call-parser", "tool_parsers", "tool-parser-plugin"),
        ("reasoning-parser", "reasoning_parsers", "reasoning-parser-plugin"),
    ):
        written, value = args.get(flag, ("", None))
        if not isinstance(value, str) or args.get(plugin, ("", None))[1]:
            continue
        for nodes, known in _asked(context, field):
            if value not in known:
                near = get_close_matches(value, known, n=1)
                yield Seen(
                    nodes,
                    f"the image knows no {flag} {value}",
                    f"it knows {', '.join(sorted(known))}",
                    (f"write {flag}: {near[0]}" if near else f"write one of these as {flag} in args of the playbook",),
                    ("args", written),
                )


@check(
    "IMG-009",
    "The image was asked what it holds",
    severity="warning",
    scope="container",
    source="general",
    remedy="sparkcluster stage INVENTORY image",
)
def asked(context: Context) -> Iterator[Seen]:
    """Whether it holds the engine and Ray, and knows flags and parsers of the playbook, shows when it is staged.

    Nothing is pulled to find out. `up` brings the image, asks it, and stops where it does not fit. A warning where
    it was asked and did not answer in time: its Docker engine or its disk is very slow.
    """
    for name, facts in context.facts.items():
        inside = facts.image.inside if isinstance(facts.image, Image) else None
        if isinstance(inside, Unread) and not answered(inside):
            yield Seen(
                name,
                f"the image on {name} did not say what it holds",
                inside.unread,
                ("sparkcluster preflight INVENTORY   asks it again", "docker ps", "uptime"),
            )
        elif isinstance(facts.image, Image) and facts.image.inside is None:
            yield Seen(
                name,
                f"the image on {name} was never asked what it holds",
                facts.image.reference,
                ("sparkcluster plan INVENTORY   asks it",),
                severity="info",
            )
        elif facts.image is None and context.spec.playbook.image is not None:
            yield Seen(
                name,
                f"the image is not on {name} yet: up brings it",
                f"{context.spec.playbook.image}; engine, flags and parsers could not be asked for",
                (f"{STAGE}   brings it now",),
                severity="info",
            )


def answered(unread: Unread) -> bool:
    """Whether an image that could not be read has run at all: an engine that did not answer in time says nothing."""
    return re.search(r"no answer within|timed? ?out|outlived|lost|refused", unread.unread.lower()) is None


def _images(context: Context) -> Iterator[tuple[str, Image]]:
    """Nodes that have the image; where it is missing it is staged before the launch."""
    if context.docker:
        for name, facts in context.facts.items():
            if isinstance(facts.image, Image):
                yield name, facts.image


def _packages(engines: Mapping[str, EngineFacts], title: str) -> dict[str, dict[str, str | None]]:
    """Versions by package and node; of Python what its packages are built for."""
    return {
        title: {name: one.version for name, one in engines.items()},
        "Ray": {name: one.ray_version for name, one in engines.items()},
        "Python": {name: ".".join(re.findall(r"\d+", one.python_version)[:2]) for name, one in engines.items()},
        "torch": {name: one.torch_version for name, one in engines.items()},
        "NCCL": {name: one.nccl_version for name, one in engines.items()},
    }


def _asked(context: Context, field: str) -> Iterator[tuple[str | None, frozenset[str]]]:
    """What the engines answered to one question, each answer once: with its node, or None where all say the same."""
    answers: dict[frozenset[str], list[str]] = {}
    for name, facts in context.facts.items():
        found = engine_of(facts)
        values = None if found is None else getattr(found, field)
        if values:
            answers.setdefault(frozenset(values), []).append(name)
    for known, names in answers.items():
        if len(answers) == 1:
            yield None, known
        else:
            for name in names:
                yield name, known
