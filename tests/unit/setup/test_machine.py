"""The scripts of ``setup`` on a machine: what they change, that all of it is undone, and that a kill changes no end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest

from sparkcluster.setup.changes import Change, Wanted, changes
from sparkcluster.setup.journal import describe
from sparkcluster.setup.script import EXIT_BUSY, Run, confirm_script, parse_line, script
from sparkcluster.setup.undo import undo
from sparkcluster.topology import netplan
from tests.unit.setup import machine as machines
from tests.unit.setup.machine import STATE, TWINS, USER, Machine, until

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMine me@laptop"
ADDRESSES = {twin: IPv4Interface(f"192.168.{177 + at}.11/24") for at, twin in enumerate(TWINS)}
HOSTS = tuple(f"{address.ip} spark-a-rail{at}" for at, address in enumerate(ADDRESSES.values(), 1))
WANTED = Wanted(USER, KEY, netplan.text(ADDRESSES), ADDRESSES, HOSTS, frozenset({"headless"}))
LOGIN = Run("spark-a", "me@laptop", USER, root=False)
ROOT = Run("spark-a", "me@laptop", USER)
BOTH = (LOGIN, ROOT)
JOURNALS = ("/var/lib/sparkcluster", f"/home/{USER}/.local")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("machine")


@pytest.fixture
def spark(folder) -> Iterator[Machine]:
    with machines.machine(folder) as made:
        yield made


def found(spark: Machine, wanted: Wanted = WANTED, only: Collection[str] | None = None) -> list[Change]:
    return changes("spark-a", spark.survey(), wanted, only)


def set_up(spark: Machine, *only: str, wanted: Wanted = WANTED, run: Run = ROOT) -> subprocess.CompletedProcess[str]:
    """The part of root's."""
    return spark.run(script(run, found(spark, wanted, only)))


