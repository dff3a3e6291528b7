"""Each check on a cluster that has the fault, and all of them on one that has none."""

from __future__ import annotations

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.registry import CATALOGUE, Check, Context, run
from sparkcluster.facts.base import Unread

PORT_0 = ("enp1s0f0np0", "enP2p1s0f0np0")
TWO = {"alpha": "192.168.86.11", "beta": "192.168.86.12"}


def look_at(spec, facts):
    """Findings from the nodes' facts alone; what is written is judged elsewhere."""
    return checks.run_stage(Context(spec, facts, topology.build(spec, facts)), ("facts",))


def rails(number):
    return {PORT_0[0]: f"192.168.177.{number}/24", PORT_0[1]: f"192.168.178.{number}/24"}


@pytest.fixture
def found(spark, cluster):
    """Findings of two Sparks: ``beta`` described anew or changed in single facts."""

    def look(beta=None, changes=None, playbook=None, alpha=None, **inventory):
        facts = {
            "alpha": alpha or spark(rails(11)),
            "beta": beta or spark(rails(12), management="192.168.86.12/24"),
        }
        facts["beta"] = facts["beta"].model_copy(update=changes or {})
        spec = cluster(TWO, playbook=playbook, **inventory)
        return look_at(spec, facts)

    return look


def only(findings, code):
    assert {finding.code for finding in findings} == {code}, findings
    return findings[0]


def test_a_healthy_cluster_has_no_finding(found):
    assert found() == []


def test_every_check_has_a_title_and_a_reason():
    for code, check in CATALOGUE.items():
        assert code == check.code
        assert check.title
        assert len(check.why) > 20


def test_every_finding_tells_what_to_type(found, spark):
    findings = found(spark(), changes={"docker": Unread(unread="permission denied"), "gpus": ()})

    assert findings
    assert all(finding.remedy and finding.seen and finding.why for finding in findings)


def test_a_missing_gid_stops_the_launch(found, spark):
    finding = only(found(spark(rails(12), gid={PORT_0[0]: 3, PORT_0[1]: None})), "NET-003")

    assert (finding.severity, finding.node) == ("error", "beta")
    assert "roceP2p1s0f0" in finding.summary


def test_an_index_given_by_hand_has_to_be_right(found):
    own = {"interconnect": {"interfaces": list(PORT_0), "gid_index": 1}}

    findings = found(nodes={"beta": own})

    assert {(finding.code, finding.node) for finding in findings} == {("NET-003", "beta")}
    assert "index 3" in findings[0].seen


def test_a_gid_index_that_drifted_is_no_finding(found, spark):
    assert found(spark(rails(12), gid=6)) == []


def test_gids_at_unlike_places_of_one_node_are_told_for_information(found, spark):
    finding = only(found(spark(rails(12), gid={PORT_0[0]: 6, PORT_0[1]: 4})), "NET-013")

    assert (finding.severity, finding.node) == ("info", "beta")
    assert finding.seen == "rocep1s0f0 6, roceP2p1s0f0 4"


def test_one_twin_alone_is_told(found, spark):
    findings = found(spark({PORT_0[0]: "192.168.177.12/24"}))

    assert {(finding.code, finding.severity) for finding in findings} == {("NET-004", "warning")}


def test_mtu_that_differs_names_who_is_alone(spark, cluster):
    hosts = {"a": "192.168.86.11", "b": "192.168.86.12", "c": "192.168.86.13"}
    facts = {
        name: spark(rails(number), mtu=mtu, management=f"192.168.86.{number}/24")
        for name, number, mtu in (("a", 11, 9000), ("b", 12, 1500), ("c", 13, 9000))
    }
    spec = cluster(hosts)

    findings = look_at(spec, facts)

    assert [(finding.code, finding.node, finding.severity) for finding in findings] == [("NET-006", "b", "error")] * 2
    assert findings[0].remedy[0] == "sudo ip link set enp1s0f0np0 mtu 9000"


def test_of_two_the_smaller_mtu_is_the_odd_one(found, spark):
    findings = found(spark(rails(12), mtu={PORT_0[0]: 1500}))

    assert only(findings, "NET-006").node == "beta"


def test_twins_in_one_subnet(found, spark):
    both = lambda number: {PORT_0[0]: f"10.0.0.{number}/24", PORT_0[1]: f"10.0.0.{number + 50}/24"}  # noqa: E731

    findings = found(spark(both(12)), alpha=spark(both(11)))

    assert [(finding.code, finding.severity) for finding in findings] == [("NET-005", "warning")] * 2
    assert findings[0].seen.startswith("enp1s0f0np0, enP2p1s0f0np0; one twin gives 11 to 12 GB/s")


