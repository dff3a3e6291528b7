"""Checks of the weights on the nodes: completeness, equality, and content by SHA-256."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from sparkcluster.checks.check import UP, Context, Seen, check, node_check
from sparkcluster.checks.compare import abridged, common, listed
from sparkcluster.facts.base import Unread
from sparkcluster.facts.between import HashedFile
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import Foreign, Weights
from sparkcluster.findings import edit, here, on_node
from sparkcluster.node.shared import hub_folder
from sparkcluster.printable import shell
from sparkcluster.topology.vocabularies import lacking

STAGE = here("sparkcluster stage INVENTORY weights")
VERIFY = here("sparkcluster stage INVENTORY weights --verify")
# Files that engines read; other files (README, licences, pictures) may differ.
READ = (".safetensors", ".bin", ".gguf", ".pt", ".json", ".model", ".jinja", ".tiktoken", ".txt", ".py")
HEAVY = (".safetensors", ".bin", ".gguf", ".pt")


@check(
    "MDL-001",
    "The weights are complete on every node",
    needs=("weights",),
    source="practitioners' reports: loads that fail at 73-97 %",
    remedy=[STAGE],
)
def complete(context: Context) -> Iterator[Seen]:
    """Loading fails after minutes, at the file that is missing or truncated, or the model returns garbage.

    Every file in the index must exist, and every safetensors file must have the length given in its header. Weights
    that are not on a node are info: `up` copies or downloads them. A directory of the user that is on no node is
    an error: it has no source.
    """
    model, found = context.spec.playbook.model, _weights(context)
    yield from _denied(context)
    sources = [name for name, weights in found.items() if weights.complete]
    absent = [name for name, weights in found.items() if weights.path is None or not weights.files]
    every = len(absent) == len(found) == len(context.spec.inventory.nodes)  # a node that did not answer may have them
    if model.path is not None and every:
        first = absent[0]
        target = f"{context.facts[first].user}@{context.host(first)}:{model.path}/"
        yield Seen(
            f"no node has the weights {model.label}",
            f"searched on {listed(absent)}",
            (
                here(shell("rsync -a DIRECTORY/", target)),
                edit("set model.id in the playbook to a repository, which can be downloaded", instead=True),
            ),
        )
        return
    for name, weights in found.items():
        if weights.complete:
            continue
        if name in absent:
            partial = f"; {len(weights.truncated)} files are incomplete" if weights.truncated else ""
            if weights.other_revisions:
                partial += f"; it has revision {' and '.join(weights.other_revisions)}, not {model.revision}"
            origin = f"copied from {sources[0]}" if sources else "downloaded"
            yield Seen(
                f"the weights are not on {name} yet: up stages them ({origin})",
                f"{model.label}{partial}",
                [dataclasses.replace(STAGE, note="stages them now")],
                severity="info",
                node=name,
            )
            continue
        damage = [f"{file} is missing" for file in weights.missing]
        damage += [f"{file} is truncated" for file in weights.truncated]
        yield Seen(
            f"the weights of {model.label} are incomplete on {name}",
            f"{abridged(damage, limit=3)}, in {weights.path}",
            None if sources or model.id else (f"copy them again to {weights.path}", STAGE),
            node=name,
        )


def _denied(context: Context) -> Iterator[Seen]:
    """Weights that the login cannot read, and therefore cannot be copied, compared or counted."""
    for name, facts in context.facts.items():
        weights = facts.weights
        if isinstance(weights, Unread) and weights.unread.startswith("permission denied"):
            path = weights.unread.partition(": ")[2]
            yield Seen(
                f"{facts.user} cannot read the weights on {name}",
                weights.unread,
                [on_node(shell("sudo chown -R", facts.user, path))] if path else (),
                node=name,
            )


@node_check(
    "HOST-031",
    "The folders of the model in the Hugging Face cache can be written",
    needs=("weights",),
    source="NVIDIA's dgx-spark-playbooks mount ~/.cache/huggingface into containers of root",
    remedy="sparkcluster stage INVENTORY weights   changes the owner, if it is root; or sudo chown -R USER FOLDER",
    step="hf-cache",
)
def writable(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """The download or copy of weights fails, after the image was staged.

    Containers that run as root leave folders and files owned by root in the user's cache. Before writing weights, `up`
    and `stage` change the owner of the model's folders, in a container of the serving image that mounts only these.
    Other models are unchanged. `setup` changes the owner of the complete cache with sudo.
    """
    weights = facts.weights
    if not isinstance(weights, Weights) or weights.foreign is None:
        return
    model = context.spec.playbook.model.id
    if model is None:
        return
    path, uid, missing = weights.foreign.path, weights.foreign.uid, weights.foreign.missing
    owner = "root" if uid == 0 else f"user ID {uid}"
    up = uid == 0 and context.docker
    by_up = dataclasses.replace(UP, note="changes the owner")
    remedy = by_up if up else on_node(_sudo(facts, model, weights.foreign))
    yield Seen(
        f"{facts.user} cannot {'create' if missing else 'write'} {path} on {name}",
        f"{'the folder above' if missing else 'it'} belongs to {owner}",
        (remedy,),
        severity="error" if uid else "info" if context.docker else "warning",
        step="" if uid or (missing and path == facts.hf_home) else None,
    )


def _sudo(facts: Facts, model: str, foreign: Foreign) -> str:
    """The command that gives the model's folders to the user; paths come from the plan, not from the node."""
    hub, _, name = hub_folder(model).partition("/")
    folders = [f"{facts.hf_home}/{place}/{name}" for place in (hub, f"{hub}/.locks")]
    if foreign.missing:
        return shell("sudo install -d -o", facts.user, *([foreign.path] if foreign.path == facts.hf_home else folders))
    return shell("sudo chown -R", f"--from={foreign.uid}", f"{facts.user}:", *folders)


