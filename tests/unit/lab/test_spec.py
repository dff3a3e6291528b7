"""The file behind `lab up --spec`: what it means, and what is said when it is wrong."""

from pathlib import Path

import pytest

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.lab.spec import FUNCTIONS, GID_LAYOUTS, load, plain, with_access
from sparkcluster.lab.state import State


def write(directory: Path, text: str) -> Path:
    path = directory / "lab.yaml"
    path.write_text(text)
    return path


def test_plain_sparks_have_both_twins_of_port_1_on_two_rails():
    spec = plain(2)
    assert [spark.name for spark in spec.sparks] == ["spark-0001", "spark-0002"]
    assert spec.rails(1) == {"enp1s0f1np1": 0, "enP2p1s0f1np1": 1}
    assert [spec.address(1, function) for function in FUNCTIONS] == [
        None,
        "192.168.177.12/24",
        None,
        "192.168.178.12/24",
    ]


def test_sparks_cabled_in_different_ports_share_the_rails(tmp_path):
    spec = load(write(tmp_path, "sparks:\n- {ports: p0}\n- {ports: p1, interfaces: {enp1s0f1np1: fast0}}\n"))
    assert spec.rails(0) == {"enp1s0f0np0": 0, "enP2p1s0f0np0": 1}
    assert spec.rails(1) == {"enp1s0f1np1": 0, "enP2p1s0f1np1": 1}
    assert spec.sparks[1].netdev(FUNCTIONS[1]) == "fast0"


def test_in_a_ring_each_cable_has_two_rails_and_two_ends(tmp_path):
    spec = load(write(tmp_path, "topology: ring\nsparks: [{}, {}, {}]\n"))
    ends: dict[int, list[tuple[int, str]]] = {}
    for index in range(3):
        for netdev, rail in spec.rails(index).items():
            ends.setdefault(rail, []).append((index, netdev[-2:]))
    assert ends[0] == ends[1] == [(0, "p1"), (1, "p0")]
    assert ends[4] == ends[5] == [(0, "p0"), (2, "p1")]
    assert len(ends) == 6


def test_pairs_have_cables_of_their_own_and_the_same_addresses(tmp_path):
    spec = load(write(tmp_path, "topology: pairs\nsparks: [{}, {}, {}, {ports: both}]\n"))
    rails = [set(spec.rails(index).values()) for index in range(4)]
    assert rails == [{0, 1}, {0, 1}, {4, 5}, {4, 5, 6, 7}]
    twins = [[spec.address(index, FUNCTIONS[at]) for at in (1, 3)] for index in range(3)]
    assert twins[0] == twins[2] == ["192.168.177.11/24", "192.168.178.11/24"]
    assert twins[1] == ["192.168.177.12/24", "192.168.178.12/24"]
    assert spec.address(3, FUNCTIONS[0]) == "192.168.177.12/24"  # its first cabled port is p0
    assert spec.address(3, FUNCTIONS[1]) == "192.168.179.12/24"


def test_crossed_cables_join_port_0_of_one_with_port_1_of_the_other(tmp_path):
    spec = load(write(tmp_path, "topology: crossed\nsparks: [{}, {}]\n"))
    assert spec.rails(0)["enp1s0f0np0"] == spec.rails(1)["enp1s0f1np1"]
    assert spec.rails(0)["enP2p1s0f1np1"] == spec.rails(1)["enP2p1s0f0np0"]
    first, second = (spec.address(0, FUNCTIONS[0]), spec.address(1, FUNCTIONS[1]))
    assert (first, second) == ("192.168.177.11/24", "192.168.177.12/24")


def test_twins_of_bare_sparks_share_a_wire_and_a_switch_is_one(tmp_path):
    both = "bare: true\ndefaults: {ports: both}\nsparks: [{}, {}]\n"
    assert set(load(write(tmp_path, both)).wires(1).values()) == {"switch"}
    cabled = load(write(tmp_path, "topology: direct\n" + both)).wires(1)
    assert cabled == {"enp1s0f0np0": "cable0", "enP2p1s0f0np0": "cable0"} | {
        "enp1s0f1np1": "cable1",
        "enP2p1s0f1np1": "cable1",
    }
    assert len(set(load(write(tmp_path, both.replace("true", "false"))).wires(1).values())) == 4


def test_bare_sparks_have_the_addresses_that_are_written_and_no_others(tmp_path):
    spec = load(write(tmp_path, "bare: true\nsparks: [{}, {addresses: {enp1s0f1np1: 10.0.0.1/24}}]\n"))
    assert [spec.address(0, function) for function in FUNCTIONS] == [None] * 4
    assert spec.address(1, FUNCTIONS[1]) == "10.0.0.1/24"
    assert [spark.mtu for spark in spec.sparks] == [1500, 1500]
    assert plain(1, bare=True).sparks[0].mtu == 1500
    assert plain(1).sparks[0].mtu == 9000


def test_flags_fill_in_what_the_file_of_bare_sparks_leaves_out(tmp_path):
    path = write(tmp_path, "sparks: [{}, {sudo: free}]\n")
    spec = with_access(load(path, bare=True), "password", "refused")
    assert [(spark.login, spark.sudo) for spark in spec.sparks] == [("password", "refused"), ("password", "free")]
    with pytest.raises(UsageError, match="--login is for bare Sparks"):
        with_access(plain(1), "key", None)


