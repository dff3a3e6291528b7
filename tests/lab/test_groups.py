"""Groups of every shape on virtual Sparks: replicas, a ring, and an image with a non-root user. Stub engine."""

from __future__ import annotations

import pytest

from tests.lab import builds
from tests.lab.switching import Client


@pytest.fixture(scope="module")
def four(make_lab):
    """Four Sparks on a switch."""
    return make_lab(4)


def words(cli, inventory, prompt="Say something", *more):
    """A cluster's answer."""
    return cli("ask", inventory, prompt, "--max-tokens", "12", *more).ok().out.strip()


def running(ranks, lab):
    return {name: [state for _, _, state in found] for name, found in ranks(lab).items()}


@pytest.fixture
def quad(four, clean):
    """The four Sparks, empty."""
    clean(four)
    yield four
    clean(four)


@pytest.mark.full
def test_four_sparks_serve_two_replicas_and_a_dead_replica_is_restarted(quad, make_cli, variant, ranks):
    cli = make_cli()
    names = [spark.name for spark in quad.sparks]
    groups = [{"name": "east", "nodes": names[:2]}, {"name": "west", "nodes": names[2:]}]
    path = variant(quad, groups=groups)
    up = cli("up", path, "--json").ok().json
    assert [(group["name"], group["nodes"]) for group in up["groups"]] == [("east", names[:2]), ("west", names[2:])]
    status = cli("status", path, "--json").ok().json
    assert [(group["name"], group["ready"], group["endpoint"]) for group in status["groups"]] == [
        ("east", True, f"http://{quad.sparks[0].host}:8000/v1"),
        ("west", True, f"http://{quad.sparks[2].host}:8000/v1"),
    ]
    assert [node["role"] for node in status["nodes"]] == ["head", "worker", "head", "worker"]
    assert words(cli, path, "Hello", "--group", "east") == words(cli, path, "Hello", "--group", "west")

    east = [ranks(quad)[name] for name in names[:2]]
    quad.fault(names[3], "kill-worker")
    status = cli("status", path, "--json")
    assert (status.code, status.json["state"]) == (1, "degraded")
    assert [group["state"] for group in status.json["groups"]] == ["serving", "degraded"]

    with Client(up["groups"][0]["endpoint"], up["model"]) as client:
        again = cli("up", path, "--json").ok().json
        assert (again["changed"], again["release"]) == (True, 2)
    assert client.answered
    assert client.failed == []
    assert [ranks(quad)[name] for name in names[:2]] == east
    status = cli("status", path, "--json").ok().json
    assert [(group["name"], group["release"]) for group in status["groups"]] == [("east", 1), ("west", 2)]
    cli("down", path).ok()
    assert running(ranks, quad) == {name: [] for name in names}


@pytest.mark.full
def test_a_replica_that_fails_to_start_leaves_the_other_serving(quad, make_cli, variant, ranks):
    cli = make_cli()
    names = [spark.name for spark in quad.sparks]
    groups = [{"name": "east", "nodes": names[:2]}, {"name": "west", "nodes": names[2:]}]
    path = variant(quad, groups=groups, playbook={"env": {"STUB_FAULT": f"die-load=4@{names[3]}"}})
    up = cli("up", path)
    assert up.code == 1, up
    assert names[3] in up.err
    assert "east serves as release 1" in up.err
    assert running(ranks, quad) == {names[0]: ["running"], names[1]: ["running"], names[2]: [], names[3]: []}
    status = cli("status", path, "--json")
    assert (status.code, status.json["state"]) == (1, "degraded")
    assert [(group["name"], group["state"]) for group in status.json["groups"]] == [
        ("east", "serving"),
        ("west", "down"),
    ]
    assert words(cli, path, "Hello", "--group", "east")


RING = """
topology: ring
sparks:
- name: one
- name: two
- name: three
"""


@pytest.mark.full
def test_a_ring_of_three_nodes_serves(make_lab, make_cli, ranks):
    ring = make_lab(RING)
    cli = make_cli()
    plan = cli("plan", ring.inventory, "--json").ok().json
    for name in ("one", "two", "three"):
        env = plan["nodes"][name]["env"]
        assert env["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
        assert env["NCCL_IB_MERGE_NICS"] == "0"
        assert env["GLOO_SOCKET_IFNAME"] == "enP7s7"
        assert len(env["NCCL_IB_HCA"].split(",")) == 4
    # 4 attention heads are not divisible by 3; the stub ignores layers.
    up = cli("up", ring.inventory).ok()
    assert "is up" in up.out
    status = cli("status", ring.inventory, "--json").ok().json
    assert [node["state"] for node in status["nodes"]] == ["running"] * 3
    assert words(cli, ring.inventory)
    cli("down", ring.inventory).ok()
    assert running(ranks, ring) == {"one": [], "two": [], "three": []}
    ring.down()


@pytest.mark.full
def test_an_image_with_a_non_root_user_serves_and_keeps_its_caches(make_lab, make_cli):
    """Like vLLM's images, with ``vllm serve`` as entrypoint."""
    lab = make_lab("sparks: [{name: left}, {name: right}]\n")
    builds.replace(lab, changes={"User": "2000", "Entrypoint": ["vllm", "serve"], "Cmd": None, "Labels": {}})
    cli = make_cli()
    cli("up", lab.inventory).ok()
    assert words(cli, lab.inventory)
    for spark in lab.sparks:
        inside = 'docker exec $(docker ps -q) sh -c "id -u; touch ~/.cache/vllm/kept ~/.triton/kept ~/new; ls ~/.cache"'
        assert spark.run(["sh", "-c", inside]).stdout.split()[0] == "2000"
        kept = spark.run(["sh", "-c", "ls -l /root/.local/state/sparkcluster/caches/*/*/*/vllm/kept"]).stdout
        assert " 2000 " in kept
    cli("down", lab.inventory).ok()
    lab.down()
