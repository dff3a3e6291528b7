"""``models`` of an inventory: each entry is a cluster with one model."""

from __future__ import annotations

import pytest

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.spec import library, powers
from sparkcluster.spec.load import load, load_all

HEAD = """cluster: home
nodes:
- {host: 10.0.0.1, name: spark-1}
- {host: 10.0.0.2, name: spark-2, env: {NCCL_DEBUG: INFO}}
"""
MODELS = """models:
- playbook: gpt-oss-120b
- {playbook: gpt-oss-20b, nodes: [spark-2], name: embed, aliases: [text-embedding]}
- {playbook: qwen3.6-35b-a3b-nvfp4, groups: [{name: a, nodes: [spark-1]}, {name: b, nodes: [spark-2]}], victim: 1}
"""


@pytest.fixture
def written(tmp_path):
    def write(models=MODELS, head=HEAD):
        file = tmp_path / "home.yaml"
        file.write_text(head + models)
        return file

    return write


def test_each_entry_is_a_cluster_and_a_first_entry_without_a_name_is_the_cluster_itself(written):
    big, embed, replicas = load_all(written())
    assert [each.inventory.cluster for each in (big, embed, replicas)] == [
        "home", "home-embed", "home-qwen3.6-35b-a3b-nvfp4",
    ]  # fmt: skip
    assert [each.inventory.api.port for each in (big, embed, replicas)] == [8000, 8001, 8002]
    assert [node.label for node in embed.inventory.nodes] == ["spark-2"]
    assert embed.inventory.node_env("spark-2") == {"NCCL_DEBUG": "INFO"}
    assert embed.playbook.aliases == ["text-embedding"]
    assert library.all_bundled(embed), "a name does not change its permissions"
    assert [group.nodes for group in replicas.inventory.groups] == [["spark-1"], ["spark-2"]]
    assert (big.siblings, replicas.siblings) == (("embed", replicas.model), ("gpt-oss-120b", "embed"))
    assert [each.stopped_after for each in (big, embed, replicas)] == [2, 1, 0]


@pytest.mark.parametrize(
    ("victims", "order"), [((1, None), [0, 1]), ((None, None), [1, 0]), ((None, 3), [1, 0]), ((2, 2), [1, 0])]
)
def test_models_of_a_node_are_stopped_one_at_a_time(written, victims, order):
    """Models without ``victim`` last, and of equals the later one first."""
    entries = [
        f"- {{playbook: gpt-oss-20b, name: m{at}, nodes: [spark-1], set: {{served_name: m{at}}}" for at in range(2)
    ]
    models = [f"{entry}{f', victim: {each}' if each else ''}}}\n" for entry, each in zip(entries, victims, strict=True)]
    text = "models:\n" + "".join(models) + "- {playbook: gpt-oss-20b, name: alone, nodes: [spark-2], victim: 1}\n"
    assert [each.stopped_after for each in load_all(written(text))] == [*order, 0]


def test_another_playbook_keeps_the_names_of_the_entry(written):
    embed = load(written(), "qwen3-embedding-4b", model="embed")
    assert (embed.playbook.name, embed.playbook.aliases) == ("qwen3-embedding-4b", ["text-embedding"])
    assert embed.selected == {"playbook": "qwen3-embedding-4b"}


def test_a_single_model_is_the_same_in_either_form(written):
    short = load(written("playbook: gpt-oss-120b\nset: {args.max-model-len: 4096}\n"))
    (entry,) = load_all(written("models:\n- {playbook: gpt-oss-120b, set: {args.max-model-len: 4096}}\n"))
    assert (entry.inventory, entry.playbook) == (short.inventory, short.playbook)
    assert entry.siblings == ()


def test_ports_used_by_other_entries_are_skipped(written):
    models = "models:\n- {playbook: gpt-oss-120b}\n- {playbook: gpt-oss-20b, port: 8001, nodes: [spark-1]}\n"
    models += "- {playbook: qwen3-embedding-4b, name: c, nodes: [spark-2]}\n"
    assert [each.inventory.api.port for each in load_all(written(models))] == [8000, 8001, 8002]