def test_defaults_hold_for_every_spark_and_can_be_overridden(tmp_path):
    text = "defaults: {driver: '590.48.01', gids: shifted}\nsparks:\n- {}\n- {driver: '580.142', gids: {rocep1s0f1: standard}}\n"
    first, second = load(write(tmp_path, text)).sparks
    assert (first.driver, second.driver) == ("590.48.01", "580.142")
    assert first.gids["rocep1s0f1"] == GID_LAYOUTS["shifted"]
    assert second.gids["rocep1s0f1"] == GID_LAYOUTS["standard"]
    assert second.gids["roceP2p1s0f1"] == GID_LAYOUTS["shifted"]


def test_defaults_alone_take_the_number_that_was_asked_for(tmp_path):
    assert len(load(write(tmp_path, "defaults: {mtu: 1500}\n"), 5).sparks) == 5


def test_another_docker_than_the_distributions_brings_debian_13(tmp_path):
    plain, store, newer = load(write(tmp_path, "sparks: [{}, {docker: containerd}, {docker: overlay2-28}]\n")).sparks
    assert [spark.system for spark in (plain, store, newer)] == ["machine", "debian-13", "debian-13"]
    assert [spark.containerd for spark in (plain, store, newer)] == [False, True, False]


def test_an_explicit_gid_table(tmp_path):
    text = "sparks: [{gids: {rocep1s0f1: {0: mac v1, 9: ipv4 v2, 11: 'fe80::1 v2'}}}]\n"
    assert load(write(tmp_path, text)).sparks[0].gids == {"rocep1s0f1": {0: "mac v1", 9: "ipv4 v2", 11: "fe80::1 v2"}}


def test_the_example_in_the_documentation_is_a_spec(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    left, right = load(write(tmp_path, example)).sparks
    assert (left.ports, left.ota, right.ota, right.management) == ("p0", "7.5.0", "7.6.0", "lan0")
    assert list(right.gids["roceP2p1s0f1"].items())[-1] == (9, "ipv4 v2")


def test_a_spec_survives_its_journey_through_json(tmp_path):

    spec = load(write(tmp_path, "topology: direct\nsparks: [{gids: shifted}, {addresses: {enp1s0f1np1: null}}]\n"))
    State("id", "lab", tmp_path, 3, "stub", spec).write()
    assert State.read(tmp_path).spec == spec


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("sparks:\n- mtu: fast\n", ":2:8: sparks[0].mtu", "must be an integer"),
        ("sparks:\n- {}\n- ports: p7\n", ":3:10: sparks[1].ports", "p0, p1, both or none"),
        ("sparks:\n- nmae: a\n", ":2:3: sparks[0].nmae", "unknown key"),
        ("sparks:\n- name: a; touch /tmp/x\n", ":2:9: sparks[0].name", "host name"),
        ("sparks:\n- addresses: {enp1s0f1np1: 300.1.1.1/24}\n", ":2:28:", "an address"),
        ("sparks:\n- addresses: {eth7: 10.0.0.1/24}\n", ":1:1:", "no interface eth7"),
        ("sparks:\n- interfaces: {enp1s0f1np1: a-name-of-16-chr}\n", ":2:29:", "interface name"),
        ("sparks:\n- gids: {rocep1s0f1: {3: ipv4}}\n", ":2:26:", "ipv4 v2"),
        ("sparks:\n- interfaces: {eth0: fast0}\n", ":2:16: sparks[0].interfaces.eth0", "must be one of enP7s7, wlP9s9"),
        ("sparks:\n- gids: [shifted]\n", ":2:9: sparks[0].gids", "must be standard, shifted, missing or a section"),
        ("sparks:\n- gids: {rocep1s0f1: tilted}\n", ":2:22:", "must be standard, shifted, missing or a section"),
        ("sparks:\n- gids: {rocep1s0f1: {256: ipv4 v2}}\n", ":2:23:", "an index from 0 to 255"),
        ("sparks:\n- docker: zfs\n", ":2:11: sparks[0].docker", "overlay2, containerd, overlay2-28 or containerd-28"),
        ("sparks: [{docker: containerd, system: debian-12}]\n", ":1:1:", "spark-0001: `docker: containerd` needs"),
        ("defaults: {system: machine}\nsparks: [{docker: containerd}]\n", ":1:1:", "needs `system: debian-13`"),
        ("sparks: [{sudo: free}]\n", ":1:1:", "spark-0001: `sudo` is for bare Sparks, `bare: true`"),
        ("bare: true\nsparks: [{login: guest}]\n", ":2:18:", "key or password"),
        ("topology: crossed\nsparks: [{ports: p0}, {}]\n", ":1:1:", "every Spark has `ports: both`"),
        ("topology: star\n", ":1:11: topology", "switch, direct, pairs, ring or crossed"),
        ("topology: pairs\nsparks: [{}, {}, {}]\n", ":1:1:", "needs an even number of Sparks, not 3"),
        ("topology: ring\nsparks: [{}, {}]\n", ":1:1:", "needs 3 Sparks"),
        ("sparks: [{name: a}, {name: a}]\n", ":1:1:", "two Sparks are called a"),
        ("sparks: 3\n", ":1:9:", "must be a list"),
        ("- 1\n", ":1:1:", "found a list"),
        ("", ":1:1:", "the file is empty"),
        ("sparks: [\n", ":2:1:", "expected"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, text, where, message):
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, text))
    assert where in str(caught.value)
    assert message in str(caught.value)


def test_every_mistake_is_told_at_once(tmp_path):
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, "sparks:\n- {mtu: a, ports: b}\n- {gpu: c}\n"))
    assert len(caught.value.problems) == 3


def test_a_file_that_cannot_be_read_or_counts_otherwise_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match="describes 1 Sparks, not 2"):
        load(write(tmp_path, "sparks: [{}]\n"), 2)
    with pytest.raises(UsageError, match="1 to 32"):
        plain(0)
