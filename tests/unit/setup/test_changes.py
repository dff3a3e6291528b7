"""The changes of setup: as data, from surveys as data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Wanted
from sparkcluster.setup.steps import changes, selected
from sparkcluster.topology import netplan
from tests.unit.setup import wired

USER = "nvidia"
HOME = f"/home/{USER}"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMine me@laptop"
ADDRESSES = {
    "enp1s0f1np1": IPv4Interface("192.168.177.11/24"),
    "enP2p1s0f1np1": IPv4Interface("192.168.178.11/24"),
}
TEXT = netplan.text(ADDRESSES)
WANTED = Wanted(KEY, TEXT, ADDRESSES)
SYSCTL_TEXT = "vm.swappiness = 1\nvm.dirty_bytes = 268435456\n"
LIMITS_TEXT = f"{USER} - memlock unlimited\n"
SYSCTL = "/etc/sysctl.d/90-sparkcluster.conf"
LIMITS = "/etc/security/limits.d/90-sparkcluster.conf"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def state(text: str, mode: int = 0o644, owner: str = "root") -> dict[str, Any]:
    return {"sha256": digest(text), "mode": mode, "owner": owner, "text": text}


def bare(**changed: Any) -> Survey:
    """A Spark in factory state, with login by password."""
    document = wired.survey("spark-a", 0, ["p1"])
    document |= {
        "user": USER,
        "home": HOME,
        "groups": [USER, "sudo"],
        "hf_home": f"{HOME}/.cache/huggingface",
        "foreign": 3,
        "docker": True,
        "runtimes": ["runc"],
        "files": {
            f"{HOME}/.ssh/authorized_keys": {},
            netplan.NETPLAN: {},
            SYSCTL: {},
            LIMITS: {},
            "/etc/hosts": state("127.0.0.1 localhost\n"),
            "/etc/group": state(f"sudo:x:27:{USER}\ndocker:x:988:\n"),
            "/proc/sys/vm/swappiness": state("60\n"),
            "/proc/sys/vm/dirty_bytes": state("0\n"),
        },
        "packages": {"linux-image-6.14.0-1015-nvidia": "install", "nvidia-driver-580-open": "install"},
        "default_target": "graphical.target",
        "ntp": False,
    }
    return Survey.model_validate(document | changed)


def ready(**changed: Any) -> Survey:
    """The same after setup."""
    found = bare().model_dump(mode="json")
    for interface in found["interfaces"]:
        if interface["name"] in ADDRESSES:
            interface |= {"addresses": [str(ADDRESSES[interface["name"]])], "mtu": 9000}
    found |= {
        "groups": [USER, "docker"],
        "foreign": 0,
        "runtimes": ["runc", "nvidia"],
        "files": {
            f"{HOME}/.ssh/authorized_keys": state(f"{KEY}\n", 0o600, USER),
            netplan.NETPLAN: state(TEXT, 0o600),
            SYSCTL: state(SYSCTL_TEXT),
            LIMITS: state(LIMITS_TEXT),
            "/etc/group": state(f"sudo:x:27:{USER}\ndocker:x:988:{USER}\n"),
            "/proc/sys/vm/swappiness": state("1\n"),
            "/proc/sys/vm/dirty_bytes": state("268435456\n"),
        },
        "packages": {"perftest": "install", "linux-image-6.14.0-1015-nvidia": "hold", "nvidia-driver-580-open": "hold"},
        "default_target": "multi-user.target",
        "ntp": True,
    }
    return Survey.model_validate(found | changed)


def one(survey: Survey, step: str, wanted: Wanted = WANTED) -> Change | None:
    found = changes("spark-a", survey, wanted, selected([step]))
    assert len(found) < 2
    return found[0] if found else None


def test_a_bare_spark_gets_all_steps_except_options():
    assert {each.step: each.found for each in changes("spark-a", bare(), WANTED, selected())} == {
        "ssh-key": "your key is not in authorized_keys",
        "docker-group": f"{USER} is not in the group docker",
        "nvidia-runtime": "Docker has no nvidia runtime",
        "sysctl": "vm.swappiness=60, vm.dirty_bytes=0",
        "limits": f"{LIMITS} is missing",
        "hf-cache": f"3 files owned by root in {HOME}/.cache/huggingface",
        "perftest": "perftest is not installed",
        "clock": "the clock is not synchronized",
        "netplan": "enp1s0f1np1 has no address; enP2p1s0f1np1 has no address",
    }


def test_a_spark_that_is_set_up_has_no_changes():
    wanted = replace(WANTED, netplan=None)
    assert changes("spark-a", ready(), wanted, selected((), ["headless", "hold"])) == []


def test_optional_steps_are_enabled_or_named_explicitly():
    assert one(bare(), "headless").later == "at the next boot"
    every = changes("spark-a", bare(), WANTED, selected((), ["headless"]))
    assert "headless" in {each.step for each in every}
    hold = one(bare(packages={**bare().packages, "nvidia-driver-580-open": "hold"}), "hold")
    assert hold
    assert hold.commands == (["act change hold linux-image-6.14.0-1015-nvidia hold || return 1"],)
    assert hold.found == "not held: linux-image-6.14.0-1015-nvidia"


def test_if_the_login_may_not_use_docker_its_configuration_lists_the_runtimes():
    files = bare().model_dump()["files"]
    for text, configured in (('{"runtimes": {"nvidia": {}}}', True), ('{"log-level": "warn"}', False)):
        known = bare(runtimes=None, files={**files, "/etc/docker/daemon.json": state(text)})
        assert (one(known, "nvidia-runtime") is None) is configured


def test_running_ranks_block_disruptive_steps():
    change = one(bare(ranks=["two-sparks-rank0"]), "netplan")
    assert change
    assert (change.commands, change.blocked) == ((), "ranks are running: two-sparks-rank0")
    assert change.hint == "sparkcluster down INVENTORY"


@pytest.mark.parametrize(
    ("text", "present"),
    [
        (f"{KEY}\n", True),
        (f'from="10.0.0.0/8" {KEY.replace("me@laptop", "renamed")}\n', True),
        (f"# {KEY}\n", False),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMineMine me@laptop\n", False),
    ],
)
def test_a_key_is_recognized_by_its_content(text, present):
    files = {f"{HOME}/.ssh/authorized_keys": state(text, 0o600, USER)}
    assert (one(bare(files=files), "ssh-key") is None) is present


def test_a_key_in_a_file_writable_by_others_does_not_count():
    files = {f"{HOME}/.ssh/authorized_keys": state(f"{KEY}\n", 0o664, USER)}
    change = one(bare(files=files), "ssh-key")
    assert change
    assert change.found == "authorized_keys is writable by others"


def test_a_file_with_a_different_mode_or_owner_is_rewritten():
    files = ready().model_dump()["files"]
    for wrong in (state(SYSCTL_TEXT, 0o600), state(SYSCTL_TEXT, 0o644, USER), state(f"{SYSCTL_TEXT}\n")):
        change = one(ready(files={**files, SYSCTL: wrong}), "sysctl")
        assert change
        assert change.found == f"{SYSCTL} is different"


def test_a_missing_mtu_or_address_alone_is_found():
    interfaces = [each.model_dump() for each in ready().interfaces]
    for each in interfaces:
        if each["name"] == "enp1s0f1np1":
            each["mtu"] = 1500
        if each["name"] == "enP2p1s0f1np1":
            each["addresses"] = ["169.254.3.4/16"]
    change = one(ready(interfaces=interfaces), "netplan")
    assert change
    assert change.found == "enp1s0f1np1 has MTU 1500; enP2p1s0f1np1 has 169.254.3.4/16"


def test_a_cache_path_that_contains_the_home_directory_is_blocked():
    change = one(bare(hf_home="/home"), "hf-cache")
    assert change
    assert (change.commands, change.blocked) == ((), "/home contains more than a cache")


def test_an_unknown_step_is_an_error_with_the_nearest():
    with pytest.raises(UsageError) as refused:
        selected(["net-plan"], [])
    assert refused.value.hint == "did you mean netplan?"
