"""The file of `lab up --spec`: its meaning, and its errors."""

from pathlib import Path

import pytest

from sparkcluster.errors import SpecError
from sparkcluster.lab.spec import FUNCTIONS, GID_LAYOUTS, load, plain
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


def test_in_a_ring_each_cable_has_two_rails_and_two_ends(tmp_path):
    spec = load(write(tmp_path, "topology: ring\nsparks: [{}, {}, {}]\n"))
    ends: dict[int, list[tuple[int, str]]] = {}
    for index in range(3):
        for netdev, rail in spec.rails(index).items():
            ends.setdefault(rail, []).append((index, netdev[-2:]))
    assert ends[0] == ends[1] == [(0, "p1"), (1, "p0")]
    assert ends[4] == ends[5] == [(0, "p0"), (2, "p1")]
    assert len(ends) == 6


def test_defaults_hold_for_every_spark_and_can_be_overridden(tmp_path):
    text = "defaults: {driver: '590.48.01', gids: shifted}\nsparks:\n- {}\n- {driver: '580.142', gids: {rocep1s0f1: standard}}\n"
    first, second = load(write(tmp_path, text)).sparks
    assert (first.driver, second.driver) == ("590.48.01", "580.142")
    assert first.gids["rocep1s0f1"] == GID_LAYOUTS["shifted"]
    assert second.gids["rocep1s0f1"] == GID_LAYOUTS["standard"]
    assert second.gids["roceP2p1s0f1"] == GID_LAYOUTS["shifted"]


def test_the_example_in_the_documentation_is_a_spec(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "internals" / "lab.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    left, right = load(write(tmp_path, example)).sparks
    assert (left.ports, left.ota, right.ota, right.management) == ("p0", "7.5.0", "7.6.0", "lan0")
    assert list(right.gids["roceP2p1s0f1"].items())[-1] == (9, "ipv4 v2")


def test_a_spec_survives_a_round_trip_through_json(tmp_path):
    spec = load(write(tmp_path, "topology: direct\nsparks: [{gids: shifted}, {addresses: {enp1s0f1np1: null}}]\n"))
    State("id", tmp_path.name, tmp_path, 3, "stub", spec).write()
    assert State.read(tmp_path).spec == spec


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("sparks:\n- mtu: fast\n", ":2:8: sparks[0].mtu", '"fast" is not a whole number'),
        ("sparks:\n- {}\n- ports: p7\n", ":3:10: sparks[1].ports", "p0, p1, both or none"),
        ("sparks:\n- nmae: a\n", ":2:3: sparks[0].nmae", "unknown key"),
        ("sparks:\n- name: a; touch /tmp/x\n", ":2:9: sparks[0].name", "host name"),
        ("sparks:\n- addresses: {enp1s0f1np1: 300.1.1.1/24}\n", ":2:28:", "an address"),
        ("sparks: [{docker: containerd, system: debian-12}]\n", ":1:1:", "spark-0001: `docker: containerd` needs"),
        ("sparks: [{sudo: free}]\n", ":1:1:", "spark-0001: `sudo` is for bare Sparks, `bare: true`"),
        ("topology: crossed\nsparks: [{ports: p0}, {}]\n", ":1:1:", "requires `ports: both` for every Spark"),
        ("topology: ring\nsparks: [{}, {}]\n", ":1:1:", "needs 3 Sparks"),
        ("sparks: 3\n", ":1:9:", "3 is not a list"),
        ("sparks: [\n", ":2:1:", "expected"),
    ],
)
def test_a_mistake_is_reported_with_its_position(tmp_path, text, where, message):
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, text))
    assert where in str(caught.value)
    assert message in str(caught.value)
