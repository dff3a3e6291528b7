"""A plan for people: briefly what distinguishes the nodes, and whole what can be pasted."""

from __future__ import annotations

import pytest

from sparkcluster.cli.plan_view import brief, whole


@pytest.fixture
def document(world):
    return world().plan(3).as_json()


def test_briefly_only_what_differs_between_nodes_is_shown_of_their_variables(document):
    document["nodes"]["beta"]["env"]["ONLY_BETA"] = "1"
    document["nodes"]["alpha"]["secrets"] = ["VLLM_API_KEY"]
    shown = list(brief(document))
    same = document["nodes"]["alpha"]["env"].items() & document["nodes"]["beta"]["env"].items()
    assert "  env    ONLY_BETA=1" in shown
    assert "  env    VLLM_API_KEY=(secret)" in shown
    assert shown[-1] == f"{len(same)} variables are the same on every node"
    text = "\n".join(shown)
    assert not any(f"{name}=" in text for name, _ in same)


def test_whole_has_every_variable_and_command_of_every_node(document):
    shown = list(whole(document))
    for node in document["nodes"].values():
        assert {f"  {name}={value}" for name, value in node["env"].items()} <= set(shown)
    assert sum(line.startswith("  $ docker run ") for line in shown) == 2
