"""Vocabularies that are staged for a rank, and their paths on the node and in the container. Pure."""

from __future__ import annotations

from sparkcluster import engines
from sparkcluster.engines.base import Vocabulary
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec


def brought(spec: Spec, facts: Facts) -> tuple[Vocabulary, ...]:
    """Vocabularies that the playbook needs, unless it or the image sets a variable for its own copy."""
    image = read(facts.image) if spec.inventory.runtime.kind == "docker" else None
    known = {*spec.playbook.env, *(image.env_names if image is not None else ())}
    wanted = engines.engine(spec.playbook.engine).vocabularies(spec.playbook)
    return tuple(each for each in wanted if not known & {each.variable, *each.others})


def lacking(spec: Spec, facts: Facts) -> tuple[Vocabulary, ...]:
    """Vocabularies that are ``brought`` and missing on the node of ``facts``."""
    return tuple(each for each in brought(spec, facts) if stored(each) not in facts.vocabularies)


def stored(vocabulary: Vocabulary) -> str:
    """The path below the vocabularies directory of a node."""
    return f"{vocabulary.sha256[:16]}/{vocabulary.name}"


def folder(state_dir: str, vocabulary: Vocabulary) -> str:
    """The directory on a node that contains only this vocabulary."""
    return f"{state_dir}/vocabularies/{vocabulary.sha256[:16]}"


def target(vocabulary: Vocabulary) -> str:
    """The directory of the vocabulary in a container."""
    return f"/sparkcluster/vocabularies/{vocabulary.sha256[:16]}"