@pytest.mark.parametrize(
    ("entries", "line", "message"),
    [
        (["{playbook: gpt-oss-20b}", "{playbook: gpt-oss-20b}"], 7, "two models are named gpt-oss-20b"),
        (["{playbook: gpt-oss-20b, port: 9000}", "{playbook: gpt-oss-120b, port: 9000}"], 7, "also has port 9000"),
        (
            ["{playbook: gpt-oss-20b, aliases: [x]}", "{playbook: gpt-oss-120b, aliases: [x]}"],
            7,
            "gpt-oss-20b also has the name x",
        ),
        (
            ["{playbook: gpt-oss-120b}", "{playbook: nemotron-3-super-120b-a12b-nvfp4}"],
            7,
            "both span several nodes, including spark-1",
        ),
        (["{playbook: gpt-oss-20b, nodes: [spark-1]}"], 5, "in no model: spark-2"),
        (["{playbook: gpt-oss-20b, nodes: [spark-1, spark-3]}"], 6, 'no node named "spark-3"'),
        (
            ["{playbook: gpt-oss-20b, nodes: [spark-1], groups: [{name: a, nodes: [spark-2]}]}"],
            6,
            "nodes and groups are exclusive",
        ),
        (["{playbook: gpt-oss-20b, set: {args.max-model-len: none at all}}"], 6, "for 1 Spark"),
        (["{playbook: gpt-oss-21b}"], 6, "gpt-oss-21b"),
        (["gpt-oss-20b"], 6, "is not a mapping"),
        (["{playbook: gpt-oss-120b}", "{playbook: gpt-oss-120b-ngc, nodes: [spark-1]}"], 7, "is also served as"),
        (["{playbook: ./my model.yaml}"], 6, "is not a valid model name"),
        (
            ["{playbook: gpt-oss-120b, aliases: [embed]}", "{playbook: gpt-oss-20b, name: embed}"],
            7,
            "also has the name embed",
        ),
        (
            ["{playbook: gpt-oss-120b, port: 65535}", "{playbook: gpt-oss-20b, port: 65535}"],
            7,
            "also has port 65535",
        ),
        (["{nodes: [spark-1]}"], 6, "is required"),
        (["{playbook: gpt-oss-20b, verify: {}}"], 6, "unknown key"),
    ],
)
def test_an_error_is_reported_at_its_line(written, entries, line, message):
    with pytest.raises(SpecError) as caught:
        load_all(written("models:\n" + "".join(f"- {each}\n" for each in entries)))
    found = {(each.line, each.message) for each in caught.value.problems}
    assert any(at == line and message in text for at, text in found), found
    assert all(at >= 5 for at, _ in found), found


GATEWAY = """gateway: {port: 8002, keys: {alice: {env: ALICE_KEY, models: [embed]}}}
api: {key: {env: SPARK_API_KEY}}
models:
- {playbook: gpt-oss-120b, on_demand: {}}
- {playbook: qwen3-embedding-4b, nodes: [spark-2], name: embed}
- {playbook: gpt-oss-20b, nodes: [spark-1], aliases: [small], on_demand: {idle_s: 60}}
"""


def test_a_gateway_moves_one_port_and_no_other(written):
    """It runs on the first node of an always-on model, or else on the first node of the inventory."""
    big, embed, small = load_all(written(GATEWAY))
    assert [each.inventory.api.port for each in (big, embed, small)] == [8000, 8001, 7999]
    assert [each.idle_s for each in (big, embed, small)] == [1200, None, 60]
    assert {(each.gateway_node, each.gateway_cluster) for each in (big, embed, small)} == {("spark-2", "home-gateway")}
    assert [each.inventory.gateway.keys["alice"].models for each in (big, embed, small)] == [["embed"]] * 3
    asked = [each.what for each in powers.of_inventory(big) if each.kind == "gateway.keys"]
    assert asked == ["$ALICE_KEY"], "a variable of this machine is read for the author of the inventory"
    (only,) = load_all(written("gateway: {}\nmodels:\n- {playbook: gpt-oss-120b, on_demand: {}}\n"))
    assert only.gateway_node == "spark-1"


def test_no_model_may_be_named_auto_behind_a_gateway(written):
    with pytest.raises(SpecError) as caught:
        load_all(written("gateway: {}\nmodels:\n- {playbook: gpt-oss-120b, set: {served_name: auto}}\n"))
    assert [(each.line, '"auto" is reserved' in each.message) for each in caught.value.problems] == [(7, True)]


def test_a_key_next_to_models_belongs_into_an_entry(written):
    for key in (
        "playbook: gpt-oss-20b",
        "image: own:1",
        "set: {args.x: 1}",
        "groups: [{name: a, nodes: [spark-1, spark-2]}]",
    ):
        with pytest.raises(SpecError) as caught:
            load_all(written(MODELS + key + "\n"))
        assert [each.line for each in caught.value.problems] == [9]


def test_an_unknown_model_is_an_error_with_the_known_ones(written):
    with pytest.raises(UsageError, match=r"no model named .embd.") as caught:
        load(written(), model="embd")
    assert "embed" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no model named"):
        load(written(), model="")
    with pytest.raises(UsageError, match="has no models"):
        load(written("playbook: gpt-oss-120b\n"), model="embed")
