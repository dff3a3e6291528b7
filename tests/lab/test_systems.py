"""Sparks with two Debian releases in one cluster: different Python, OpenSSH and Docker."""

from __future__ import annotations

import pytest

SPEC = """
sparks:
- {name: old, system: debian-12}
- {name: new, system: debian-13}
"""


@pytest.fixture(scope="module")
def shared_lab(make_mixed_lab):
    return make_mixed_lab(SPEC)


@pytest.mark.full
def test_a_cluster_of_debian_12_and_13_starts_and_stops(lab, cli, preflight, ranks):
    versions = [
        spark.run(["sh", "-c", ". /etc/os-release; echo $VERSION_ID; python3 -V; sshd -V 2>&1; docker -v"]).stdout
        for spark in lab.sparks
    ]
    assert [text.split()[0] for text in versions] == ["12", "13"]
    assert "Python 3.13" in versions[1]
    assert "OpenSSH_10" in versions[1]
    assert "Docker version 26.1" in versions[1]

    result = preflight(lab.inventory)
    assert result.found == {("HOST-007", "old", "warning")}
    [difference] = [finding for finding in result.document["findings"] if finding["code"] == "HOST-007"]
    assert difference["seen"].startswith("debian 12 on old, debian 13 on new")

    up = cli("up", lab.inventory).ok()
    assert "release 1, " in up.out
    status = cli("status", lab.inventory, "--json").ok().json
    assert [(node["name"], node["state"], node["ray"]) for node in status["nodes"]] == [
        ("old", "running", "alive"),
        ("new", "running", "alive"),
    ]
    assert cli("ask", lab.inventory, "Say something").ok().out.strip()
    assert "2 ranks removed" in cli("down", lab.inventory).ok().out
    assert ranks(lab) == {"old": [], "new": []}