@node_check(
    "MDL-005",
    "Vocabularies that the engine would download are on every node",
    severity="info",
    source="openai/harmony#95",
    remedy=[dataclasses.replace(STAGE, note="copies them to every node; up does the same")],
)
def vocabularies(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """gpt-oss loads for minutes and then fails: its parser downloads a vocabulary even with HF_HUB_OFFLINE set.

    Nothing is missing if the image or the playbook sets TIKTOKEN_ENCODINGS_BASE.
    """
    if context.docker and facts.image is None:
        return  # the image may have them
    for each in lacking(context.spec, facts):
        yield Seen(f"{each.name} is not on {name}", f"the engine would download it from {each.url}")


@check(
    "MDL-003",
    "The revision and files of the model are the same on every node",
    source="practitioners' reports: garbage from one edited or half-copied file; a branch is resolved when it is"
    " downloaded",
    remedy=[VERIFY],
)
def same_files(context: Context) -> Iterator[Seen]:
    """A rank reads different weights, configuration or chat template, and the model returns garbage or hangs.

    Compares names and sizes; `stage weights --verify` compares the content. Files that engines do not read may differ.
    A warning for files other than weights and configuration.
    """
    found = {name: weights for name, weights in _weights(context).items() if weights.complete}
    right = common(weights.revision for weights in found.values() if weights.revision)
    label = context.spec.playbook.model.label
    for name, weights in found.items():
        if weights.revision and weights.revision != right:
            others = [other for other, each in found.items() if each.revision == right]
            yield Seen(
                f"{name} has a different revision of {label}",
                f"{weights.revision[:12]}, {str(right)[:12]} on {listed(others)}",
                (STAGE, edit(f"set model.revision: {right} in the playbook to pin it")),
                node=name,
            )
    revision = common(weights.revision for weights in found.values())
    sizes = {
        name: {file.name: file.size_bytes for file in weights.files if file.name.endswith(READ)}
        for name, weights in found.items()
        if weights.revision == revision
    }
    differing: dict[str, list[tuple[str, str]]] = {}
    for file in sorted({file for files in sizes.values() for file in files}):
        by_node = {name: files.get(file) for name, files in sizes.items()}
        expected = common(by_node.values())
        for name, size in by_node.items():
            if size != expected:
                has = "is missing" if size is None else f"has {size} bytes"
                wants = "is not on the others" if expected is None else f"{expected} elsewhere"
                differing.setdefault(name, []).append((file, f"{file} {has}, {wants}"))
    for name, files in differing.items():
        fatal = any(file.endswith(HEAVY) or file == "config.json" for file, _ in files)
        yield Seen(
            f"files of {label} on {name} differ from the other nodes",
            abridged((text for _, text in files), limit=3),
            severity="error" if fatal else "warning",
            node=name,
        )


def _weights(context: Context) -> dict[str, Weights]:
    """Weights of every node, heads first, since they are the sources of copies."""
    ranks = {name: member.rank for name, member in context.topology.members.items()}
    names = sorted(context.facts, key=lambda name: ranks.get(name, 0))
    return {name: weights for name in names if isinstance(weights := context.facts[name].weights, Weights)}


HUB = "huggingface_hub documentation, Understand caching: the blob of a large file is named by its SHA-256"


@check(
    "MDL-020",
    "Every large file of the weights is intact and the same on every node",
    stage="deep",
    source=f"{HUB}; owners' reports of garbage answers from one rank's weights",
    remedy=[VERIFY],
)
def damaged(context: Context) -> Iterator[Seen]:
    """The engine does not detect a damaged file: it crashes while loading, or its output is garbage.

    The hub names each large file by its SHA-256, so a single node can be checked. Other files are compared between
    nodes: nodes that differ from the majority are named; with two nodes it is unknown which is right. Staging also uses
    the hashes that nodes recorded earlier. A file that cannot be read is a warning.
    """
    for name, reason in context.hashes.unasked.items():
        facts = context.facts[name]
        path = facts.weights.path if isinstance(facts.weights, Weights) else None
        readable = "allow the user who starts the ranks to read them"
        remedy = (on_node(shell("ls -lL", path or facts.hf_home)), readable)
        yield Seen(f"the weights on {name} were not hashed", reason, remedy, severity="warning", node=name)
    copies: dict[str, dict[str, HashedFile]] = {}
    for name, files in context.hashes.files.items():
        bad = {file.name: file for file in files if _is_damaged(file)}
        for copy in files:
            if copy.name not in bad:
                copies.setdefault(copy.name, {})[name] = copy
        if bad:
            hashes = {key: f"SHA-256 {file.sha256[:12]}…, expected {str(file.blob)[:12]}…" for key, file in bad.items()}
            summary = f"{_counted(bad)} of the weights on {name} {'is' if len(bad) == 1 else 'are'} damaged"
            yield Seen(summary, _seen(hashes), node=name)
    different: dict[str | None, list[str]] = {}
    for file, nodes in copies.items():
        common = Counter(each.sha256 for each in nodes.values()).most_common(2)
        if len(common) < 2:
            continue
        right = common[0][0] if common[0][1] > common[1][1] else None
        suspects: list[str | None] = [name for name, copy in nodes.items() if right not in {None, copy.sha256}]
        for node in suspects or [None]:
            different.setdefault(node, []).append(file)
    for node, differing in different.items():
        names = sorted({name for file in differing for name in copies[file]})
        where = f"between {listed(names)}" if node is None else "from the other nodes"
        on = "" if node is None else f" on {node}"
        hashes = {f: ", ".join(f"{n} {copy.sha256[:12]}…" for n, copy in copies[f].items()) for f in differing}
        verb = "differs" if len(differing) == 1 else "differ"
        yield Seen(f"{_counted(differing)} of the weights{on} {verb} {where}", _seen(hashes), node=node)


def _is_damaged(file: HashedFile) -> bool:
    return file.blob is not None and file.blob != file.sha256


def _counted(files: Collection[str]) -> str:
    return next(iter(files)) if len(files) == 1 else f"{len(files)} files"


def _seen(details: Mapping[str, str]) -> str:
    return abridged((f"{file}: {detail}" for file, detail in details.items()), limit=5)