def undone(spark: Machine, *only: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return spark.run(undo(ROOT, spark.survey().journal, only), **how)


def whole(spark: Machine, sh: str = "sh") -> None:
    made = found(spark)
    for run in BOTH:
        spark.run(script(run, made), user="root" if run.root else USER, sh=sh, check=True)


def wholly_undone(spark: Machine, sh: str = "sh") -> None:
    journal = spark.survey().journal
    for run in BOTH:
        spark.run(undo(run, journal), user="root" if run.root else USER, sh=sh, check=True)


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot has that another has not, without the journals."""
    names = [name for name in before | after if before.get(name) != after.get(name) and not name.startswith(JOURNALS)]
    return {name: after.get(name) for name in sorted(names)}


# ------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("sh", ["dash", "bash"])
def test_a_machine_is_set_up_and_then_as_it_was(spark, sh):
    before = spark.snapshot()
    whole(spark, sh)
    after = spark.snapshot()
    made = difference(before, after)
    cache = f"/home/{USER}/.cache/huggingface/hub/models--x"
    assert set(made) == {
        *("/etc/group", "/etc/gshadow", "/etc/hosts", "/etc/docker/daemon.json", "/etc/netplan/40-cx7.yaml"),
        *("/etc/security/limits.d/90-sparkcluster.conf", "/etc/sysctl.d/90-sparkcluster.conf"),
        *("/etc/systemd/system/default.target", f"/home/{USER}/.ssh/authorized_keys"),
        *(cache, f"{cache}/file", f"{cache}/link", f"{cache}/a 'name\nof lines"),
        *("swappiness", "dirty_bytes", "dirty_ratio", "packages", "ntp", *TWINS),
    }
    assert {name: made[name] for name in TWINS} == {
        twin: [9000, "1", [str(address)]] for twin, address in ADDRESSES.items()
    }
    assert (made["swappiness"], made["dirty_bytes"], made["dirty_ratio"]) == (["1"], ["268435456"], ["0"])
    assert made["/etc/netplan/40-cx7.yaml"][1:] == ["0o100600", 0, 0]
    assert made[f"{cache}/link"] == ["-> /etc/passwd", "0o120777", 4242, 4242]
    assert after["/etc/hosts"][1:] == before["/etc/hosts"][1:]
    assert spark.shell("id -nG spark").split() == ["spark", "docker"]
    assert spark.shell("tail -n 4 /etc/hosts").splitlines() == [
        "# BEGIN sparkcluster: written by sparkcluster setup",
        *HOSTS,
        "# END sparkcluster",
    ]
    assert spark.shell(f"cat /home/{USER}/.ssh/authorized_keys").splitlines()[1:] == [KEY]

    assert found(spark) == []

    wholly_undone(spark, sh)
    assert spark.snapshot() == before


def test_a_second_run_changes_nothing(spark):
    first = [script(run, found(spark)) for run in BOTH]
    whole(spark)
    after = spark.snapshot()
    for run, text in zip(BOTH, first, strict=True):
        done = spark.run(text, user="root" if run.root else USER)
        assert done.returncode == 0
    assert spark.snapshot() == after


def test_each_step_alone_is_undone_alone(spark):
    before = spark.snapshot()
    whole(spark)
    steps = {entry.step for entry in spark.survey().journal if entry.root}
    for step in sorted(steps):
        assert undone(spark, step).returncode == 0
        assert {entry.step for entry in spark.survey().journal if entry.root}.isdisjoint({step})
    spark.run(undo(LOGIN, spark.survey().journal), user=USER, check=True)
    assert spark.snapshot() == before


def test_packages_are_held_and_let_go(spark):
    spark.shell(f"printf '%s\\n' linux-image-6.14 nvidia-driver-580 >>{STATE}/packages")
    spark.shell(f"echo nvidia-driver-580 >>{STATE}/holds")
    before = spark.snapshot()
    wanted = Wanted(USER, options=frozenset({"hold"}))
    set_up(spark, "hold", wanted=wanted)
    assert spark.snapshot()["holds"] == ["linux-image-6.14", "nvidia-driver-580"]
    assert found(spark, wanted, ["hold"]) == []
    assert undone(spark).returncode == 0
    assert spark.snapshot() == before


def test_what_was_there_before_comes_back(spark):
    """A file of another text, an address given by hand, a target that was chosen, other limits of dirty pages."""
    spark.shell(
        "printf 'network:\\n  version: 2\\n' >/etc/netplan/40-cx7.yaml; chmod 644 /etc/netplan/40-cx7.yaml;"
        f"ip addr add 10.9.9.9/24 dev {TWINS[0]}; ip link set {TWINS[1]} mtu 9000;"
        "ln -s /lib/systemd/system/rescue.target /etc/systemd/system/default.target;"
        f"echo 5 >{STATE}/dirty_bytes; echo 0 >{STATE}/dirty_ratio; rm -r /etc/docker"
    )
    before = spark.snapshot()
    whole(spark)
    assert spark.snapshot()[TWINS[0]][2] == [str(ADDRESSES[TWINS[0]])]
    wholly_undone(spark)
    assert spark.snapshot() == before


def test_undo_goes_back_through_all_runs(spark):
    before = spark.snapshot()
    set_up(spark, "hosts", "netplan")
    others = {twin: IPv4Interface(f"192.168.{201 + at}.15/24") for at, twin in enumerate(TWINS)}
    second = replace(WANTED, netplan=netplan.text(others), addresses=others, hosts=("192.168.201.15 spark-a-rail1",))
    assert set_up(spark, "hosts", "netplan", wanted=second).returncode == 0
    assert spark.snapshot()[TWINS[0]][2] == ["192.168.201.15/24"]
    assert spark.shell("grep -c rail /etc/hosts") == "1\n"
    assert undone(spark).returncode == 0
    assert spark.snapshot() == before


# ----------------------------------------------------------------------------------------------------------- kills


def every(limit: int, count: int) -> list[int]:
    """At most ``count`` numbers from 1 to ``limit``."""
    return sorted({1 + at * (limit - 1) // (count - 1) for at in range(count)})


# More than a script has; a kill after its last call kills nothing.
CALLS = 400


def _killed(spark: Machine, text: str, moment: str, number: int, *, late: bool) -> bool:
    """Whether the script was killed; ``late``: the guard acts before anything else."""
    done = spark.run(text, kill={moment: number})
    if late:
        spark.shell(f"touch {STATE}/late")
        until(lambda: not spark.shell("ls -A /run/sparkcluster 2>/dev/null || true"))
        spark.shell(f"rm {STATE}/late")
    return done.returncode == -signal.SIGKILL


def _check_kill(spark: Machine, moment: str, number: int, *, of_undo: bool) -> bool:
    made = found(spark)
    before = spark.snapshot()
    late = number % 2 == 0
    if of_undo:
        set_up(spark)
        killed = _killed(spark, undo(ROOT, spark.survey().journal), moment, number, late=late)
    else:
        killed = _killed(spark, script(ROOT, made), moment, number, late=late)
        rest = script(ROOT, found(spark))
        assert not rest or spark.run(rest).returncode == 0
        assert [each.step for each in found(spark)] == ["ssh-key"]
        assert spark.snapshot()[TWINS[0]] == [9000, "1", [str(ADDRESSES[TWINS[0]])]]
    rest = undo(ROOT, spark.survey().journal)
    assert not rest or spark.run(rest).returncode == 0
    assert difference(before, spark.snapshot()) == {}
    assert not spark.survey().journal
    return killed


@pytest.mark.parametrize("of_undo", [False, True], ids=["setup", "undo"])
@pytest.mark.parametrize("number", every(200, 8))
def test_killed_and_run_again(spark, number, of_undo):
    _check_kill(spark, "after" if number % 2 else "before", number, of_undo=of_undo)


@pytest.mark.full
@pytest.mark.parametrize("of_undo", [False, True], ids=["setup", "undo"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, CALLS))
def test_killed_anywhere_and_run_again(spark, number, moment, of_undo):
    if not _check_kill(spark, moment, number, of_undo=of_undo):
        pytest.skip("the script has fewer calls")
