"""The survey: it travels, reads what is there, asks root in one call, and never fails as a whole."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.facts.base import Unread
from sparkcluster.facts.parse import readings
from sparkcluster.facts.survey import Survey
from sparkcluster.hosts.program import command, source
from sparkcluster.node import container_facts, neighbours, network, ranks, survey, system
from sparkcluster.node.machine import Machine, Unreadable

REQUEST: dict[str, Any] = {"hf_home": "~/hf"}
TWINS = ("enp1s0f1np1", "enP2p1s0f1np1")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of another user, network namespaces")


def parsed(document: dict[str, Any]) -> Survey:
    return readings(Survey, "spark", "survey", json.loads(json.dumps(document)))


def surveyed(machine: Any, **request: Any) -> Survey:
    return parsed(survey.main({**REQUEST, **request}, machine=machine))


@pytest.fixture
def spark(make_machine: Any, tmp_path: Path) -> Any:
    """A Spark with port 1 cabled, on which ping and ip answer; its user is that of this test."""

    def make(**changes: Any) -> Any:
        from tests.unit.node.conftest import load_case, merged

        case = load_case("founders-p1")
        case["identity"] = {"uid": os.getuid(), "user": pwd.getpwuid(os.getuid()).pw_name}
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


def test_it_travels_and_surveys_this_machine() -> None:
    request = {**REQUEST, "files": ["/etc/hostname"], "sysctls": ["vm.swappiness"], "packages": ["no-such-package"]}
    argv, stdin = command("survey", request, python=sys.executable)
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr
    found = parsed(json.loads(done.stdout))
    assert found.uid == os.getuid()
    assert found.files["/etc/hostname"].text == Path("/etc/hostname").read_text()
    assert found.sysctls["vm.swappiness"] == Path("/proc/sys/vm/swappiness").read_text().strip()
    assert found.machine == hashlib.sha256(Path("/etc/machine-id").read_text().strip().encode()).hexdigest()


def test_what_travels_is_small_and_python_3_8() -> None:
    _, stdin = command("survey", REQUEST)
    assert len(stdin) < 46_000
    for name in ("survey", "neighbours", "container_facts", "ranks"):
        ast.parse(source(name), feature_version=(3, 8))


def test_a_spark_is_read_as_the_probe_reads_it(spark: Any) -> None:
    machine = spark()
    found = surveyed(machine)
    assert found.is_spark
    assert found.kernel == "6.17.0-1014-nvidia"
    assert found.docker == "29.1.3"
    assert found.runtimes == ("io.containerd.runc.v2", "nvidia", "runc")
    assert found.reached_at == "192.0.2.11"
    assert str(found.management()) == "192.0.2.11/24"
    assert found.interfaces == parsed({**survey.main(REQUEST, machine=machine)}).interfaces
    assert found.hf_home == "/home/nvidia/hf"


def test_every_reading_may_fail_and_a_survey_remains(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unreadable("permission denied: /x")

    machine = spark()
    for name in ("bytes", "names", "run", "docker", "addresses", "space"):
        monkeypatch.setattr(machine, name, refuse)
    monkeypatch.setattr(survey, "_root", refuse)
    found = surveyed(machine, files=["/etc/hosts"], packages=["x"], sysctls=["vm.swappiness"])
    assert found.interfaces == Unread(unread="permission denied: /x")
    assert found.files["/etc/hosts"].unread == "permission denied: /x"
    assert (found.sudo, found.docker) == ("password", None)


@pytest.mark.parametrize(
    ("module", "name"),
    [(network, "interfaces"), (container_facts, "docker"), (ranks, "containers"), (neighbours, "neighbours"),
     (system, "dgx_release"), (survey, "foreign"), (survey, "journal"), (survey, "_packages"), (survey, "_ntp")],
)  # fmt: skip
def test_a_crashing_reader_affects_only_its_own_reading(
    spark: Any, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    machine = spark()
    monkeypatch.setattr(module, name, crash)
    found = surveyed(machine, sysctls=["kernel.osrelease"])
    assert found.sysctls == {"kernel.osrelease": "6.17.0-1014-nvidia"}


# ----------------------------------------------------------------------------------------------------- files


def test_files_as_they_are(spark: Any) -> None:
    machine = spark()
    root = Path(machine.root)
    (root / "etc/netplan").mkdir(parents=True)
    (root / "etc/netplan/40-cx7.yaml").write_text("network: {}\n")
    (root / "etc/netplan/40-cx7.yaml").chmod(0o600)
    (root / "etc/netplan/notes.txt").write_text("x")
    (root / "etc/large").write_bytes(b"x" * ((1 << 20) + 1))
    (root / "etc/long").write_bytes(b"x" * (1 << 20))
    (root / "etc/binary").write_bytes(b"a\0b")
    (root / "home/nvidia/.bashrc").write_bytes(b"\xff")
    os.mkfifo(root / "etc/pipe")
    found = surveyed(
        machine,
        files=["/etc/netplan/*.yaml", "/etc/large", "/etc/long", "/etc/binary", "~/.bashrc", "/etc/pipe", "/etc",
               "/etc/none", "/etc/none/below", "/nowhere/*.yaml"],
    ).files  # fmt: skip
    assert sorted(found) == sorted(
        ["/etc/netplan/40-cx7.yaml", "/etc/large", "/etc/long", "/etc/binary", "/home/nvidia/.bashrc", "/etc/pipe",
         "/etc", "/etc/none", "/etc/none/below"]
    )  # fmt: skip
    state = found["/etc/netplan/40-cx7.yaml"]
    assert (state.text, state.mode, state.owner) == ("network: {}\n", 0o600, pwd.getpwuid(os.getuid()).pw_name)
    assert state.sha256 == hashlib.sha256(b"network: {}\n").hexdigest()
    assert found["/etc/large"].unread == "larger than 1048576 bytes"
    assert found["/etc/long"].text == "x" * (1 << 20)
    assert found["/etc/binary"].text is None
    assert found["/etc/binary"].sha256
    assert found["/home/nvidia/.bashrc"].text is None
    assert found["/etc/pipe"].unread == found["/etc"].unread == "not a regular file"
    for absent in ("/etc/none", "/etc/none/below"):
        assert found[absent].model_dump() == dict.fromkeys(("sha256", "mode", "owner", "text", "unread"))


SUDO = """#!/bin/sh
printf '%s ' "$@" >>"$(dirname "$0")/calls"
[ "$1 $2" = "-n --" ] || exit 9
shift 2
exec "$@"
"""


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A directory, in whose part ``secret`` this user may read nothing but by sudo, which asks for no password."""
    real = survey._file

    def refuse(machine: Machine, path: str) -> Any:
        if "/secret" in path:
            raise PermissionError(13, "Permission denied", path)
        return real(machine, path)

    monkeypatch.setattr(survey, "_file", refuse)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sudo").write_text(SUDO)
    (tmp_path / "bin/sudo").chmod(0o755)
    (tmp_path / "bin/docker").write_text("#!/bin/sh\necho 'rank of-another-user'\n")
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    (tmp_path / "secret dir").mkdir()
    return tmp_path