def test_nvidias_link_local_default_is_a_warning(found, spark):
    drawn = lambda number: {PORT_0[0]: f"169.254.1.{number}/16", PORT_0[1]: f"169.254.2.{number}/16"}  # noqa: E731

    findings = found(spark(drawn(12)), alpha=spark(drawn(11)))

    assert {finding.code for finding in findings} == {"NET-005", "NET-008"}
    assert {finding.severity for finding in findings} == {"warning"}


def test_no_interconnect_stops_what_would_listen_on_the_management_network(found, spark):
    finding = only(found(spark(management="192.168.86.12/24")), "NET-001")

    assert finding.severity == "error"
    assert "alpha: enp1s0f0np0 192.168.177.11/24" in finding.seen
    assert "beta: no HCA (" in finding.seen


def test_a_cable_that_is_out_is_told_from_an_address_that_is_missing(found, spark):
    beta = spark(rails(12), management="192.168.86.12/24")
    bare = tuple(
        interface.model_copy(update={"addresses": ()}) if interface.driver else interface
        for interface in beta.interfaces
    )
    down = tuple(hca.model_copy(update={"state": "DOWN"}) for hca in beta.hcas)

    assert "enp1s0f0np0 without address" in found(beta, changes={"interfaces": bare})[0].seen
    assert "the cable is not connected" in found(beta, changes={"interfaces": bare, "hcas": down})[0].seen


def test_the_management_network_serves_where_the_inventory_asks_for_it(found):
    findings = found(interconnect={"rails": ["192.168.86.0/24"]})

    assert {(finding.code, finding.severity) for finding in findings} == {("NET-001", "warning")}


def test_a_rail_that_is_down_stops_the_launch(found, spark):
    beta = spark(rails(12))
    interfaces = tuple(
        interface.model_copy(update={"carrier": False, "operstate": "down"})
        if interface.name == PORT_0[0]
        else interface
        for interface in beta.interfaces
    )
    hcas = tuple(hca.model_copy(update={"state": "DOWN"}) if hca.netdev == PORT_0[0] else hca for hca in beta.hcas)

    findings = found(
        beta,
        changes={"interfaces": interfaces, "hcas": hcas},
        interconnect={"rails": ["192.168.177.0/24", "192.168.178.0/24"]},
    )

    assert {(finding.code, finding.severity) for finding in findings} == {("NET-002", "error"), ("NET-007", "error")}


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"docker": Unread(unread="dial unix: permission denied")}, "HOST-001", "has no permission to use Docker"),
        ({"docker": Unread(unread="docker: command not found")}, "HOST-001", "Docker engine is not running"),
        ({"docker": Unread(unread="timed out")}, "HOST-001", "does not answer"),
        ({"gpus": Unread(unread="No devices were found")}, "HOST-003", "the GPU of beta does not respond"),
        ({"infiniband_devices": False}, "NET-010", "no /dev/infiniband"),
    ],
)
def test_a_host_that_cannot_run_a_rank(found, changes, code, said):
    finding = only(found(changes=changes), code)

    assert said in finding.summary
    assert (finding.severity, finding.node) == ("error", "beta")


def test_docker_group_is_joined_by_the_user_who_lacks_it(found):
    finding = found(changes={"docker": Unread(unread="permission denied")})[0]

    assert finding.remedy[0] == "sudo usermod -aG docker nvidia"


def test_no_nvidia_runtime(found, spark):
    beta = spark(rails(12), management="192.168.86.12/24")
    plain = beta.docker.model_copy(update={"runtimes": ("runc",)})
    cdi = plain.model_copy(update={"cdi_devices": ("nvidia.com/gpu=all",)})

    assert only(found(beta, changes={"docker": plain}), "HOST-002").node == "beta"
    assert found(beta, changes={"docker": cdi}) == []


def listening(spark, address, port, **changes):
    listeners = [{"address": address, "port": port, "process": "nginx"}]
    return spark(rails(11), listeners=listeners, **changes)


