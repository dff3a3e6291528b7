"""Vocabularies that are brought to a rank, and where they are on the node and in its container. Pure."""

from __future__ import annotations

from sparkcluster import engines
from sparkcluster.engines.base import Vocabulary
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec


def brought(spec: Spec, facts: Facts) -> tuple[Vocabulary, ...]:
    """Those that the playbook needs, and that neither it nor the image says to have."""
    image = read(facts.image) if spec.inventory.runtime.kind == "docker" else None
    known = {*spec.playbook.env, *(image.env_names if image is not None else ())}
    wanted = engines.engine(spec.playbook.engine).vocabularies(spec.playbook)
    return tuple(each for each in wanted if not known & {each.variable, *each.others})


def lacking(spec: Spec, facts: Facts) -> tuple[Vocabulary, ...]:
    """Those of them that are not on the node of ``facts``."""
    return tuple(each for each in brought(spec, facts) if stored(each) not in facts.vocabularies)


def stored(vocabulary: Vocabulary) -> str:
    """Its path below the directory of all vocabularies on a node."""
    return f"{vocabulary.sha256[:16]}/{vocabulary.name}"


def folder(state_dir: str, vocabulary: Vocabulary) -> str:
    """The directory on a node that has it, and nothing else."""
    return f"{state_dir}/vocabularies/{vocabulary.sha256[:16]}"


def target(vocabulary: Vocabulary) -> str:
    """That directory in a container."""
    return f"/sparkcluster/vocabularies/{vocabulary.sha256[:16]}"
