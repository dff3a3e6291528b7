"""Ranks and links of the nodes, from their facts."""

from __future__ import annotations

import pytest

from sparkcluster import topology
from sparkcluster.errors import PlanError
from sparkcluster.facts.base import Unread

PORT_0 = ("enp1s0f0np0", "enP2p1s0f0np0")
PORT_1 = ("enp1s0f1np1", "enP2p1s0f1np1")
TWO = {"alpha": "192.168.86.11", "beta": "192.168.86.12"}


def rails(port, number, first="192.168.177", second="192.168.178"):
    return {port[0]: f"{first}.{number}/24", port[1]: f"{second}.{number}/24"}


def two(spark, **beta):
    return {
        "alpha": spark(rails(PORT_0, 11)),
        "beta": spark(rails(PORT_1, 12), management="192.168.86.12/24", **beta),
    }


def test_a_single_node_needs_no_network(spark, cluster):
    facts = spark(management=None, interfaces=Unread(unread="no ip"), hcas=Unread(unread="no sysfs"))

    group = topology.build(cluster({"solo": "10.0.0.1"}), {"solo": facts}).groups[0]

    assert (group.kind, group.head.address, group.head.interface) == ("single", "127.0.0.1", "lo")
    assert group.head.links == ()
    assert group.endpoint == "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize("gone", TWO)
def test_a_node_that_does_not_answer_does_not_change_the_ranks_and_links_of_the_others(gone, spark, cluster):
    whole = topology.build(cluster(TWO), two(spark, gid=5))
    facts = {name: node_facts for name, node_facts in two(spark, gid=5).items() if name != gone}

    group = topology.build(cluster(TWO), facts, missing={gone}).groups[0]

    (left,) = group.members
    assert left == whole.members[left.name]
    assert (group.kind, group.missing, group.size) == ("direct", (gone,), 2)
    assert group.api_host == "127.0.0.1"


def test_a_group_without_an_answering_node_is_omitted(spark, cluster):
    groups = [{"name": "one", "nodes": ["alpha"]}, {"name": "two", "nodes": ["beta"]}]

    built = topology.build(cluster(TWO, groups=groups), {"beta": spark()}, missing={"alpha"})

    assert [group.name for group in built.groups] == ["two"]


def test_each_node_has_its_own_ports_names_and_gid_layout(spark, cluster):
    built = topology.build(cluster(TWO), two(spark, gid=5))

    alpha, beta = built.groups[0].members
    assert built.groups[0].kind == "direct"
    assert (alpha.rank, alpha.address, alpha.interface) == (0, "192.168.177.11", "enp1s0f0np0")
    assert (alpha.hcas, alpha.gid_index) == (("rocep1s0f0", "roceP2p1s0f0"), 3)
    assert (beta.rank, beta.address, beta.interface) == (1, "192.168.177.12", "enp1s0f1np1")
    assert (beta.hcas, beta.gid_index) == (("rocep1s0f1", "roceP2p1s0f1"), 5)
    assert [rail.subnet for rail in built.rails] == ["192.168.177.0/24", "192.168.178.0/24"]
    assert tuple(name for name, _ in built.rails[0].links) == ("alpha", "beta")


def test_hcas_with_different_layouts_share_no_gid_index(spark, cluster):
    built = topology.build(cluster(TWO), two(spark, gid={"enp1s0f1np1": 3, "enP2p1s0f1np1": 5}))

    beta = built.members["beta"]
    assert beta.gid_index is None
    assert [link.gid_index for link in beta.links] == [3, 5]


def test_with_both_ports_cabled_all_four_twins_are_used(spark, cluster):
    def both(number):
        return {**rails(PORT_0, number), **rails(PORT_1, number, "192.168.179", "192.168.180")}

    facts = {"alpha": spark(both(11)), "beta": spark(both(12), management="192.168.86.12/24")}

    assert len(topology.build(cluster(TWO), facts).members["alpha"].hcas) == 4


def test_a_rail_on_a_single_node_is_omitted(spark, cluster):
    facts = two(spark)
    facts["beta"] = spark({"enp1s0f1np1": "192.168.177.12/24", "enP2p1s0f1np1": "10.9.9.1/24"})

    built = topology.build(cluster(TWO), facts)

    assert built.members["alpha"].hcas == ("rocep1s0f0",)
    assert [rail.subnet for rail in built.rails] == ["192.168.177.0/24"]


def test_link_local_twins_count_if_there_are_no_others(spark, cluster):
    facts = {
        "alpha": spark(rails(PORT_0, 11, "169.254.10", "169.254.20") | {}),
        "beta": spark(rails(PORT_1, 12, "169.254.10", "169.254.20"), management="192.168.86.12/24"),
    }
    for name, own in facts.items():
        moved = tuple(
            interface.model_copy(update={"addresses": tuple(a.replace("/24", "/16") for a in interface.addresses)})
            if interface.name.startswith(("enp1", "enP2"))
            else interface
            for interface in own.interfaces
        )
        facts[name] = own.model_copy(update={"interfaces": moved})

    built = topology.build(cluster(TWO), facts)

    assert [rail.subnet for rail in built.rails] == ["169.254.0.0/16"]
    assert tuple(name for name, _ in built.rails[0].links) == ("alpha", "beta")
    assert built.members["alpha"].hcas == ("rocep1s0f0",)
    assert built.members["beta"].hcas == ("rocep1s0f1",)
    assert [link.hca for link in built.members["beta"].idle_twins] == ["roceP2p1s0f1"]