@pytest.mark.parametrize(
    ("address", "port", "taken"),
    [
        ("0.0.0.0", 8000, True),
        ("127.0.0.1", 8000, True),
        ("192.168.86.11", 8000, False),
        ("127.0.0.1", 6379, True),
        ("0.0.0.0", 29501, False),
        ("0.0.0.0", 8001, False),
    ],
)
def test_a_port_is_taken_where_the_addresses_meet(found, spark, address, port, taken):
    findings = found(alpha=listening(spark, address, port))

    assert bool(findings) == taken
    if taken:
        assert "nginx" in only(findings, "HOST-004").seen


def test_native_needs_its_rendezvous_port(found, spark):
    findings = found(alpha=listening(spark, "0.0.0.0", 29501), playbook={"executor": "native"})

    assert only(findings, "HOST-004").node == "alpha"


def test_a_port_that_our_own_rank_holds_is_fine(found, spark):
    ours = {"name": "x", "state": "running", "labels": {"io.sparkcluster.cluster": "atlas"}}
    theirs = {"name": "x", "state": "running", "labels": {"io.sparkcluster.cluster": "other"}}

    assert found(alpha=listening(spark, "0.0.0.0", 8000, ranks=[ours])) == []
    assert found(alpha=listening(spark, "0.0.0.0", 8000, ranks=[theirs])) != []


VLLM = {"name": "vllm", "engine": "vllm", "host_network": True}
NODE = {"name": "node", "host_network": True}
WEB = {"name": "open-webui", "ports": [3000]}


@pytest.mark.parametrize(
    ("port", "container", "seen"),
    [
        (8000, VLLM, "a process of another user, perhaps of the container vllm, listens on 0.0.0.0:8000"),
        (8000, {**WEB, "ports": [8000]}, "the container open-webui listens on 0.0.0.0:8000"),
        (8000, NODE, "a process of another user, perhaps of the container node, listens on 0.0.0.0:8000"),
        (8000, WEB, "a process of another user listens on 0.0.0.0:8000"),
    ],
)
def test_a_port_that_a_container_holds_is_named_with_it(found, spark, port, container, seen):
    listeners = [{"address": "0.0.0.0", "port": port, "process": None}]

    finding = only(found(alpha=spark(rails(11), listeners=listeners, containers=[container])), "HOST-004")

    assert finding.seen == seen
    stops = f"on alpha: docker stop {container['name']}"
    converts = "sparkcluster import --container vllm --node 192.168.86.11   makes a playbook of it, once"
    named = [converts, stops] if container is VLLM else [stops] if "container" in seen else []
    assert list(finding.remedy[: len(named)]) == named


def test_a_container_with_an_engine_is_named_where_memory_is_taken(found, spark):
    memory = {"total_bytes": 128 * 2**30, "free_bytes": 2**30, "available_bytes": 60 * 2**30,
              "cached_bytes": 0, "swap_total_bytes": 0, "swap_free_bytes": 0}  # fmt: skip

    finding = only(found(spark(rails(12), memory=memory, containers=[WEB, VLLM])), "HOST-006")

    assert finding.remedy[:2] == (
        "sparkcluster import --container vllm --node 192.168.86.12   makes a playbook of it, once",
        "on beta: docker stop vllm",
    )
    assert "open-webui" not in str(finding.remedy)


def test_a_full_disk_stops_the_launch(found, spark):
    disks = [{"purpose": "docker", "path": "/var/lib/docker", "total_bytes": 10**12, "free_bytes": 10**6}]

    assert only(found(spark(rails(12), disks=disks)), "HOST-005").severity == "error"


def test_memory_that_is_taken_is_told(found, spark):
    memory = {"total_bytes": 128 * 2**30, "free_bytes": 2**30, "available_bytes": 60 * 2**30,
              "cached_bytes": 0, "swap_total_bytes": 0, "swap_free_bytes": 0}  # fmt: skip

    finding = only(found(spark(rails(12), memory=memory)), "HOST-006")

    assert "60.0 of 128.0 GiB" in finding.seen
    assert "gpu-memory-utilization: 0.46" in finding.remedy[1]


def image(spark, **changes):
    beta = spark(rails(12), management="192.168.86.12/24")
    return {"image": beta.image.model_copy(update=changes)}


def test_another_build_of_the_image(found, spark):
    other = image(spark, layers=("sha256:99",), id="sha256:" + "99" * 32)

    assert only(found(changes=other), "IMG-001").severity == "error"


def test_one_build_has_one_mark_in_every_image_store(found, spark):
    other = image(spark, id="sha256:" + "99" * 32)
    store = spark().docker.model_copy(update={"containerd_store": True})

    assert only(found(changes=other), "IMG-001").seen.endswith("environment or entry point are not")
    assert found(changes={**other, "docker": store}) == []


