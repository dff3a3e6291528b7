"""An inventory that discover writes can be used as it is; one that it adds nodes to is otherwise left as it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.errors import UsageError
from sparkcluster.linting import lint
from sparkcluster.setup.inventory_file import (
    ONE_SPARK,
    PAIR,
    Entry,
    Ssh,
    common_user,
    for_more,
    new_text,
    node_names,
    pairs,
    scalar,
    with_nodes,
)
from sparkcluster.spec.document import parse
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.load import load, load_named

ODD = ["no", "1e5", "0x1f", "null", "12:30", "-x-", "spärk", "a b", "", ".", "SPARK-1A2B", "spark-1a2b", "$(reboot)", "x" * 300, "~", "y", "1_0"]  # fmt: skip


def entries(hostnames: list[str], user: str | None = "nvidia") -> list[Entry]:
    return [Entry(name, f"192.168.1.{index}", user) for index, name in enumerate(node_names(hostnames), 11)]


def written(path: Path, text: str) -> Inventory:
    """The inventory that ``text`` is, without a finding that is shown by default."""
    path.write_text(text, encoding="utf-8")
    linted = lint([path])
    assert [each for each in linted.findings if each.severity != "info"] == []
    return load(path).inventory


@pytest.mark.parametrize("sparks", [1, 2, 3, 4, 8])
def test_any_number_of_sparks_lints_clean(tmp_path, sparks):
    names = [f"spark-{number}a2b" for number in range(sparks)]
    made = written(tmp_path / "mine.yaml", new_text(names[0], entries(names), drawing=["┌─ a ═╗", "b"]))
    assert made.cluster == names[0]
    assert [(node.name, node.host) for node in made.nodes] == [
        (name, f"192.168.1.{index}") for index, name in enumerate(names, 11)
    ]
    assert made.ssh.user == "nvidia"
    assert made.api.host == "management"
    assert made.api.key.env == "SPARK_API_KEY"
    assert [len(group.nodes) for group in made.groups] == {1: [], 2: [], 3: [2, 1], 4: [2, 2], 8: [2, 2, 2, 2]}[sparks]


def test_odd_hostnames_become_names(tmp_path):
    made = written(tmp_path / "mine.yaml", new_text("no", entries(ODD)))
    names = [node.name for node in made.nodes]
    assert len({name.lower() for name in names}) == len(ODD)
    assert names[0] == "no"
    assert "SPARK-1A2B" in names
    assert "spark-1a2b-2" in names


@given(
    hostnames=st.lists(st.text(max_size=80), min_size=1, max_size=12),
    drawing=st.lists(st.text(max_size=30), max_size=3),
)
def test_any_hostname_and_drawing_make_an_inventory(hostnames, drawing):
    """Both come from nodes."""
    listed = entries(hostnames)
    document = parse(new_text(listed[0].name, listed, drawing=drawing), "mine.yaml")
    assert document.problems == []
    made = Inventory.model_validate(document.data)
    assert made.cluster == listed[0].name
    assert [(node.name, node.host) for node in made.nodes] == [(each.name, each.host) for each in listed]


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_a_scalar_is_read_as_it_was(text):
    assert parse(f"key: {scalar(text)}", "x").data == {"key": text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("spark-1a2b", "spark-1a2b"), ("10.0.0.1", "10.0.0.1"), ("fd00::2", '"fd00::2"'), ("no", '"no"'), ("1e5", '"1e5"'),
     ("~/.ssh/id", "~/.ssh/id"), ("~", '"~"'), ("a: b", '"a: b"'), ("12", '"12"')],
)  # fmt: skip
def test_scalars_are_quoted_where_needed(text, expected):
    assert scalar(text) == expected


def test_the_login_of_most_nodes_is_the_default_and_another_stands_at_its_node(tmp_path):
    listed = [Entry("a", "10.0.0.1", "nvidia"), Entry("b", "10.0.0.2", "bob"), Entry("c", "10.0.0.3", "nvidia")]
    made = written(tmp_path / "mine.yaml", new_text("a", listed))
    assert [made.node_ssh(node).user for node in made.nodes] == ["nvidia", "bob", "nvidia"]


def test_a_login_that_an_inventory_cannot_have_is_left_to_ssh_config(tmp_path):
    listed = [Entry("a", "10.0.0.1", "DOM\\bob"), Entry("b", "10.0.0.2", None)]
    assert common_user(listed) is None
    assert written(tmp_path / "mine.yaml", new_text("a", listed)).ssh.user is None


def test_files_of_ssh_are_written_if_given(tmp_path):
    (tmp_path / "id").write_text("")
    ssh = Ssh(identity=str(tmp_path / "id"), known_hosts="/k n")
    made = written(tmp_path / "mine.yaml", new_text("a", entries(["a"], None), ssh=ssh))
    assert (made.ssh.identity, made.ssh.known_hosts) == (str(tmp_path / "id"), "/k n")


def cables(*joined: str) -> list[frozenset[str]]:
    return [frozenset(each) for each in joined]


@pytest.mark.parametrize(
    ("names", "cabled", "expected"),
    [
        ("abc", cables("ab", "bc", "ca"), ["ab", "c"]),
        ("abcd", cables("ac", "bd"), ["ac", "bd"]),
        ("abcd", cables("cd"), ["ab", "cd"]),
        ("abc", [], ["ab", "c"]),
        ("abcd", cables("ab", "bc", "cd"), ["ab", "cd"]),
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
        ("nodes:\n- host: a\n", "cluster: x\n", 0),
        ("nodes:\n    - host: a   # the head\n", "\n# playbook\nplaybook: p  # mine\n", 4),
        ("nodes:\n  - host: a\n    # port: 22\n", "  # - host: b\n\ncluster: x\n", 2),
        ("nodes:\n  - {name: a, host: a}\n", "cluster: x\n", 2),
        ("nodes:\n  - host: a\n    env:\n      A: 'x'\n", "# end\n", 2),
        ('nodes:\n  - host: a\n    env: {A: "b\n      c"}\n', "api: {}\n", 2),
        ("nodes:\n  - host: a\n    interconnect:\n      interfaces:\n      - enp1\n", "api: {}\n", 2),
        ("# nodes:\nnodes: # three\n\n  -   host: a\n      name: b\n", "\n\n\ncluster: x", 2),
    ],
)
def test_nodes_are_added_and_every_other_byte_is_kept(before, after, by):
    assert with_nodes(before + after, "f", NEW, user="nvidia") == before + indented(by) + after


def test_a_file_without_a_last_line_end_and_one_of_windows():
    assert with_nodes("nodes:\n- host: a", "f", NEW, user="nvidia") == "nodes:\n- host: a\n" + BLOCK
    text = "nodes:\r\n- host: a\r\ncluster: x\r\n"
    assert with_nodes(text, "f", NEW, user="nvidia") == text.replace("cluster", BLOCK.replace("\n", "\r\n") + "cluster")


def test_files_of_ssh_are_written_at_their_node():
    new = [Entry("b", "192.168.1.12", "bob", Ssh("/id", "/k n")), Entry("c", "192.168.1.13", "nvidia", Ssh("/id"))]
    made = parse(with_nodes("nodes:\n- host: a\n", "f", new, user="nvidia"), "f").data["nodes"]
    assert [each.get("ssh") for each in made] == [
        None, {"user": "bob", "identity": "/id", "known_hosts": "/k n"}, {"identity": "/id"}
    ]  # fmt: skip


ONE = new_text("a", entries(["a"]))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_playbook_for_one_spark_becomes_that_for_more(newline):
    made = for_more(ONE.replace("\n", newline), ["a", "b"], ())
    assert parse(made, "f").data == {**parse(ONE, "f").data, "playbook": PAIR}
    assert made.replace(newline, "\n").endswith(new_text("a", entries(["a", "b"])).partition("\n# Fits")[2])


@pytest.mark.parametrize(
    "text",
    [ONE.replace(ONE_SPARK, "gpt-oss-20b"), ONE.replace(ONE_SPARK, f"{ONE_SPARK}+x"), ONE.replace(ONE_SPARK, f"{ONE_SPARK}  # mine"),
     ONE.replace("# `spark", "# Mine. `spark"), new_text("a", entries(["a", "b"]))],
)  # fmt: skip
def test_a_playbook_that_discover_did_not_write_stays(text):
    assert for_more(text, ["a", "b"], ()) == text


def test_the_playbook_for_one_spark_is_for_no_more():
    assert not load_named(ONE_SPARK).serves_on(2)
    assert all(load_named(PAIR, nodes=number).serves_on(number) for number in (1, 2))


def test_the_examples_can_be_added_to():
    for name in ("one-spark.yaml", "two-spark.yaml"):
        text = (Path(__file__).parents[3] / "inventory" / name).read_text()
        made = with_nodes(text, name, NEW, user="nvidia")
        assert made.replace(indented(2), "") == text
        assert [each["host"] for each in parse(made, name).data["nodes"]][-2:] == ["192.168.1.12", "192.168.1.13"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nodes: [{host: a}]\n", "its nodes are not a list with a line for each key"),
        ("nodes: &n\n- host: a\n", "its nodes are not a list with a line for each key"),
        ("nodes:\n- &a {host: a}\n", "its nodes are not a list with a line for each key"),
        ("nodes:\n- {host: a, ssh: &s {user: x}}\n- {host: b, ssh: *s}\n", "its nodes are not a list with a line for each key"),
        ("{nodes: [{host: a}]}\n", "its nodes are not a list with a line for each key"),
        ("cluster: x\n", "its nodes are not a list with a line for each key"),
        ("nodes: []\n", "its nodes are not a list with a line for each key"),
        ("nodes:\n- {name: a, host: a}\ngroups:\n- {name: g, nodes: [a]}\n", "every node has to be in one of its groups"),
    ],
)  # fmt: skip
def test_an_inventory_that_would_be_written_anew_is_left_and_the_lines_are_shown(text, why):
    with pytest.raises(UsageError) as caught:
        with_nodes(text, "mine.yaml", NEW, user="nvidia")
    first, _, lines = caught.value.message.partition("\n")
    assert first == f"mine.yaml is left as it is: {why}"
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


@given(
    nodes=NODES,
    tail=st.sampled_from(
        ["", "\n", "# end\n", "    # deep\n", "  # - host: z\n", "\n\ncluster: x\n", "cluster: x\n# y"]
    ),
)
def test_any_layout_is_added_to_or_refused(nodes, tail):
    """What is added is one run of whole lines; nothing else changes."""
    text = "nodes:\n" + "\n".join(f"  - {each}" for each in nodes) + "\n" + tail
    try:
        made = with_nodes(text, "f", NEW, user="nvidia")
    except UsageError:
        return
    assert indented(2) in made
    assert made.replace(indented(2), "", 1) in {text, text + "\n"}
    assert len(parse(made, "f").data["nodes"]) == len(nodes) + 2