def test_of_twins_in_one_subnet_the_first_on_the_bus_is_used_on_every_node(spark, cluster):
    """NVIDIA's guide for switches leaves both twins to one DHCP server."""
    hosts = {"a": "192.168.86.11", "b": "192.168.86.12", "c": "192.168.86.13"}
    facts = {
        name: spark(
            {port[0]: f"192.168.100.{number}/24", port[1]: f"192.168.100.{number + 100 * way}/24"},
            management=f"192.168.86.{number}/24",
        )
        for name, number, port, way in (("a", 101, PORT_0, 1), ("b", 102, PORT_1, -1), ("c", 103, PORT_0, 1))
    }
    (group,) = topology.build(cluster(hosts), facts).groups
    assert group.kind == "switch"
    assert [member.interface for member in group.members] == ["enp1s0f0np0", "enp1s0f1np1", "enp1s0f0np0"]
    assert [len(member.links) for member in group.members] == [1, 1, 1]
    assert [member.idle_twins[0].interface for member in group.members] == [
        "enP2p1s0f0np0", "enP2p1s0f1np1", "enP2p1s0f0np0"
    ]  # fmt: skip
    rails_of = {"rails": ["192.168.100.0/24"]}
    assert topology.build(cluster(hosts, interconnect=rails_of), facts).groups == (group,)


def test_all_twins_listed_in_the_inventory_are_used(spark, cluster):
    facts = {
        name: spark({PORT_0[0]: f"10.0.0.{number}/24", PORT_0[1]: f"10.0.0.{number + 50}/24"},
                    management=f"192.168.86.{number}/24")
        for name, number in (("alpha", 11), ("beta", 12))
    }  # fmt: skip
    nodes = {name: {"interconnect": {"interfaces": list(PORT_0)}} for name in facts}
    members = topology.build(cluster(TWO, nodes=nodes), facts).members
    assert {(len(member.links), member.idle_twins) for member in members.values()} == {(2, ())}


def test_three_nodes_with_separate_subnets_per_pair_are_a_ring(spark, cluster):
    hosts = {"a": "192.168.86.11", "b": "192.168.86.12", "c": "192.168.86.13"}
    facts = {
        "a": spark(rails(PORT_0, 1, "10.1.0", "10.1.1") | rails(PORT_1, 1, "10.3.0", "10.3.1")),
        "b": spark(
            rails(PORT_0, 2, "10.2.0", "10.2.1") | rails(PORT_1, 2, "10.1.0", "10.1.1"),
            management="192.168.86.12/24",
        ),
        "c": spark(
            rails(PORT_0, 3, "10.3.0", "10.3.1") | rails(PORT_1, 3, "10.2.0", "10.2.1"),
            management="192.168.86.13/24",
        ),
    }

    built = topology.build(cluster(hosts), facts)

    group = built.groups[0]
    assert group.kind == "ring"
    assert [member.address for member in group.members] == list(hosts.values())
    assert {member.interface for member in group.members} == {"enP7s7"}
    assert all(len(member.hcas) == 4 for member in group.members)
    assert len(built.rails) == 6


def test_two_groups_on_one_switch_share_its_rails(spark, cluster):
    hosts = {f"s{n}": f"192.168.86.{n}" for n in (11, 12, 13, 14)}
    facts = {f"s{n}": spark(rails(PORT_0, n), management=f"192.168.86.{n}/24") for n in (11, 12, 13, 14)}
    groups = [{"name": "left", "nodes": ["s11", "s12"]}, {"name": "right", "nodes": ["s14", "s13"]}]

    built = topology.build(cluster(hosts, groups=groups, api={"host": "management"}), facts)

    assert [group.head.name for group in built.groups] == ["s11", "s14"]
    assert [group.endpoint for group in built.groups] == [
        "http://192.168.86.11:8000/v1",
        "http://192.168.86.14:8000/v1",
    ]
    assert tuple(name for name, _ in built.rails[0].links) == ("s11", "s12", "s14", "s13")


def test_without_any_cable_the_nodes_use_the_wired_management_network(spark, cluster):
    facts = {"alpha": spark(), "beta": spark(management="192.168.86.12/24")}

    group = topology.build(cluster({"alpha": "alpha.local", "beta": "beta.local"}), facts).groups[0]

    assert group.kind == "management"
    assert [member.interface for member in group.members] == ["enP7s7", "enP7s7"]
    assert group.head.links == ()


def test_wifi_is_used_only_without_a_wire(spark, cluster):
    facts = {"alpha": spark(management=None), "beta": spark(management=None)}

    group = topology.build(cluster({"alpha": "alpha.local", "beta": "beta.local"}), facts).groups[0]

    assert [member.interface for member in group.members] == ["wlP9s9", "wlP9s9"]


