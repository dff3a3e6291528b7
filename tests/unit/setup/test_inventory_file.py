"""An inventory of discover is valid as written; an extended inventory is otherwise unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.errors import UsageError
from sparkcluster.linting import lint
from sparkcluster.printable import hidden_at
from sparkcluster.setup.inventory_file import (
    PAIR,
    Entry,
    for_more,
    new_text,
    node_names,
    pairs,
    scalar,
    with_nodes,
)
from sparkcluster.spec.document import parse
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.load import load


def entries(hostnames: list[str], user: str | None = "nvidia") -> list[Entry]:
    return [Entry(name, f"192.168.1.{index}", user) for index, name in enumerate(node_names(hostnames), 11)]


def written(path: Path, text: str) -> Inventory:
    """The inventory ``text``, without a finding that is shown by default."""
    path.write_text(text, encoding="utf-8")
    linted = lint([path])
    assert [each for each in linted.findings if each.severity != "info"] == []
    return load(path).inventory


@pytest.mark.parametrize("sparks", [1, 3, 8])
def test_an_inventory_of_any_number_of_sparks_lints_clean(tmp_path, sparks):
    names = [f"spark-{number}a2b" for number in range(sparks)]
    made = written(tmp_path / "mine.yaml", new_text(names[0], entries(names)))
    assert made.cluster == names[0]
    assert [(node.name, node.host) for node in made.nodes] == [
        (name, f"192.168.1.{index}") for index, name in enumerate(names, 11)
    ]
    assert made.ssh.user == "nvidia"
    assert made.api.host == "management"
    assert made.api.key.env == "SPARK_API_KEY"
    assert [len(group.nodes) for group in made.groups] == {1: [], 3: [2, 1], 8: [2, 2, 2, 2]}[sparks]


@settings(max_examples=25)
@given(hostnames=st.lists(st.text(max_size=80), min_size=1, max_size=12))
def test_any_hostname_gives_a_valid_inventory(hostnames):
    listed = entries(hostnames)
    document = parse(new_text(listed[0].name, listed), "mine.yaml")
    assert document.problems == []
    made = Inventory.model_validate(document.data)
    assert made.cluster == listed[0].name
    assert [(node.name, node.host) for node in made.nodes] == [(each.name, each.host) for each in listed]


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])).filter(
        lambda text: hidden_at(text) is None
    )
)
def test_a_quoted_scalar_is_read_back_unchanged(text):
    assert parse(f"key: {scalar(text)}", "x").data == {"key": text}


def test_the_login_of_most_nodes_is_the_default_and_a_different_one_is_written_at_its_node(tmp_path):
    listed = [Entry("a", "10.0.0.1", "nvidia"), Entry("b", "10.0.0.2", "bob"), Entry("c", "10.0.0.3", "nvidia")]
    made = written(tmp_path / "mine.yaml", new_text("a", listed))
    assert [made.node_ssh(node).user for node in made.nodes] == ["nvidia", "bob", "nvidia"]


def cables(*joined: str) -> list[frozenset[str]]:
    return [frozenset(each) for each in joined]


@pytest.mark.parametrize(
    ("names", "cabled", "expected"),
    [
        ("abc", cables("ab", "bc", "ca"), ["ab", "c"]),
        ("abcd", cables("ac", "bd"), ["ac", "bd"]),
        ("abcdefgh", cables("ab", "ac", "ad", "bc", "bd", "cd"), ["ab", "cd", "ef", "gh"]),
        ("a", [], ["a"]),
    ],
)
def test_groups_follow_the_cables(names, cabled, expected):
    assert ["".join(group) for group in pairs(list(names), cabled)] == expected


# Adding to an existing inventory

NEW = [Entry("spark-b", "192.168.1.12", "nvidia"), Entry("spark-c", "192.168.1.13", "bob")]
BLOCK = "- host: 192.168.1.12\n  name: spark-b\n- host: 192.168.1.13\n  name: spark-c\n  ssh: {user: bob}\n"


def indented(by: int) -> str:
    return re.sub(r"(?m)^(?=.)", " " * by, BLOCK)


@pytest.mark.parametrize(
    ("before", "after", "by"),
    [
        ("cluster: x\nnodes:\n  - host: a\n", "", 2),
        ("nodes:\n    - host: a   # the head\n", "\n# playbook\nplaybook: p  # mine\n", 4),
        ("nodes:\n  - host: a\n    # port: 22\n", "  # - host: b\n\ncluster: x\n", 2),
        ("nodes:\n  - host: a\n    interconnect:\n      interfaces:\n      - enp1\n", "api: {}\n", 2),
        ("# nodes:\nnodes: # three\n\n  -   host: a\n      name: b\n", "\n\n\ncluster: x", 2),
    ],
)
def test_nodes_are_added_and_every_other_byte_is_unchanged(before, after, by):
    assert with_nodes(before + after, "f", NEW, user="nvidia") == before + indented(by) + after


def test_a_file_without_a_final_newline_or_with_crlf():
    assert with_nodes("nodes:\n- host: a", "f", NEW, user="nvidia") == "nodes:\n- host: a\n" + BLOCK
    text = "nodes:\r\n- host: a\r\ncluster: x\r\n"
    assert with_nodes(text, "f", NEW, user="nvidia") == text.replace("cluster", BLOCK.replace("\n", "\r\n") + "cluster")


ONE = new_text("a", entries(["a"]))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_playbook_for_one_spark_is_replaced_by_the_one_for_several(newline):
    made = for_more(ONE.replace("\n", newline), ["a", "b"], ())
    assert parse(made, "f").data == {**parse(ONE, "f").data, "playbook": PAIR}
    assert made.replace(newline, "\n").endswith(new_text("a", entries(["a", "b"])).partition("\n# Fits")[2])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nodes: [{host: a}]\n", "its nodes are not a list with one key per line"),
        ("cluster: x\n", "its nodes are not a list with one key per line"),
        ("nodes:\n- {name: a, host: a}\ngroups:\n- {name: g, nodes: [a]}\n", "every node must be in one of its groups"),
    ],
)  # fmt: skip
def test_an_inventory_that_would_be_rewritten_is_unchanged_and_the_lines_are_shown(text, why):
    with pytest.raises(UsageError) as caught:
        with_nodes(text, "mine.yaml", NEW, user="nvidia")
    first, _, lines = caught.value.message.partition("\n")
    assert first == f"mine.yaml is unchanged: {why}"
    assert lines + "\n" == indented(2)
    assert caught.value.hint


NODES = st.lists(
    st.sampled_from(
        ["host: a", "host: a  # x", "host: 'a'", "{host: a}", "host: a\n    name: b", "host: a\n    # c\n\n    name: b",
         "host: a\n    env:\n      A: |\n        x\n", "host: a\n    name:", "host: >-\n      a", "host: a\n    env:\n      A: |+\n        x\n\n"]
    ),
    min_size=1,
    max_size=3,
)  # fmt: skip


@settings(max_examples=40)
@given(
    nodes=NODES,
    tail=st.sampled_from(
        ["", "\n", "# end\n", "    # deep\n", "  # - host: z\n", "\n\ncluster: x\n", "cluster: x\n# y"]
    ),
)
def test_any_layout_is_extended_or_refused(nodes, tail):
    """The addition is one run of complete lines; nothing else changes."""
    text = "nodes:\n" + "\n".join(f"  - {each}" for each in nodes) + "\n" + tail
    try:
        made = with_nodes(text, "f", NEW, user="nvidia")
    except UsageError:
        return
    assert indented(2) in made
    assert made.replace(indented(2), "", 1) in {text, text + "\n"}
    assert len(parse(made, "f").data["nodes"]) == len(nodes) + 2