def test_an_image_for_another_processor(found, spark):
    assert only(found(changes=image(spark, architecture="amd64")), "IMG-002").node == "beta"


def test_of_an_image_for_another_processor_nobody_says_that_it_runs_no_python(found, spark):
    silent = Unread(unread="neither python3 nor python starts in the image")
    findings = found(changes=image(spark, architecture="amd64", inside=silent))
    assert {finding.code for finding in findings} == {"IMG-002"}


def test_an_image_without_the_engine(found, spark):
    inside = spark().image.inside.model_copy(update={"version": None})

    assert "has no vLLM" in only(found(changes=image(spark, inside=inside)), "IMG-003").summary
    silent = image(spark, inside=Unread(unread="python3: not found"))
    assert "runs no Python" in only(found(changes=silent), "IMG-003").summary


def test_an_image_that_is_not_there_yet_is_told_and_stops_nothing(found):
    finding = only(found(changes={"image": None}), "IMG-009")

    assert (finding.severity, finding.node) == ("info", "beta")


def test_a_ray_without_token(found, spark):
    inside = spark().image.inside.model_copy(update={"ray_version": "2.51.1"})
    alpha = spark(rails(11))
    image = alpha.image.model_copy(update={"inside": inside})
    old = alpha.model_copy(update={"image": image, "compiler": "/usr/bin/cc"})

    assert only(found(alpha=old, changes={"compiler": "/usr/bin/cc"}), "IMG-004").severity == "warning"


def test_a_ray_without_token_that_cannot_be_kept_on_the_interconnect(found, spark):
    """Neither alpha nor its image has a compiler; beta's image has one."""
    alpha = spark(rails(11))
    old = alpha.image.inside.model_copy(update={"ray_version": "2.51.1"})
    image = {"image": alpha.image.model_copy(update={"inside": old})}
    built = {"image": alpha.image.model_copy(update={"inside": old.model_copy(update={"compiler": True})})}

    errors = [each for each in found(alpha=alpha.model_copy(update=image), changes=built) if each.severity == "error"]
    assert [(each.code, each.node) for each in errors] == [("IMG-004", "alpha")]
    assert "sudo apt-get install gcc" in errors[0].remedy


def test_an_api_address_that_the_head_does_not_have(found):
    assert [
        (finding.code, finding.node) for finding in found(api={"host": "10.9.9.9"}) if finding.severity == "error"
    ] == [("NET-012", "alpha")]


def test_what_the_playbook_accepts_stops_nothing_and_says_why(found):
    allow = [{"code": "NET-010", "reason": "this model runs over TCP here"}]

    finding = only(found(changes={"infiniband_devices": False}, playbook={"allow": allow}), "NET-010")

    assert finding.severity == "warning"
    assert "this model runs over TCP here" in finding.why


def test_what_the_inventory_ignores_stops_nothing(found):
    findings = found(changes={"infiniband_devices": False}, ignore=["NET-010"])

    assert only(findings, "NET-010").severity == "warning"


def test_a_check_that_crashes_is_a_finding_and_stops_no_other(spark, cluster):
    def crashes(_context):
        raise KeyError("netdev")

    spec, facts = cluster({"solo": "10.0.0.1"}), {"solo": spark(gpus=())}
    context = Context(spec, facts, topology.build(spec, facts))

    findings = run(
        context, [Check(code="NET-999", title="it holds", why="because", body=crashes), CATALOGUE["HOST-003"]]
    )

    assert [(finding.code, finding.severity) for finding in findings] == [("HOST-003", "error"), ("NET-999", "warning")]
    assert "KeyError" in findings[1].seen


def test_a_process_needs_neither_docker_nor_gpu(spark, cluster):
    engine = {
        "python": "/v/bin/python",
        "python_version": "3.11.7",
        "platform": "linux",
        "version": "0.32",
    }
    facts = {"me": spark(docker=Unread(unread="none"), gpus=Unread(unread="none"), image=None, engine=engine)}
    spec = cluster({"me": "127.0.0.1"}, runtime={"kind": "process"}, playbook={"image": None})

    assert look_at(spec, facts) == []
    facts["me"] = facts["me"].model_copy(update={"engine": Unread(unread="no vLLM")})
    found = look_at(spec, facts)
    assert [finding.code for finding in found] == ["IMG-003"]