class Ordinary(Machine):
    """This machine, as a user who is not root sees it."""

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "uid": 1000}


def test_root_reads_in_one_call_what_the_user_may_not(denied: Path) -> None:
    folder = denied / "secret dir"
    (folder / "a 'b\".yaml").write_text("$(touch x)\n")
    (folder / "a 'b\".yaml").chmod(0o640)
    (folder / "empty").write_text("")
    (folder / "large").write_bytes(b"x" * ((1 << 20) + 1))
    wanted = [str(folder / name) for name in ("a 'b\".yaml", "empty", "large", "none", ".")]
    found = surveyed(Ordinary(), files=[*wanted, "/etc/hostname"])
    assert found.sudo == "free"
    state = found.files[wanted[0]]
    assert (state.text, state.mode) == ("$(touch x)\n", 0o640)
    assert state.owner == pwd.getpwuid(os.getuid()).pw_name
    assert found.files[wanted[1]].text == ""
    assert found.files[wanted[2]].unread == "larger than 1048576 bytes"
    assert found.files[wanted[3]].sha256 is None
    assert found.files[wanted[3]].unread is None
    assert found.files[str(folder)].unread == "not a regular file"
    assert found.ranks == ("of-another-user",)
    calls = (denied / "bin/calls").read_text()
    assert calls.count("-n -- sh") == 1
    assert "io.sparkcluster.cluster" in calls


