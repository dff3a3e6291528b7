"""Repositories in a playbook's arguments, in addition to the model."""

from __future__ import annotations

import pytest

from sparkcluster.engines import engine
from sparkcluster.errors import UsageError
from sparkcluster.spec.playbook import Playbook


def playbook(**keys) -> Playbook:
    return Playbook.model_validate(
        {"name": "x", "model": {"id": "org/model"}, "image": "vllm/vllm-openai:v0.20.0", **keys}
    )


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, {}),
        ({"args": {"speculative-config": {"model": "a/d", "revision": "v1"}}}, {"a/d": "v1"}),
        ({"args": {"speculative-config.model": "a/d"}}, {"a/d": "main"}),
        ({"args": {"speculative-config": {"model": "/sparkcluster/model/assistant"}}}, {}),
        ({"args": {"tokenizer": "a/t", "tokenizer-revision": "r2"}}, {"a/t": "r2"}),
        ({"args": {"lora-modules": ["s=a/l", "t=/adapters/t", '{"name": "u", "path": "b/l"}']}}, {"a/l": "main", "b/l": "main"}),
        ({"args": {"lora-modules": ["=", "{", "[]", 3, "null"], "tokenizer": "../../etc"}}, {}),
        ({"command": ["bash", "-c", "vllm serve org/model --tokenizer=a/t"]}, {"a/t": "main"}),
    ],
)  # fmt: skip
def test_repositories_of_the_hub_in_arguments(keys, named):
    assert dict(engine("vllm").repositories(playbook(**keys))) == named


@pytest.mark.parametrize("revision", ["a/../../../../token", "--help", "x y", "$(id)"])
def test_a_revision_that_leads_outside_is_an_error(revision):
    """It becomes part of a path on the nodes, and a word of a command there."""
    made = playbook(args={"tokenizer": "a/t", "tokenizer-revision": revision})
    with pytest.raises(UsageError, match="is not a revision of a/t") as caught:
        _ = made.companions
    assert caught.value.hint


@pytest.mark.parametrize(
    ("args", "loads"),
    [
        ({}, None),
        ({"load-format": "fastsafetensors"}, None),
        ({"load-format": "mistral"}, "mistral"),
        ({"config_format": "mistral"}, "mistral"),
        ({"load-format": "sharded_state"}, "any"),
    ],
)
def test_the_staged_weights_depend_on_the_load_format(args, loads):
    assert playbook(args=args).choice == {"include": [], "exclude": [], "format": loads}
