"""Preflight under conditions of inventory, user or node: names, WiFi, unprivileged users, hanging nodes, no changes."""

from __future__ import annotations

import time

import pytest

from sparkcluster.lab.machine import wait_until

ERROR, WARNING, INFO = "error", "warning", "info"


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(3)


def findings_of(result, code):
    return [finding for finding in result.document["findings"] if finding["code"] == code]


def run_remedy(spark, lines):
    """Run the lines of a remedy on ``spark`` as root."""
    for line in lines:
        spark.run(["sh", "-c", f'sudo() {{ "$@"; }}; {line}'])


def test_an_unreachable_node_is_one_finding_and_the_other_nodes_are_checked(lab, preflight):
    lab.fault("spark-0002", "ssh-stopped")
    lab.fault("spark-0003", "driver", "none")
    lab.fault("spark-0003", "mtu", "1500")
    result = preflight(lab.inventory)
    assert {finding for finding in result.found if finding[1] == "spark-0002"} == {("SSH-002", "spark-0002", ERROR)}
    assert ("HOST-003", "spark-0003", ERROR) in result.found
    # Of two differing nodes, either may be right: the finding names one of them.
    assert [code for code, _, _ in result.found if code == "NET-006"]
    assert set(result.document["nodes"]["spark-0002"]) == {"unread"}


@pytest.mark.full
def test_a_program_that_hangs_on_a_node_loses_only_its_own_reading(lab, preflight):
    """Docker is paused on one node, nvidia-smi hangs on another."""
    second, third = lab.sparks[1:]
    pid = second.run(["cat", "/run/docker.pid"]).stdout.strip()
    second.run(["kill", "-STOP", pid])
    third.run(
        ["sh", "-c", "cd /usr/local/bin && mv nvidia-smi kept && printf '#!/bin/sh\nexec sleep 60\n' > nvidia-smi"]
    )
    third.run(["chmod", "755", "/usr/local/bin/nvidia-smi"])
    try:
        result = preflight(lab.inventory)
    finally:
        second.run(["kill", "-CONT", pid])
        third.run(["sh", "-c", "cd /usr/local/bin && mv kept nvidia-smi"])
    assert result.found == {("HOST-001", "spark-0002", ERROR), ("HOST-003", "spark-0003", ERROR)}
    assert "no answer within" in findings_of(result, "HOST-001")[0]["seen"]


@pytest.fixture
def plain(lab, variant):
    """The inventory of the user ``spark``, who may use Docker."""
    for spark in lab.sparks:
        spark.run(["sh", "-c", "mkdir -p /home/spark/models && cp -r /root/models/tiny /home/spark/models/"])
        spark.run(["chown", "-R", "spark:spark", "/home/spark/models"])
    return variant(lab, ssh={"user": "spark"}, playbook={"model": {"path": "/home/spark/models/tiny"}})


@pytest.mark.full
def test_a_user_without_docker_permission_is_shown_the_group_to_join(lab, preflight, plain):
    name = "spark-0002"
    assert preflight(plain).found == set()
    lab.fault(name, "no-docker-group")
    result = preflight(plain)
    assert result.found == {("HOST-001", name, ERROR)}
    [finding] = findings_of(result, "HOST-001")
    assert "sudo usermod -aG docker spark" in finding["remedy"]
    run_remedy(lab.spark(name), [line for line in finding["remedy"] if line.startswith("sudo usermod")])
    assert preflight(plain).found == set()


# no traces

OTHERS = " ".join(
    f"-not -path '{path}*'"
    for path in (
        "/var/log/",
        "/var/lib/docker/",
        "/run/docker",
        "/run/containerd",
        "/usr/local/lib/gb10/",
        "/run/gb10/",
    )
)
"""Excludes login records, Docker's internal state, and files that make the lab's imitated tools faster."""

SEEN = {
    "files": "find /etc /root /home /srv /opt /tmp /var /usr/local /run /dev/shm -xdev -type f "
    f"{OTHERS} -printf '%p %s %T@ %m %U\\n' | sort",
    "content": "find /etc /root /home -xdev -type f -print0 | sort -z | xargs -0 sha256sum",
    "touched": f"find / /run /dev/shm -xdev -cnewer /run/marker {OTHERS} -not -path /run -not -path /run/marker; true",
    "network": "ip -d -o addr; ip route; ip rule; iptables -S; tc qdisc show; cat /proc/sys/net/ipv4/conf/*/*",
    "sockets": "ss -H -ltnu | awk '{print $1, $5}' | sort",
    "containers": "docker ps -aq --no-trunc; docker images -a --no-trunc --digests "
    "--format '{{.ID}} {{.Repository}}:{{.Tag}} {{.Digest}}'; docker volume ls; docker network ls",
    "processes": "ps -eo comm= | grep -vE '^(ps|sh|grep|sort|sshd.*)$' | sort",
    "mounts": "cut -d' ' -f2- /proc/self/mountinfo | sort",
}


def state(spark):
    return {aspect: spark.run(["sh", "-c", script], timeout_s=120).stdout for aspect, script in SEEN.items()}


def state_between_logins(spark):
    """The state when no client session is left on the node; OpenSSH 9.8 runs sessions in a separate program."""

    def no_session():
        lines = spark.run(["ps", "-eo", "args="]).stdout.replace("sshd: /usr/sbin/sshd", "").splitlines()
        return not [line for line in lines if line.startswith(("sshd:", "sshd-session:"))]

    assert wait_until(no_session, limit_s=120)
    return state(spark)


def differences(later, earlier):
    """Lines that are only in one of two states, by subject."""
    return {
        aspect: sorted(set(later[aspect].splitlines()) ^ set(earlier[aspect].splitlines()))
        for aspect in earlier
        if later[aspect] != earlier[aspect]
    }


def test_preflight_changes_nothing_on_any_node(lab, make_cli):
    """Even with findings; except Docker's own files, since the first preflight runs the image."""
    lab.fault("spark-0003", "no-address")
    for spark in lab.sparks:
        # The first listing of a directory changes it in an overlay.
        state(spark)
        spark.run(["touch", "/run/marker"])
    time.sleep(0.05)
    before = [state_between_logins(spark) for spark in lab.sparks]
    assert [each["touched"] for each in before] == ["", "", ""]
    assert make_cli()("preflight", lab.inventory, "--json").json["findings"]
    after = [state_between_logins(spark) for spark in lab.sparks]
    assert [differences(*pair) for pair in zip(after, before, strict=True)] == [{}, {}, {}]