@pytest.mark.parametrize(("script", "state"), [("exit 1", "password"), ("sleep 60", "password"), (None, "absent")])
def test_without_root_a_file_is_unread(
    denied: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, state: str
) -> None:
    if script is None:
        (denied / "bin/sudo").unlink()
        for program in ("sh", "ip", "ping"):
            (denied / "bin" / program).symlink_to(shutil.which(program) or "/nowhere")
        monkeypatch.setenv("PATH", str(denied / "bin"))
    else:
        (denied / "bin/sudo").write_text(f"#!/bin/sh\nexec {script}\n")
    monkeypatch.setattr(survey, "LIMIT_S", 1.0)
    monkeypatch.setattr(Machine.run, "__defaults__", (0.5,))
    path = str(denied / "secret dir/x")
    found = surveyed(Ordinary(), files=[path])
    assert found.sudo == state
    assert found.files[path].unread == "permission denied"
    assert found.ranks == ()


@root_only
def test_an_ordinary_user_without_sudo_gets_a_survey(tmp_path: Path) -> None:
    """All of it for real: another user, whose sudo asks for a password or is not there."""
    argv, stdin = command("survey", {**REQUEST, "files": ["/etc/shadow"]}, python="/usr/bin/python3")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("there is no /usr/bin/python3 that another user may run")
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp", "PATH=/usr/bin:/bin"]
    done = subprocess.run([*prefix, *argv], input=stdin, capture_output=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
    found = parsed(json.loads(done.stdout))
    assert found.sudo in {"password", "absent"}
    assert found.files["/etc/shadow"].unread == "permission denied"


@pytest.mark.parametrize("line", ["", "file", "file 600", "file 600 root !", "file x root YQ==", "rubbish", "other"])
def test_what_root_prints_may_be_anything(line: str) -> None:
    assert "unread" in survey._told(line)


def test_what_root_prints_is_a_state() -> None:
    assert survey._told("absent") == {}
    assert survey._told(f"file 600 root {base64.b64encode(b'x').decode()}")["text"] == "x"


# ---------------------------------------------------------------------------------------------------- journal

LINE = "7\t1763690000.5\tme@laptop\tnetplan\tfile\t/etc/netplan/40-cx7.yaml\tabsent\t" + "ab" * 32


def test_both_journals_are_read_and_bad_lines_skipped(spark: Any) -> None:
    machine = spark()
    for folder, text in (
        (
            "var/lib/sparkcluster/setup",
            f"{LINE}\nrubbish\n0{LINE}\n{LINE}\tmore\n{LINE[:40]}\n{LINE.replace('7', 'x', 1)}\n",
        ),
        ("home/nvidia/.local/state/sparkcluster/setup", LINE.replace("7", "1", 1) + "\n\xff\0\n"),
    ):
        (Path(machine.root) / folder).mkdir(parents=True)
        (Path(machine.root) / folder / "journal").write_text(text)
    found = surveyed(machine).journal
    assert [(each.number, each.root, each.step, each.target) for each in found] == [
        (7, True, "netplan", "/etc/netplan/40-cx7.yaml"),
        (1, False, "netplan", "/etc/netplan/40-cx7.yaml"),
    ]
    assert (found[0].at, found[0].operator, found[0].after) == (1763690000.5, "me@laptop", "ab" * 32)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\t\n0123456789"), max_size=60)))
def test_any_journal_makes_entries_that_are_valid(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    path.write_text("\n".join([LINE, *lines]))
    entries = survey.journal(Machine(), str(path), root=True)
    document = survey_document() | {"journal": entries}
    assert len(Survey.model_validate(document).journal) == len(entries) >= 1


def survey_document() -> dict[str, Any]:
    from tests.unit.setup.wired import survey as document

    return document("a", 0, {"p1"})


# --------------------------------------------------------------------------------------------------- settings


def test_settings_of_the_machine(spark: Any) -> None:
    machine = spark(
        programs={
            "dpkg-query": {
                "output": "perftest\tinstalled\t24.01\nold\tconfig-files\t1\nlinux-image-6.17\tinstalled\t6.17.1\n",
                "exit": 1,
            },
            "apt-mark showhold": {"output": "linux-image-6.17\nnvidia-driver\n"},
            "timedatectl show": {"output": "NTP=yes\n"},
        },
        files={
            "proc/sys/vm/swappiness": "60\n",
            "etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAAC3Nza root@spark\n",
            "etc/ssh/ssh_host_x_key.pub": "$(rubbish)\n",
            "etc/machine-id": "0123\n",
        },
    )
    (Path(machine.root) / "etc/systemd/system").mkdir(parents=True)
    (Path(machine.root) / "etc/systemd/system/default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    found = surveyed(
        machine,
        packages=["perftest", "old", "none", "linux-image-*", "--admindir=/x"],
        sysctls=["vm.swappiness", "vm.none", "../etc/passwd", "vm/swappiness"],
        held=["linux-image-*"],
    )
    assert found.packages == {"perftest": "24.01", "linux-image-6.17": "6.17.1", "old": None, "none": None}
    assert found.sysctls == {"vm.swappiness": "60", "vm.none": None}
    assert found.held == ("linux-image-6.17", "nvidia-driver")
    assert found.ntp is True
    assert found.default_target == "multi-user.target"
    assert found.host_keys == ("ssh-ed25519 AAAAC3Nza",)
    assert found.machine == hashlib.sha256(b"0123").hexdigest()
    argv = next(argv for argv in machine.ran if argv[0] == "dpkg-query")
    assert "--admindir=/x" not in argv


@pytest.mark.parametrize("kernels", [70, 2000])
def test_many_kernels_hide_no_other_package(spark: Any, kernels: int) -> None:
    names = [*(f"linux-image-6.14.0-{number}-nvidia" for number in range(kernels)), "nvidia-driver-580", "perftest"]
    machine = spark(programs={"dpkg-query": {"output": "".join(f"{name}\tinstalled\t1\n" for name in names)}})
    packages = surveyed(machine, packages=["linux-image-*", "nvidia-driver-*", "perftest", "none"]).packages
    assert (packages["perftest"], packages["none"]) == ("1", None)
    assert ("nvidia-driver-580" in packages) is (kernels < 1000)
    assert len(packages) == min(kernels + 3, 1024)


def test_apt_is_asked_for_held_packages_where_they_matter(spark: Any) -> None:
    machine = spark(programs={"apt-mark showhold": {"output": "nvidia-driver\n"}})
    assert surveyed(machine).held == ()
    assert ["apt-mark", "showhold"] not in machine.ran
    folder = Path(machine.root) / "var/lib/sparkcluster/setup"
    folder.mkdir(parents=True)
    (folder / "journal").write_text("1\t1\tme@laptop\thold\thold\tnvidia-driver\tfree\theld\n")
    assert surveyed(machine).held == ("nvidia-driver",)


def test_docker_without_permission_is_still_a_version(spark: Any) -> None:
    found = surveyed(
        spark(
            docker={"unread": "permission denied: /var/run/docker.sock"},
            programs={"docker --version": {"output": "Docker version 29.1.3, build f52814d\n"}},
            files={"etc/docker/daemon.json": {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}},
        )
    )
    assert (found.docker, found.runtimes) == ("29.1.3", ("nvidia",))


def test_running_ranks_are_named_and_others_are_not(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [{"name": "a", "state": "running"}, {"name": "b", "state": "exited"}]
    monkeypatch.setattr(ranks, "containers", lambda *_: states)
    monkeypatch.setattr(ranks, "processes", lambda *_: [{"name": "p", "state": "running"}])
    assert surveyed(spark()).ranks == ("a", "p")


@root_only
def test_files_of_root_in_the_cache_are_counted(spark: Any) -> None:
    machine = spark()
    cache = Path(machine.root) / "home/nvidia/hf"
    (cache / "hub/blobs").mkdir(parents=True)
    for number in range(5):
        (cache / f"hub/blobs/{number}").write_text("x")
        os.chown(cache / f"hub/blobs/{number}", 0 if number else 12345, 0)
    (cache / "link").symlink_to("/etc")
    for path in (cache, cache / "hub", cache / "hub/blobs", cache / "link"):
        os.chown(path, 1000, 0, follow_symlinks=False)
    assert survey.foreign(machine, "/home/nvidia/hf", 1000) == 4
    os.chown(cache, 0, 0)
    assert survey.foreign(machine, "/home/nvidia/hf", 1000) == 5
    assert survey.foreign(machine, "/home/nvidia/hf", 0) == 0


# ------------------------------------------------------------------------------------------------- neighbours


def test_neighbours_are_those_on_cabled_ports_that_answered(spark: Any) -> None:
    table = [
        entry("enp1s0f1np1", "aa:bb:cc:00:00:01"),
        entry("enp1s0f1np1", "AA:BB:CC:00:00:02", state="STALE"),
        entry("enp1s0f1np1", "aa:bb:cc:00:00:01", "192.168.177.12"),
        entry("enp1s0f1np1", "aa:bb:cc:00:00:03", state="FAILED"),
        entry("enp1s0f1np1", "4c:bb:47:2a:65:37"),  # its own other twin
        entry("enP7s7", "aa:bb:cc:00:00:04"),
        entry("enp1s0f0np0", "aa:bb:cc:00:00:05"),
        {"dst": "192.168.177.13", "dev": "enp1s0f1np1", "state": ["INCOMPLETE"]},
        {"dst": 7, "dev": [], "lladdr": {}, "state": [{}]}, 3, None,
    ]  # fmt: skip
    machine = spark(programs={"ip -j neigh": {"output": json.dumps(table)}})
    found = surveyed(machine).neighbours
    assert [(each.interface, each.mac, each.address) for each in found] == [
        ("enp1s0f1np1", "aa:bb:cc:00:00:01", "192.168.177.12"),
        ("enp1s0f1np1", "aa:bb:cc:00:00:02", "fe80::1"),
    ]
    pinged = sorted(argv[-1] for argv in machine.ran if argv[0] == "ping")
    assert pinged == sorted(f"ff02::1%{name}" for name in TWINS)


def test_a_port_without_ipv6_address_is_not_pinged(spark: Any) -> None:
    machine = spark(files={"proc/net/if_inet6": ""})
    surveyed(machine)
    assert not [argv for argv in machine.ran if argv[0] == "ping"]


@pytest.mark.parametrize("ipv4", [False, True])
@pytest.mark.parametrize("ipv6", [False, True])
def test_cabled_ports_without_any_address_are_told(spark: Any, ipv4: bool, ipv6: bool) -> None:
    without_ipv6 = {"proc/net/if_inet6": "fe800000000000000000000000000001 02 40 20 80 enP7s7\n"}
    without_ipv4 = {name: {"addresses": []} for name in TWINS}
    machine = spark(files={} if ipv6 else without_ipv6, interfaces={} if ipv4 else without_ipv4)
    assert sorted(surveyed(machine).unaddressed) == ([] if ipv4 or ipv6 else sorted(TWINS))


def test_ten_thousand_neighbours_are_cut(spark: Any) -> None:
    table = [entry(TWINS[0], f"aa:bb:cc:00:{n >> 8:02x}:{n & 255:02x}") for n in range(10_000)]
    machine = spark(programs={"ip -j neigh": {"output": json.dumps(table)}})
    assert len(surveyed(machine).neighbours) == 256


@pytest.mark.parametrize("output", ["", "[", "{}", "3", "[" * 3000, "null"])
def test_whatever_ip_prints_the_rest_is_surveyed(spark: Any, output: str) -> None:
    assert surveyed(spark(programs={"ip -j neigh": {"output": output}})).neighbours == ()


def lldp(*heard: tuple[str, dict[str, Any], dict[str, Any]]) -> str:
    """What lldpcli 1.0.16 prints with ``-f json0``."""
    return json.dumps(
        {
            "lldp": [
                {
                    "interface": [
                        {"name": name, "via": "LLDP", "rid": "1", "chassis": [chassis], "port": [port]}
                        for name, chassis, port in heard
                    ]
                }
            ]
        }
    )


def test_lldp_names_who_is_there() -> None:
    def ident(kind: str, value: str) -> dict[str, Any]:
        return {"id": [{"type": kind, "value": value}]}

    named = {**ident("mac", "66:b3:93:25:b3:4a"), "name": [{"value": "spark-b"}]}
    switch = {**ident("mac", "66:b3:93:00:00:01"), "name": [{"value": "leaf-1"}]}
    text = lldp(
        (TWINS[0], named, ident("mac", "26:0E:d5:0c:f7:1d")),
        (TWINS[1], switch, ident("ifname", "swp1")),
        (TWINS[1], ident("local", "x"), ident("local", "y")),
    )
    assert [(each["interface"], each["mac"], each["name"]) for each in neighbours.lldp_neighbours(text)] == [
        (TWINS[0], "26:0e:d5:0c:f7:1d", "spark-b"),
        (TWINS[1], "66:b3:93:00:00:01", "leaf-1"),
    ]
    assert neighbours.lldp_neighbours('{"lldp": [{}]}') == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["lldp", "interface", "chassis", "port", "id", "type", "value", "name", "dst", "dev", "state"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(json_values)
def test_no_answer_of_lldpd_or_ip_makes_an_invalid_neighbour(value: Any) -> None:
    class Answers(Machine):
        def run(self, argv: list[str], limit_s: float = 3.0) -> tuple[int, str]:
            return 0, json.dumps(value)

    found = [*neighbours.lldp_neighbours(json.dumps(value)), *neighbours.table(Answers())]
    Survey.model_validate(survey_document() | {"neighbours": found})


# ------------------------------------------------------------------------------------ for real, in namespaces

PROGRAM = """
import json, sys
from sparkcluster.node import neighbours
from sparkcluster.node.machine import Machine
interfaces = [
    {"name": name, "driver": "mlx5_core", "carrier": True, "mac": open("/sys/class/net/%s/address" % name).read().strip()}
    for name in ("t0", "t1")
]
print(json.dumps(neighbours.neighbours(Machine(), interfaces, sys.argv[1:])))
"""


def sh(line: str) -> str:
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


class Pair:
    """Two machines with one cable, whose two twins at each end are on it."""

    def __init__(self) -> None:
        self.names = [f"svtest{os.getpid()}{each}" for each in ("a", "b", "sw")]
        self.a, self.b, self.switch = self.names

    def up(self) -> None:
        for name in self.names:
            sh(f"ip netns add {name}")
            sh(f"ip -n {name} link set lo up")
        sh(f"ip -n {self.switch} link add cable type bridge")
        sh(f"ip -n {self.switch} link set cable addrgenmode none up")
        for name in (self.a, self.b):
            sh(f"ip netns exec {name} sysctl -qw net.ipv4.conf.all.rp_filter=2")
            for twin in ("t0", "t1"):
                end = f"{name[-1]}{twin}"
                sh(f"ip -n {name} link add {twin} type veth peer name {end} netns {self.switch}")
                sh(f"ip -n {self.switch} link set {end} master cable addrgenmode none up")
                sh(f"ip netns exec {name} sysctl -qw net.ipv6.conf.{twin}.accept_dad=0")
                sh(f"ip -n {name} link set {twin} up")
            sh(f"ip -n {name} link add mgmt type veth peer name far")
            sh(f"ip -n {name} link set mgmt up")
            sh(f"ip -n {name} link set far up")
            sh(f"ip -n {name} addr add 10.77.0.{11 if name == self.a else 12}/24 dev mgmt")

    def down(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def without_ipv6(self) -> None:
        for name in (self.a, self.b):
            for twin in ("t0", "t1"):
                sh(f"ip -n {name} link set {twin} addrgenmode none")
                sh(f"ip -n {name} -6 addr flush dev {twin}")
                sh(f"ip -n {name} neigh flush dev {twin}")

    def heard(self, *look_for: str) -> set[tuple[str, str]]:
        """Interface and address of hardware of who answers to the first machine; it runs as an ordinary user."""
        package = Path(survey.__file__).parents[2]
        argv = ["ip", "netns", "exec", self.a, sys.executable, "-c", PROGRAM, *look_for]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(package)}
        )
        assert done.returncode == 0, done.stderr
        return {(each["interface"], each["mac"]) for each in json.loads(done.stdout)}

    def macs(self) -> list[str]:
        """Hardware addresses of the twins of the second machine."""
        return [json.loads(sh(f"ip -n {self.b} -j link show {twin}"))[0]["address"] for twin in ("t0", "t1")]


@pytest.fixture
def pair() -> Iterator[Pair]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "ping"))):
        pytest.skip("needs root, iproute2 and ping: network namespaces")
    made = Pair()
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_both_twins_hear_both_twins_of_the_other_end(pair: Pair) -> None:
    began = time.monotonic()
    assert pair.heard() == {(twin, mac) for twin in ("t0", "t1") for mac in pair.macs()}
    assert time.monotonic() - began < 10


def test_what_was_set_up_is_found_by_its_addresses(pair: Pair) -> None:
    """It has no IPv6 address, and the one that looks for it has neither address nor route there."""
    pair.without_ipv6()
    sh(f"ip -n {pair.b} addr add 192.168.177.12/24 dev t0")
    sh(f"ip -n {pair.b} addr add 192.168.178.12/24 dev t1")
    assert pair.heard() == set()
    found = pair.heard("192.168.177.12", "192.168.178.12", "192.168.179.12")
    assert {interface for interface, _ in found} == {"t0", "t1"}
    assert {mac for _, mac in found} <= set(pair.macs())


def test_a_port_with_a_link_local_ipv4_address_is_found_by_it(pair: Pair) -> None:
    """NVIDIA's first netplan file has ``link-local: [ ipv4 ]``."""
    pair.without_ipv6()
    sh(f"ip -n {pair.a} addr add 169.254.1.11/16 dev t0")
    sh(f"ip -n {pair.b} addr add 169.254.1.12/16 dev t1")
    found = pair.heard("169.254.1.11", "169.254.1.12")
    assert {interface for interface, _ in found} == {"t0", "t1"}
    assert {mac for _, mac in found} <= set(pair.macs())
