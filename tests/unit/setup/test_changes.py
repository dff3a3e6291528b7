"""What setup would change: whole changes as data, from surveys as data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest

from sparkcluster.errors import SetupError, UsageError
from sparkcluster.facts.survey import Survey
from sparkcluster.setup import actions as do
from sparkcluster.setup.changes import Change, Wanted, changes, requests
from sparkcluster.setup.steps import BLOCK, BY_NAME, STEPS, selected
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
HOSTS = ("192.168.177.11 spark-a-rail1", "192.168.178.11 spark-a-rail2")
WANTED = Wanted(USER, KEY, TEXT, ADDRESSES, HOSTS)
SYSCTL_TEXT = "vm.swappiness = 1\nvm.dirty_bytes = 268435456\n"
LIMITS_TEXT = f"{USER} - memlock unlimited\n"
SYSCTL = "/etc/sysctl.d/90-sparkcluster.conf"
LIMITS = "/etc/security/limits.d/90-sparkcluster.conf"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def state(text: str, mode: int = 0o644, owner: str = "root") -> dict[str, Any]:
    return {"sha256": digest(text), "mode": mode, "owner": owner, "text": text}


def bare(**changed: Any) -> Survey:
    """A Spark as it comes out of the box, that logs in by password."""
    document = wired.survey("spark-a", 0, ["p1"])
    document |= {
        "user": USER,
        "home": HOME,
        "groups": [USER, "sudo"],
        "hf_home": f"{HOME}/.cache/huggingface",
        "foreign": 3,
        "docker": "28.1.1",
        "runtimes": ["runc"],
        "files": {
            f"{HOME}/.ssh/authorized_keys": {},
            netplan.NETPLAN: {},
            SYSCTL: {},
            LIMITS: {},
            "/etc/hosts": state("127.0.0.1 localhost\n"),
            "/etc/group": state(f"sudo:x:27:{USER}\ndocker:x:988:\n"),
        },
        "sysctls": {"vm.swappiness": "60", "vm.dirty_bytes": "0", "vm.dirty_ratio": "20"},
        "packages": {"perftest": None, "linux-image-6.14.0-1015-nvidia": "6.14", "nvidia-driver-580-open": "580.95"},
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
            "/etc/hosts": state("\n".join(["127.0.0.1 localhost", BLOCK[0], *HOSTS, BLOCK[1]]) + "\n"),
            "/etc/group": state(f"sudo:x:27:{USER}\ndocker:x:988:{USER}\n"),
        },
        "sysctls": {"vm.swappiness": "1", "vm.dirty_bytes": "268435456", "vm.dirty_ratio": "0"},
        "packages": {**found["packages"], "perftest": "4.5"},
        "held": ["linux-image-6.14.0-1015-nvidia", "nvidia-driver-580-open"],
        "default_target": "multi-user.target",
        "ntp": True,
    }
    return Survey.model_validate(found | changed)


def one(survey: Survey, step: str, wanted: Wanted = WANTED) -> Change | None:
    found = changes("spark-a", survey, wanted, [step])
    assert len(found) < 2
    return found[0] if found else None


def test_a_bare_spark_gets_all_but_the_options():
    assert changes("spark-a", bare(), WANTED) == [
        Change(
            "spark-a", "ssh-key", "your key is not in authorized_keys", f"{USER} accepts your key",
            (do.AddKey(f"{HOME}/.ssh/authorized_keys", KEY),),
        ),
        Change(
            "spark-a", "docker-group", f"{USER} is not in the group docker", f"{USER} is in it",
            (do.JoinGroup(USER, "docker"),), later=f"when {USER} logs in again",
        ),
        Change(
            "spark-a", "nvidia-runtime", "Docker has no runtime nvidia", "Docker has the runtime nvidia",
            (do.ConfigureRuntime(),),
        ),
        Change(
            "spark-a", "sysctl", "vm.swappiness=60, vm.dirty_bytes=0", "vm.swappiness=1, vm.dirty_bytes=268435456",
            (
                do.WriteFile(SYSCTL, SYSCTL_TEXT),
                do.SetSysctl("vm.swappiness", "1"),
                do.SetSysctl("vm.dirty_bytes", "268435456"),
            ),
        ),
        Change(
            "spark-a", "limits", f"{LIMITS} is missing", f"{USER} may lock memory without a limit",
            (do.WriteFile(LIMITS, LIMITS_TEXT),), later=f"when {USER} logs in again",
        ),
        Change(
            "spark-a", "hf-cache", f"3 files of root in {HOME}/.cache/huggingface",
            f"all of it belongs to {USER}", (do.Own(f"{HOME}/.cache/huggingface", USER),),
        ),
        Change(
            "spark-a", "hosts", "/etc/hosts has no rails", "spark-a-rail1 to spark-a-rail2 resolve",
            (do.HostsBlock("".join(f"{line}\n" for line in HOSTS)),),
        ),
        Change("spark-a", "perftest", "perftest is not installed", "perftest is installed", (do.Install("perftest"),)),
        Change("spark-a", "clock", "the clock is not synchronized", "NTP synchronizes the clock", (do.SetNtp(),)),
        Change(
            "spark-a", "netplan", "enp1s0f1np1 has no address; enP2p1s0f1np1 has no address",
            "enp1s0f1np1 192.168.177.11/24, enP2p1s0f1np1 192.168.178.11/24, MTU 9000",
            (do.Netplan(TEXT, {name: str(address) for name, address in ADDRESSES.items()}),),
        ),
    ]  # fmt: skip


def test_nothing_is_to_be_changed_on_a_spark_that_is_set_up():
    options = frozenset({"headless", "hold"})
    assert changes("spark-a", ready(), replace(WANTED, options=options)) == []


def test_options_are_switched_on_or_named():
    headless = Change(
        "spark-a", "headless", "it boots to graphical.target", "it boots to multi-user.target",
        (do.SetDefaultTarget("multi-user.target"),), later="at the next boot",
    )  # fmt: skip
    assert one(bare(), "headless") == headless
    assert headless in changes("spark-a", bare(), replace(WANTED, options=frozenset({"headless"})))
    hold = one(bare(held=["nvidia-driver-580-open"]), "hold")
    assert hold
    assert hold.actions == (do.Hold(("linux-image-6.14.0-1015-nvidia",)),)
    assert hold.found == "not held: linux-image-6.14.0-1015-nvidia"
    none = one(bare(packages={"perftest": None}), "hold")
    assert none
    assert (none.actions, none.blocked) == ((), "neither kernel nor driver is a package here")


@pytest.mark.parametrize("step", ["netplan", "nvidia-runtime"])
def test_ranks_that_run_block_what_disturbs_them(step):
    change = one(bare(ranks=["two-sparks-rank0"]), step)
    assert change
    assert (change.actions, change.blocked) == ((), "ranks run on it: two-sparks-rank0")
    assert change.hint == "sparkcluster down INVENTORY"
    others = {each.step for each in changes("spark-a", bare(ranks=["x"]), WANTED) if each.blocked}
    assert others == {"netplan", "nvidia-runtime"}


@pytest.mark.parametrize("step", ["docker-group", "nvidia-runtime"])
def test_without_docker_its_steps_are_blocked(step):
    change = one(bare(docker=None), step)
    assert change
    assert (change.blocked, change.hint) == ("Docker is not installed", "sudo apt-get install -y docker.io")


def test_membership_counts_before_the_next_login():
    members = {"/etc/group": state(f"docker:x:988:other,{USER}\n")}
    assert one(bare(files=members), "docker-group") is None
    assert one(bare(uid=0), "docker-group") is None
    assert one(bare(files={"/etc/group": state(f"dockers:x:1:{USER}\ndocker:x:988:{USER}2\n")}), "docker-group")


@pytest.mark.parametrize(
    ("text", "present"),
    [
        (f"{KEY}\n", True),
        (f'from="10.0.0.0/8" {KEY.replace("me@laptop", "renamed")}\n', True),
        (f"# {KEY}\n", False),
        (f"  #{KEY}\n", False),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMineMine me@laptop\n", False),
    ],
)
def test_a_key_is_present_by_its_content(text, present):
    files = {f"{HOME}/.ssh/authorized_keys": state(text, 0o600, USER)}
    assert (one(bare(files=files), "ssh-key") is None) is present


def test_a_key_in_a_file_that_others_may_write_does_not_count():
    files = {f"{HOME}/.ssh/authorized_keys": state(f"{KEY}\n", 0o664, USER)}
    change = one(bare(files=files), "ssh-key")
    assert change
    assert change.found == "others may write authorized_keys"


def test_a_file_with_another_mode_or_owner_is_written_again():
    files = ready().model_dump()["files"]
    for wrong in (state(TEXT, 0o644), state(TEXT, 0o600, USER), state(f"{TEXT}\n", 0o600)):
        change = one(ready(files={**files, netplan.NETPLAN: wrong}), "netplan")
        assert change
        assert change.found == "/etc/netplan/40-cx7.yaml is another"


def entry(after: str, kind: str = "netplan", **changed: Any) -> dict[str, Any]:
    found = {"number": 1, "at": 1.0, "operator": "me@laptop", "step": "netplan", "kind": kind, "before": "absent"}
    return {**found, "target": netplan.NETPLAN, "after": after, **changed}


def test_a_file_that_only_root_may_read_is_judged_by_the_journal():
    files = ready().model_dump()["files"] | {netplan.NETPLAN: {"unread": "permission denied"}}
    assert one(ready(files=files, journal=[entry(digest(TEXT))]), "netplan") is None
    unknown = [[], [entry(digest("other\n"))], [entry(digest(TEXT)), entry(digest("other\n"), number=2)]]
    # The login may write its own journal as it likes.
    unknown.append([entry(digest(TEXT), root=False)])
    for journal in unknown:
        change = one(ready(files=files, journal=journal), "netplan")
        assert change
        assert change.found == "/etc/netplan/40-cx7.yaml is unknown"
    # What the journal says counts for the file, not for the network.
    lost = [{**each.model_dump(), "addresses": []} for each in ready().interfaces]
    change = one(ready(files=files, journal=[entry(digest(TEXT))], interfaces=lost), "netplan")
    assert change
    assert change.found == "enp1s0f1np1 has no address; enP2p1s0f1np1 has no address"


def test_an_mtu_or_an_address_alone_is_found():
    interfaces = [each.model_dump() for each in ready().interfaces]
    for each in interfaces:
        if each["name"] == "enp1s0f1np1":
            each["mtu"] = 1500
        if each["name"] == "enP2p1s0f1np1":
            each["addresses"] = ["169.254.3.4/16"]
    change = one(ready(interfaces=interfaces), "netplan")
    assert change
    assert change.found == "enp1s0f1np1 has MTU 1500; enP2p1s0f1np1 has 169.254.3.4/16"


def test_a_sysctl_that_was_set_back_is_found_though_the_file_is_right():
    change = one(ready(sysctls={"vm.swappiness": "60", "vm.dirty_bytes": "268435456"}), "sysctl")
    assert change
    assert change.found == "vm.swappiness=60"
    assert len(change.actions) == 3


def test_docker_that_was_not_restarted_is_found():
    due = entry("done", "restart", target="docker", before="due", step="nvidia-runtime")
    change = one(ready(journal=[due]), "nvidia-runtime")
    assert change
    assert change.found == "Docker was not restarted since"


def test_what_is_not_wanted_is_left():
    found = {each.step for each in changes("spark-a", bare(), Wanted(USER))}
    assert found.isdisjoint({"ssh-key", "netplan", "hosts", "headless", "hold"})


def test_a_block_of_other_rails_is_replaced():
    change = one(ready(), "hosts", replace(WANTED, hosts=("192.168.177.12 spark-b-rail1",)))
    assert change
    assert (change.found, change.wanted) == ("/etc/hosts has other rails", "spark-b-rail1 resolves")


@pytest.mark.parametrize(("step", "path"), [("hosts", "/etc/hosts"), ("ssh-key", f"{HOME}/.ssh/authorized_keys")])
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"unread": "larger than 1048576 bytes"}, "larger than 1048576 bytes"),
        ({"sha256": "ab" * 32, "mode": 0o644, "owner": "root", "text": None}, "not UTF-8 text"),
    ],
)
def test_a_file_that_the_next_look_could_not_judge_is_left(step, path, state, reason):
    change = one(bare(files={path: state}), step)
    assert change
    assert (change.actions, change.blocked) == ((), f"{path} cannot be read: {reason}")
    assert change.hint == f"make it UTF-8 text of at most 1 MiB that {USER} may read: ls -l {path}   on spark-a"


@pytest.mark.parametrize("label", ["2001:db8::5", "fe80::5%enP7s7"])
def test_a_node_without_a_name_that_hosts_could_have_blocks_that_step_alone(label):
    wanted = replace(WANTED, hosts=(HOSTS[0], f"192.168.177.12 {label}-rail1"))
    found = changes("spark-a", bare(), wanted)
    (change,) = [each for each in found if each.blocked]
    assert (change.step, change.actions) == ("hosts", ())
    assert change.blocked == f"{label}-rail1 is no name of a host"
    assert change.hint == f"give the node with `host: {label}` a `name:` in the inventory"
    assert len(found) == len(changes("spark-a", bare(), WANTED))


@pytest.mark.parametrize("path", ["/", "/home", HOME])
def test_a_cache_that_contains_the_home_is_blocked(path):
    change = one(bare(hf_home=path), "hf-cache")
    assert change
    assert (change.actions, change.blocked) == ((), f"{path} is more than a cache")


def test_a_clock_of_which_nothing_is_known_is_blocked():
    change = one(bare(ntp=None), "clock")
    assert change
    assert (change.actions, change.blocked) == ((), "NTP cannot be switched on")


@pytest.mark.parametrize(
    ("survey", "wanted"),
    [
        ({"user": "x;reboot"}, {}),
        ({"user": "-rf"}, {}),
        ({"user": "a b"}, {}),
        ({"user": "root\nreboot"}, {}),
        ({"user": "Ä"}, {}),
        ({"home": "/home/../etc"}, {}),
        ({}, {"user": "$(reboot)"}),
        ({}, {"key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me\nroot"}),
        ({}, {"key": "ssh-ed25519"}),
        ({}, {"hosts": ("192.168.177.11 a\n1.2.3.4 bank",)}),
        ({}, {"hosts": ("END",)}),
        ({}, {"addresses": {"en;reboot": IPv4Interface("10.0.0.1/24")}}),
        ({}, {"netplan": "network:"}),
    ],
)
def test_what_cannot_be_a_name_is_refused(survey, wanted):
    with pytest.raises(SetupError) as refused:
        changes("spark-a", bare(**survey), replace(WANTED, **wanted))
    assert refused.value.node == "spark-a"


def test_a_package_that_cannot_be_one_is_refused():
    with pytest.raises(SetupError, match="not the name of a package"):
        one(bare(packages={"linux-image-x'; reboot": "1"}), "hold")


@pytest.mark.parametrize(
    ("only", "options", "hint"),
    [
        (["net-plan"], [], "did you mean netplan?"),
        ([], ["headles"], "did you mean headless?"),
        ([], ["netplan"], "options are headless and hold"),
    ],
)
def test_unknown_steps_are_named(only, options, hint):
    with pytest.raises(UsageError) as refused:
        selected(only, options)
    assert refused.value.hint == hint


def test_one_step_is_the_logins_and_two_are_options():
    assert [step.name for step in STEPS if not step.root] == ["ssh-key"]
    assert [step.name for step in STEPS if step.option] == ["headless", "hold"]
    assert STEPS[-1] is BY_NAME["netplan"]


def test_a_survey_is_asked_for_what_is_compared():
    asked = requests()
    paths = {each.replace("~", HOME) for each in asked["files"]}
    assert set(bare().files) <= paths
    assert set(bare().sysctls) == set(asked["sysctls"])
    # apt takes its time to say it
    asked = [requests(), requests(["hold"]), requests(None, ["hold"])]
    assert [bool(each["held"]) for each in asked] == [False, True, True]