def test_rails_of_the_inventory_are_used_without_rdma(spark, cluster):
    facts = {"alpha": spark(), "beta": spark(management="192.168.86.12/24")}
    spec = cluster(TWO, interconnect={"rails": ["192.168.86.0/24"]})

    group = topology.build(spec, facts).groups[0]

    assert (group.kind, group.head.address, group.head.hcas) == ("direct", "192.168.86.11", ())


def test_a_node_without_a_rail_is_named_with_its_addresses(spark, cluster):
    spec = cluster(TWO, interconnect={"rails": ["10.99.0.0/24"]})

    with pytest.raises(PlanError, match=r"alpha has no address .*192\.168\.177\.11/24") as caught:
        topology.build(spec, two(spark))
    assert caught.value.node == "alpha"
    assert "interconnect.rails" in str(caught.value.hint)


def test_an_explicit_address_is_used_unchanged(spark, cluster):
    own = {"interfaces": ["enP2p1s0f0np0"], "hcas": ["roceP2p1s0f0"], "gid_index": 7}
    spec = cluster(TWO, nodes={"alpha": {"interconnect": own}})

    alpha = topology.build(spec, two(spark)).members["alpha"]

    assert (alpha.interface, alpha.hcas, alpha.gid_index) == ("enP2p1s0f0np0", ("roceP2p1s0f0",), 7)


def test_nodes_in_routed_subnets_connect_if_every_interface_is_listed(spark, cluster):
    facts = {"alpha": spark({"enp1s0f0np0": "10.1.0.1/24"}), "beta": spark({"enp1s0f0np0": "10.2.0.1/24"})}
    own = {"interconnect": {"interfaces": ["enp1s0f0np0"]}}

    group = topology.build(cluster(TWO, nodes={"alpha": own, "beta": own}), facts).groups[0]

    assert [member.address for member in group.members] == ["10.1.0.1", "10.2.0.1"]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"interfaces": ["enp9s0"]}, "interface enp9s0 of alpha does not exist"),
        ({"interfaces": ["enp1s0f1np1"]}, "interface enp1s0f1np1 of alpha has no IPv4 address"),
        ({"interfaces": ["enp1s0f0np0"], "hcas": ["mlx5_0"]}, "HCA mlx5_0 of alpha does not exist"),
    ],
)
def test_a_missing_explicit_part_is_named(spark, cluster, own, said):
    with pytest.raises(PlanError, match=said):
        topology.build(cluster(TWO, nodes={"alpha": {"interconnect": own}}), two(spark))


def test_unreadable_interfaces_give_the_reason(spark, cluster):
    facts = two(spark) | {"beta": spark(interfaces=Unread(unread="ip: not found"))}

    with pytest.raises(PlanError, match="ip: not found"):
        topology.build(cluster(TWO), facts)


@pytest.mark.parametrize(
    ("host", "listens", "endpoint"),
    [
        ("0.0.0.0", "0.0.0.0", "http://192.168.86.11:8000/v1"),
        ("management", "192.168.86.11", "http://192.168.86.11:8000/v1"),
        ("interconnect", "192.168.177.11", "http://192.168.177.11:8000/v1"),
        ("::1", "::1", "http://[::1]:8000/v1"),
    ],
)
def test_the_endpoint_of_each_api_host(spark, cluster, host, listens, endpoint):
    group = topology.build(cluster(TWO, api={"host": host}), two(spark)).groups[0]

    assert (group.api_host, group.endpoint) == (listens, endpoint)


def test_a_rail_in_a_vlan_has_the_hca_of_its_port(spark, cluster):
    """The kernel lists the GIDs of a VLAN interface in the table of its parent port."""
    facts = {}
    for place, name in enumerate(TWO, 11):
        node = spark({"enp1s0f1np1": f"10.0.77.{place}/24"})
        moved = [
            each.model_copy(update={"name": "enp1s0f1np1.100", "driver": None, "pci": None})
            for each in node.interfaces
            if each.name == "enp1s0f1np1"
        ]
        gids = {
            hca.name: [gid.model_copy(update={"netdev": f"{gid.netdev}.100"}) if gid.ipv4 else gid for gid in hca.gids]
            for hca in node.hcas
        }
        hcas = tuple(hca.model_copy(update={"gids": tuple(gids[hca.name])}) for hca in node.hcas)
        bare = [each.model_copy(update={"addresses": ()}) for each in node.interfaces if each.name == "enp1s0f1np1"]
        others = [each for each in node.interfaces if each.name != "enp1s0f1np1"]
        facts[name] = node.model_copy(update={"interfaces": (*others, *bare, *moved), "hcas": hcas})
    (group,) = topology.build(cluster(TWO), facts).groups
    for member in group.members:
        assert [(link.interface, link.hca, link.gid_index) for link in member.links] == [
            ("enp1s0f1np1.100", "rocep1s0f1", 3)
        ]
