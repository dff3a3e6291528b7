"""The survey: it runs from a bundle, reads the machine, and uses root in a single call."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.facts.parse import readings
from sparkcluster.facts.survey import Survey
from sparkcluster.hosts.program import command
from sparkcluster.node import survey
from sparkcluster.node.machine import Machine

REQUEST: dict[str, Any] = {"hf_home": "~/hf"}
TWINS = ("enp1s0f1np1", "enP2p1s0f1np1")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of another user, network namespaces")


def parsed(document: dict[str, Any]) -> Survey:
    return readings(Survey, "spark", "survey", json.loads(json.dumps(document)))


def surveyed(machine: Any, **request: Any) -> Survey:
    return parsed(survey.main({**REQUEST, **request}, machine=machine))


@pytest.fixture
def spark(make_machine: Any, tmp_path: Path) -> Any:
    """A Spark with port 1 cabled, with working ping and ip; its user is the user of this test."""

    def make(**changes: Any) -> Any:
        from tests.unit.node.conftest import load_case, merged

        case = load_case("founders-p1")
        case["identity"] = {"uid": os.getuid(), "user": pwd.getpwuid(os.getuid()).pw_name}
        case["programs"]["sudo -n"] = case["programs"]["sh -c"] = {"output": ""}
        case["programs"]["ping -6"] = {"output": ""}
        case["programs"]["ip -j neigh"] = {"output": "[]"}
        case["files"]["proc/net/if_inet6"] = "".join(
            f"fe80000000000000{number:016x} {number:02x} 40 20 80 {name}\n" for number, name in enumerate(TWINS, 2)
        )
        return make_machine(merged(case, changes))

    return make


def entry(dev: str, mac: str, dst: str = "fe80::1", state: str = "REACHABLE") -> dict[str, Any]:
    return {"dst": dst, "dev": dev, "lladdr": mac, "state": [state]}


# ------------------------------------------------------------------------------------------------- as a whole


def test_the_survey_runs_from_its_bundle_on_this_machine() -> None:
    request = {**REQUEST, "files": ["/etc/hostname", "/proc/sys/vm/swappiness"], "packages": ["no-such-package"]}
    argv, stdin = command("survey", request)
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr
    found = parsed(json.loads(done.stdout))
    assert found.uid == os.getuid()
    assert found.files["/etc/hostname"].text == Path("/etc/hostname").read_text()
    assert found.files["/proc/sys/vm/swappiness"].text == Path("/proc/sys/vm/swappiness").read_text()
    assert found.machine == hashlib.sha256(Path("/etc/machine-id").read_text().strip().encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------- files


SUDO = """#!/bin/sh
printf '%s ' "$@" >>"$(dirname "$0")/calls"
[ "$1 $2" = "-n --" ] || exit 9
shift 2
exec "$@"
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of programs: sudo without a password, and Docker with a rank."""
    for name, text in (("sudo", SUDO), ("docker", "#!/bin/sh\necho 'rank of-another-user'\n")):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    return tmp_path / "bin"


class User(Machine):
    """This machine, as seen by a user with this ID."""

    def __init__(self, uid: int) -> None:
        super().__init__()
        self.uid = uid

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "uid": self.uid}


@pytest.mark.parametrize(("uid", "sudo"), [(0, "root"), (1000, "free")])
def test_current_files_and_ranks_are_read_in_one_call(programs: Path, uid: int, sudo: str) -> None:
    folder = programs.parent / "a 'dir\""
    folder.mkdir()
    (folder / "40-cx7.yaml").write_text("$(touch x): {}\n")
    (folder / "40-cx7.yaml").chmod(0o640)
    (folder / "empty").write_text("")
    (folder / "binary").write_bytes(b"\xff")
    wanted = [f"{folder}/{name}" for name in ("*.yaml", "empty", "binary", "none", "none/*.yaml")]
    found = surveyed(User(uid), files=[*wanted, str(folder)])
    assert found.sudo == sudo
    state = found.files[f"{folder}/40-cx7.yaml"]
    assert (state.text, state.mode) == ("$(touch x): {}\n", 0o640)
    assert state.owner == pwd.getpwuid(os.getuid()).pw_name
    assert state.sha256 == hashlib.sha256(b"$(touch x): {}\n").hexdigest()
    assert found.files[f"{folder}/empty"].text == ""
    assert found.files[f"{folder}/binary"].text is None
    assert found.files[f"{folder}/binary"].sha256
    assert found.files[f"{folder}/none"].model_dump() == dict.fromkeys(("sha256", "mode", "owner", "text", "unread"))
    assert found.files[str(folder)].unread
    assert found.ranks == ("of-another-user",)
    calls = (programs / "calls").read_text() if uid else "-n -- sh"
    assert calls.count("-n -- sh") == 1


@root_only
def test_an_ordinary_user_without_sudo_gets_a_survey(tmp_path: Path) -> None:
    """Without imitations: another user, whose sudo requires a password or is missing."""
    argv, stdin = command("survey", {**REQUEST, "files": ["/etc/shadow"]})
    if not Path("/usr/bin/python3").exists():
        pytest.skip("there is no /usr/bin/python3 that another user may run")
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp", "PATH=/usr/bin:/bin"]
    done = subprocess.run([*prefix, *argv], input=stdin, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    found = parsed(json.loads(done.stdout))
    assert found.sudo in {"password", "absent"}
    assert found.files["/etc/shadow"].unread == "permission denied"


# ---------------------------------------------------------------------------------------------------- journal

LINE = "7\t1763690000.5\tme@laptop\tnetplan\tfile\t/etc/netplan/40-cx7.yaml\tabsent\t" + "ab" * 32


def test_the_journals_of_root_and_login_are_both_read(spark: Any) -> None:
    machine = spark()
    for folder, text in (
        ("var/lib/sparkcluster/setup", f"{LINE}\n"),
        ("home/nvidia/.local/state/sparkcluster/setup", LINE.replace("7", "1", 1) + "\n"),
    ):
        (Path(machine.root) / folder).mkdir(parents=True)
        (Path(machine.root) / folder / "journal").write_text(text)
    found = surveyed(machine).journal
    assert [(each.number, each.root, each.step, each.target) for each in found] == [
        (7, True, "netplan", "/etc/netplan/40-cx7.yaml"),
        (1, False, "netplan", "/etc/netplan/40-cx7.yaml"),
    ]
    assert (found[0].at, found[0].operator, found[0].after) == (1763690000.5, "me@laptop", "ab" * 32)


# --------------------------------------------------------------------------------------------------- settings


def test_system_settings_of_the_machine(spark: Any) -> None:
    machine = spark(
        programs={
            "dpkg-query": {
                "output": "perftest installed install\nold config-files deinstall\nlinux-image-6.17 installed hold\n",
                "exit": 1,
            },
            "timedatectl show": {"output": "NTP=yes\n"},
        },
        files={
            "etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAAC3Nz root@spark\n",
            "etc/machine-id": "0123\n",
        },
    )
    (Path(machine.root) / "etc/systemd/system").mkdir(parents=True)
    (Path(machine.root) / "etc/systemd/system/default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    found = surveyed(
        machine,
        packages=["perftest", "old", "none", "linux-image-*"],
    )
    assert found.packages == {"perftest": "install", "linux-image-6.17": "hold"}
    assert found.ntp is True
    assert found.default_target == "multi-user.target"
    assert found.host_keys == ("ssh-ed25519 AAAAC3Nz",)
    assert found.machine == hashlib.sha256(b"0123").hexdigest()


@root_only
def test_files_of_root_in_the_cache_are_counted(tmp_path: Path) -> None:
    cache = tmp_path / "hf"
    (cache / "hub/blobs").mkdir(parents=True)
    for number in range(5):
        (cache / f"hub/blobs/{number}").write_text("x")
        os.chown(cache / f"hub/blobs/{number}", 0 if number else 12345, 0)
    (cache / "link").symlink_to("/etc")
    for path in (cache, cache / "hub", cache / "hub/blobs", cache / "link"):
        os.chown(path, 1000, 0, follow_symlinks=False)
    assert survey.foreign(Machine(), str(cache)) == 4
    os.chown(cache, 0, 0)
    assert survey.foreign(Machine(), str(cache)) == 5


# ------------------------------------------------------------------------------------------------- neighbours


def test_neighbours_are_machines_that_answered_on_cabled_ports(spark: Any) -> None:
    table = [
        entry("enp1s0f1np1", "aa:bb:cc:00:00:01"),
        entry("enp1s0f1np1", "AA:BB:CC:00:00:02", state="STALE"),
        entry("enp1s0f1np1", "aa:bb:cc:00:00:01", "192.168.177.12"),
        entry("enp1s0f1np1", "aa:bb:cc:00:00:03", state="FAILED"),
        entry("enp1s0f1np1", "4c:bb:47:2a:65:37"),  # the other twin of the same port
        entry("enP7s7", "aa:bb:cc:00:00:04"),
        entry("enp1s0f0np0", "aa:bb:cc:00:00:05"),
        {"dst": "192.168.177.13", "dev": "enp1s0f1np1", "state": ["INCOMPLETE"]},
    ]  # fmt: skip
    machine = spark(programs={"ip -j neigh": {"output": json.dumps(table)}})
    found = surveyed(machine).neighbours
    assert [(each.interface, each.mac, each.address) for each in found] == [
        ("enp1s0f1np1", "aa:bb:cc:00:00:01", "192.168.177.12"),
        ("enp1s0f1np1", "aa:bb:cc:00:00:02", "fe80::1"),
    ]
    pinged = sorted(argv[-1] for argv in machine.ran if argv[0] == "ping")
    assert pinged == sorted(f"ff02::1%{name}" for name in TWINS)
