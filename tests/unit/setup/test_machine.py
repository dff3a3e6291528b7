"""The scripts of ``setup`` on a machine: their changes, a complete undo, and recovery after a kill."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest

from sparkcluster.setup.script import CONFIRM, CONFIRMED_ANEW, EXIT_BUSY, Run, parse_line, script, undo
from sparkcluster.setup.step import Change, Wanted
from sparkcluster.setup.steps import BY_NAME, changes, selected
from sparkcluster.topology import netplan
from tests.unit.setup import machine as machines
from tests.unit.setup.machine import KILL_ALL, STATE, SYSTEM_PATH, TWINS, USER, Machine, until, with_stand_ins

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMine me@laptop"
ADDRESSES = {twin: IPv4Interface(f"192.168.{177 + at}.11/24") for at, twin in enumerate(TWINS)}
WANTED = Wanted(KEY, netplan.text(ADDRESSES), ADDRESSES)
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


def found(spark: Machine, wanted: Wanted = WANTED, only: Collection[str] = ()) -> list[Change]:
    """The differences; ``rails.proposal`` decides about the network, from all nodes."""
    survey = spark.survey()
    there = {(each.name, address, each.mtu) for each in survey.interfaces for address in each.addresses}
    live = all((name, str(address), netplan.MTU) in there for name, address in wanted.addresses.items())
    if live and spark.shell(f"cat {netplan.NETPLAN} 2>/dev/null || true") == wanted.netplan:
        wanted = replace(wanted, netplan=None)
    return changes("spark-a", survey, wanted, selected(only, () if only else ["headless"]))


def set_up(spark: Machine, *only: str, wanted: Wanted = WANTED, run: Run = ROOT) -> subprocess.CompletedProcess[str]:
    """Root's part."""
    return spark.run(script(run, found(spark, wanted, only)))


def undone(spark: Machine, *only: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return spark.run(undo(ROOT, only or list(BY_NAME)), **how)


def whole(spark: Machine, *only: str) -> None:
    made = found(spark, only=only)
    for run in BOTH:
        spark.run(script(run, made), user="root" if run.root else USER, check=True)


def wholly_undone(spark: Machine) -> None:
    for run in BOTH:
        spark.run(undo(run, BY_NAME), user="root" if run.root else USER, check=True)


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """New entries of a snapshot compared with another, without the journals."""
    names = [name for name in before | after if before.get(name) != after.get(name) and not name.startswith(JOURNALS)]
    return {name: after.get(name) for name in sorted(names)}


# ------------------------------------------------------------------------------------------------- there and back


def test_setup_and_undo_restore_the_machine(spark):
    before = spark.snapshot()
    whole(spark)
    after = spark.snapshot()
    made = difference(before, after)
    cache = f"/home/{USER}/.cache/huggingface/hub/models--x"
    assert set(made) == {
        *("/etc/group", "/etc/gshadow", "/etc/docker/daemon.json", "/etc/netplan/40-cx7.yaml"),
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
    assert made[f"{cache}/link"] == ["-> /etc/passwd", "0o120777", 4242, 0]
    assert spark.shell("id -nG spark").split() == ["spark", "docker"]
    assert spark.shell(f"cat /home/{USER}/.ssh/authorized_keys").splitlines()[1:] == [KEY]

    assert found(spark) == []

    wholly_undone(spark)
    assert spark.snapshot() == before


def test_undo_restores_the_previous_state(spark):
    """A file with another text, an address set by hand, a chosen target, other limits of dirty pages."""
    spark.shell(
        "printf 'network:\\n  version: 2\\n' >/etc/netplan/40-cx7.yaml; chmod 644 /etc/netplan/40-cx7.yaml;"
        f"ip addr add 10.9.9.9/24 dev {TWINS[0]}; ip link set {TWINS[1]} mtu 9000;"
        "ln -s /lib/systemd/system/rescue.target /etc/systemd/system/default.target;"
        f"echo 5 >{STATE}/dirty_bytes; echo 0 >{STATE}/dirty_ratio; rm -r /etc/docker"
    )
    before = spark.snapshot()
    whole(spark, "nvidia-runtime", "sysctl", "headless", "netplan")
    assert spark.snapshot()[TWINS[0]][2] == [str(ADDRESSES[TWINS[0]])]
    wholly_undone(spark)
    assert spark.snapshot() == before


def test_undo_reverts_all_runs(spark):
    before = spark.snapshot()
    set_up(spark, "netplan")
    others = {twin: IPv4Interface(f"192.168.{201 + at}.15/24") for at, twin in enumerate(TWINS)}
    second = replace(WANTED, netplan=netplan.text(others), addresses=others)
    assert set_up(spark, "netplan", wanted=second).returncode == 0
    assert spark.snapshot()[TWINS[0]][2] == ["192.168.201.15/24"]
    assert undone(spark).returncode == 0
    assert spark.snapshot() == before


# ----------------------------------------------------------------------------------------------------------- kills


# A complete script has about 180 of them, and its undo 150; a kill after the last one kills nothing.
CALLS = range(1, 161, 20)


def guards(spark: Machine) -> str:
    """Running guards of the network."""
    return spark.shell("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -x '[g]uard' || true")


def _killed(spark: Machine, text: str, moment: str, number: int) -> bool:
    """Whether the script was killed. Until its guard ends, no other script runs."""
    done = spark.run(text, kill={moment: number})
    until(lambda: not guards(spark))
    return done.returncode == -signal.SIGKILL


def _check_kill(spark: Machine, moment: str, number: int, *, of_undo: bool) -> bool:
    made = found(spark)
    before = spark.snapshot()
    if of_undo:
        set_up(spark)
        killed = _killed(spark, undo(ROOT, BY_NAME), moment, number)
    else:
        killed = _killed(spark, script(ROOT, made), moment, number)
        rest = script(ROOT, found(spark))
        assert not rest or spark.run(rest).returncode == 0
        assert [each.step for each in found(spark)] == ["ssh-key"]
        assert spark.snapshot()[TWINS[0]] == [9000, "1", [str(ADDRESSES[TWINS[0]])]]
    rest = undo(ROOT, BY_NAME)
    assert not rest or spark.run(rest).returncode == 0
    assert difference(before, spark.snapshot()) == {}
    assert not spark.survey().journal
    return killed


@pytest.mark.parametrize("of_undo", [False, True], ids=["setup", "undo"])
@pytest.mark.parametrize("number", [47, 94])
def test_a_run_after_a_kill_completes(spark, number, of_undo):
    _check_kill(spark, "after" if number % 2 else "before", number, of_undo=of_undo)


@pytest.mark.full
@pytest.mark.parametrize("of_undo", [False, True], ids=["setup", "undo"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", CALLS)
def test_a_run_after_a_kill_at_any_point_completes(spark, number, moment, of_undo):
    if not _check_kill(spark, moment, number, of_undo=of_undo):
        pytest.skip("the script has fewer calls")


# --------------------------------------------------------------------------------------------------------- network


def events(done: subprocess.CompletedProcess[str]) -> list[tuple[str | None, str, str]]:
    return [(each.step, each.kind, each.text) for each in map(parse_line, done.stdout.splitlines())]


def failure(done: subprocess.CompletedProcess[str], step: str) -> str:
    """The reason of a failed step."""
    assert done.returncode == 1
    last = [each for each in events(done) if each[0] == step][-1]
    assert last[1] == "failed"
    return last[2]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (f"echo 192.168.86.11/24 >{STATE}/cuts", "enP7s7 has no 192.168.86.11/24"),
        (f"touch {STATE}/ignores", f"{TWINS[1]} has no 192.168.178.11/24"),
    ],
    ids=["cuts the node off", "has no effect"],
)
def test_a_network_that_is_not_as_planned_is_reverted(spark, fault, reason):
    before = spark.snapshot()
    spark.shell(fault)
    done = set_up(spark, "netplan", "limits")
    assert failure(done, "netplan") == f"{reason}; network rolled back"
    assert ("limits", "done", "") in events(done)
    spark.shell(f"rm -f {STATE}/cuts {STATE}/ignores")
    assert set(difference(before, spark.snapshot())) == {"/etc/security/limits.d/90-sparkcluster.conf"}
    assert undone(spark).returncode == 0
    assert spark.snapshot() == before


def with_answer(spark: Machine, text: str, *, confirms: bool) -> list[tuple[str | None, str, str]]:
    """Output of a script that asks the controller, which confirms or not."""
    said = []
    with subprocess.Popen(
        spark.argv(["sh", "-s"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin
        assert running.stdout
        running.stdin.write(with_stand_ins(CONFIRMED_ANEW + text))
        running.stdin.close()
        spark.shell(f"touch {STATE}/still" if confirms else "true")
        for line in running.stdout:
            event = parse_line(line)
            said.append((event.step, event.kind, event.text))
            if event.kind == "confirm" and confirms:
                assert not spark.shell("ls -A /etc/netplan")
                spark.run(CONFIRM, check=True)
                spark.run(CONFIRM)  # repeated, since the answer to the first was lost
                spark.shell(f"rm {STATE}/still")
    return said


def test_without_confirmation_by_the_controller_the_network_is_reverted(spark):
    before = spark.snapshot()
    said = with_answer(spark, script(ROOT, found(spark, only=["netplan"])), confirms=False)
    assert said[-1] == ("netplan", "failed", "no confirmation within 60 s; network rolled back")
    assert difference(before, spark.snapshot()) == {}
    said = with_answer(spark, script(ROOT, found(spark, only=["netplan"])), confirms=True)
    assert said[-1] == ("netplan", "done", "")
    assert found(spark, only=["netplan"]) == []
    assert spark.shell("ls -A /run/netplan /run/sparkcluster-setup 2>/dev/null || true") == ""


def test_the_network_of_a_killed_script_is_reverted_by_its_guard(spark):
    before = spark.snapshot()
    spark.shell(
        f"cd {STATE}/bin; mv netplan real; cat >netplan; chmod 755 netplan",
        f'#!/bin/sh\n{KILL_ALL}\n{STATE}/bin/real "$@"\ntouch {STATE}/still\nkill_all\n',
    )
    done = set_up(spark, "netplan")
    assert done.returncode == -signal.SIGKILL
    assert spark.snapshot()[TWINS[1]] == [9000, "1", [str(ADDRESSES[TWINS[1]])]]
    assert not spark.shell("ls -A /etc/netplan")
    spark.shell(f"mv {STATE}/bin/real {STATE}/bin/netplan")
    assert set_up(spark, "limits").returncode == EXIT_BUSY
    spark.shell(f"rm {STATE}/still")
    until(lambda: not guards(spark))
    assert difference(before, spark.snapshot()) == {}


def test_ranks_started_after_the_check_are_not_disturbed(spark):
    before = spark.snapshot()
    text = script(ROOT, found(spark, only=["netplan"]))
    spark.shell(f"echo two-sparks-rank0 >{STATE}/ranks")
    assert failure(spark.run(text), "netplan") == "ranks are running: two-sparks-rank0 "
    assert difference(before, spark.snapshot()) == {}


# ------------------------------------------------------------------------------------------- what others changed


def test_lines_added_by_others_are_kept(spark):
    whole(spark, "ssh-key")
    keys = f"/home/{USER}/.ssh/authorized_keys"
    spark.shell(f"echo 'ssh-rsa AAAALater other' >>{keys}")
    wholly_undone(spark)
    assert spark.shell(f"cut -d ' ' -f 2 {keys}").split() == ["AAAAC3NzaC1lZDI1NTE5AAAAIOther", "AAAALater"]
    assert not spark.survey().journal


def test_a_setting_changed_after_setup_is_kept_and_reported(spark):
    set_up(spark, "clock", "sysctl")
    spark.shell(f"echo 42 >{STATE}/swappiness; echo vm.swappiness = 42 >/etc/sysctl.d/90-sparkcluster.conf")
    done = undone(spark)
    assert [each[1:] for each in events(done) if each[0] == "sysctl" and each[1] != "text"] == [
        ("left", "vm.swappiness: changed since setup wrote it"),
        ("left", "/etc/sysctl.d/90-sparkcluster.conf: changed since setup wrote it"),
    ]
    assert ("clock", "done", "") in events(done)
    assert {each.target for each in spark.survey().journal} == {"vm.swappiness", "/etc/sysctl.d/90-sparkcluster.conf"}


def test_the_logins_journal_cannot_undo_changes_of_root(spark):
    """The user may write it: neither root's nor the login's script then does more than the login may."""
    before = spark.snapshot()
    journal = f"/home/{USER}/.local/state/sparkcluster/setup"
    entry = "1\\t1763690000\\tme@laptop\\tssh-key\\tfile\\t/etc/hosts\\tabsent\\t"
    spark.shell(
        f"mkdir -p {journal}/saved; printf '{entry}%s\\n' \"$(sha256sum </etc/hosts | cut -c 1-64)\" >{journal}/journal;"
        f"chown -R {USER}: /home/{USER}/.local"
    )
    assert undone(spark).returncode == 0
    done = spark.run(undo(LOGIN, BY_NAME), user=USER)
    assert failure(done, "ssh-key") == "cannot remove /etc/hosts"
    assert difference(before, spark.snapshot()) == {}


def test_a_disk_mounted_in_the_cache_is_unchanged(spark):
    cache = f"/home/{USER}/.cache/huggingface"
    spark.shell(
        f"chown -R -h {USER}: {cache}; mkdir {cache}/disk; mount -t tmpfs tmpfs {cache}/disk; touch {cache}/disk/file;"
        f"mkdir {cache}/of-root; touch {cache}/of-root/file"
    )
    before = spark.snapshot()
    assert [each.found for each in found(spark, only=["hf-cache"])] == [f"2 files owned by root in {cache}"]
    assert set_up(spark, "hf-cache").returncode == 0
    assert found(spark, only=["hf-cache"]) == []
    assert set(difference(before, spark.snapshot())) == {f"{cache}/of-root", f"{cache}/of-root/file"}
    assert undone(spark).returncode == 0
    assert spark.snapshot() == before


def test_the_owner_of_a_cache_behind_a_link_is_not_changed(spark):
    """The user could point it to files of root."""
    cache = f"/home/{USER}/.cache/huggingface"
    survey = spark.survey()
    spark.shell(f"rm -r {cache}; mkdir -p /opt/secret; touch /opt/secret/key; ln -s /opt/secret {cache}")
    before = spark.snapshot()
    done = spark.run(script(ROOT, changes("spark-a", survey, WANTED, selected(["hf-cache"]))), check=False)
    assert f"{cache} is a link to /opt/secret" in done.stdout
    assert difference(before, spark.snapshot()) == {}


# Before one call of a program that checks paths or changes owners, a link replaces a directory.
SWAPS = f"""#!/bin/sh
echo call >>{STATE}/calls
if [ "$(/usr/bin/wc -l <{STATE}/calls)" -ge "$SWAP_AT" ] && /usr/bin/mkdir {STATE}/swapped 2>/dev/null; then
  /usr/bin/mv "/home/{USER}/$SWAP" /home/{USER}/gone && /usr/bin/ln -s "/home/secret/$SWAP" "/home/{USER}/$SWAP"
fi
exec "/usr/bin/${{0##*/}}" "$@"
"""


@pytest.mark.parametrize("of_undo", [False, True], ids=["setup", "undo"])
@pytest.mark.parametrize("place", [".cache", ".cache/huggingface", ".cache/huggingface/hub/models--x"])
def test_a_link_that_replaces_a_directory_at_any_moment_is_not_followed(spark, place, of_undo):
    """A user who may write there, or above it, may do so between a check of a path and its use."""
    home, link = f"/home/{USER}", f"for name in chown find readlink xargs; do ln -s ../swaps {STATE}/bin/$name; done"
    spark.shell(
        f"cp -a {home} /home/first; mkdir /home/secret; cp -a {home}/.cache /home/secret;"
        f"chown -h -R {USER if of_undo else 'root'} /home/secret; cat >{STATE}/swaps; chmod 755 {STATE}/swaps",
        SWAPS,
    )
    owners = "find /home/secret -printf '%u %p\n'"
    before = spark.shell(owners)
    made, undone = script(ROOT, found(spark, only=["hf-cache"])), undo(ROOT, ["hf-cache"])
    number, swapped = 0, True
    while swapped:
        number += 1
        begin = f"export SWAP={place} SWAP_AT={number}\n: >{STATE}/calls\n"
        if of_undo:
            spark.run(made, check=True)
        spark.shell(link)
        spark.run(begin + (undone if of_undo else made))
        swapped = "swapped" in spark.shell(
            f"cd {STATE}; ls; rm -rf swapped bin/chown bin/find bin/readlink bin/xargs {home} /var/lib/sparkcluster;"
            f"cp -a /home/first {home}"
        )
        assert spark.shell(owners) == before, number
    assert number > 2


def test_undo_follows_no_link_created_since(spark):
    folder = f"/home/{USER}/.cache/huggingface/hub/models--x"
    set_up(spark, "hf-cache")
    other = f"/home/{USER}/other"
    spark.shell(f"mkdir {other}; touch {other}/file; chown -R {USER}: {other}; rm -r {folder}; ln -s {other} {folder}")
    undone(spark)
    assert spark.snapshot()[f"{other}/file"][2] == 4242


# -------------------------------------------------------------------------------------------------- what goes wrong


def test_a_failing_step_does_not_affect_the_others(spark):
    spark.shell(f"touch {STATE}/offline")
    done = set_up(spark, "perftest", "clock", "sysctl")
    assert failure(done, "perftest") == "apt-get: E: Failed to fetch perftest"
    assert [each[0] for each in events(done) if each[1] == "done"] == ["sysctl", "clock"]


def test_if_docker_does_not_start_its_file_is_restored(spark):
    before = spark.snapshot()
    spark.shell(f"touch {STATE}/breaks")
    done = set_up(spark, "nvidia-runtime")
    assert (
        failure(done, "nvidia-runtime")
        == "Docker does not start with the nvidia runtime: Job for docker.service failed."
    )
    assert spark.snapshot() == before
    assert spark.shell(f"grep -c . {STATE}/restarts") == "2\n"


@pytest.mark.parametrize(
    ("prepare", "step", "reason"),
    [
        ("sed -i /^docker:/d /etc/group", "docker-group", "usermod: group 'docker' does not exist"),
        ("ln -sf /etc/passwd /etc/security/limits.d/90-sparkcluster.conf", "limits", "/etc/security/limits.d/"),
    ],
)
def test_an_impossible_step_gives_the_reason_and_changes_nothing(spark, prepare, step, reason):
    spark.shell(prepare)
    before = spark.snapshot()
    assert failure(set_up(spark, step), step).startswith(reason)
    assert difference(before, spark.snapshot()) == {}


def test_a_full_disk_changes_nothing(spark):
    spark.shell("mount -o remount,size=64k /var/lib; head -c 60k /dev/zero >/var/lib/filler || true")
    before = spark.snapshot()
    done = set_up(spark, "limits", "sysctl", "netplan")
    assert done.returncode == 1
    assert {each[1] for each in events(done) if each[0]} <= {"text", "failed"}
    assert difference(before, spark.snapshot()) == {}


def test_two_concurrent_runs_do_not_mix(spark):
    text = script(ROOT, found(spark, only=["limits"]))
    spark.shell("mkdir -p /var/lib/sparkcluster/setup/saved")
    holder = subprocess.Popen(spark.argv(["flock", "/var/lib/sparkcluster/setup/saved", "cat"]), stdin=subprocess.PIPE)
    until(lambda: spark.shell("flock -n /var/lib/sparkcluster/setup/saved true && echo free || echo held") == "held\n")
    done = spark.run(text)
    holder.communicate()
    assert (done.returncode, done.stderr) == (EXIT_BUSY, "setup: another setup is running on spark-a\n")
    assert spark.run(text).returncode == 0


def test_the_script_runs_only_on_its_machine_and_as_its_user(spark):
    before = spark.snapshot()
    survey = spark.survey()
    made = changes("spark-a", survey, WANTED, selected())
    other = spark.run(script(replace(ROOT, machine="0" * 64), made))
    assert (other.returncode, other.stderr) == (
        2,
        "setup: this script is for another machine, not spark-a\n",
    )
    assert spark.run(script(ROOT, made), user=USER).returncode == 2
    assert spark.run(script(LOGIN, made)).stderr == "setup: run this as spark, not as root\n"
    assert spark.snapshot() == before
    right = script(replace(ROOT, machine=survey.machine), changes("spark-a", survey, WANTED, selected(["limits"])))
    assert spark.run(right).returncode == 0


def test_programs_come_from_the_system_whatever_path_sudo_sets(spark):
    text = script(ROOT, found(spark, only=["limits"]))
    assert f"\n{SYSTEM_PATH} " in text
    spark.shell(
        "mkdir /run/mine; printf '#!/bin/sh\\ntouch /run/was-run\\n' >/run/mine/id; chmod 755 /run/mine/id;"
        "for name in awk cat chmod cp cut date flock mkdir mv rm sha256sum stat sync; do ln -s id /run/mine/$name; done"
    )
    argv = spark.argv(["env", "PATH=/run/mine:/usr/bin:/bin", "sh", "-s"])
    subprocess.run(argv, input=text, text=True, check=True)
    assert spark.shell("ls -d /run/was-run || true") == ""
    assert found(spark, only=["limits"]) == []


def test_an_incomplete_script_does_nothing(spark):
    before = spark.snapshot()
    text = script(ROOT, found(spark))
    for end in range(0, len(text) - len("main </dev/null\n"), 4999):
        spark.run(text[:end])
    spark.run(text.removesuffix("main </dev/null\n"))
    assert spark.snapshot() == before


def test_after_a_hangup_the_script_completes(spark):
    """SIGHUP to all processes of the script, as from a closing terminal: the current action is finished."""
    spark.shell(f"printf '#!/bin/sh\\nkill -HUP 0\\nexec /usr/sbin/usermod \"$@\"\\n' >{STATE}/bin/usermod;"
                f"chmod 755 {STATE}/bin/usermod")  # fmt: skip
    done = set_up(spark, "docker-group", "limits")
    assert done.stderr == "setup: interrupted; run it again to continue\n"
    assert "docker" in spark.shell("id -nG spark")
    assert found(spark, only=["docker-group"]) == []
    assert [each.step for each in found(spark, only=["limits"])] == ["limits"]


def test_a_path_with_any_characters_is_one_path(spark):
    evil = f"/home/{USER}/it's $(touch /run/evil) `touch /run/evil` \"; touch /run/evil #"
    move = f'path=$(cat); mkdir -p "${{path%/*}}"; mv /home/{USER}/.cache/huggingface "$path"'
    spark.shell(move, evil)
    before = spark.snapshot()
    survey = spark.survey().model_copy(update={"hf_home": evil, "foreign": 4})
    done = spark.run(script(ROOT, changes("spark-a", survey, WANTED, selected(["hf-cache"]))), check=True)
    assert ("hf-cache", "done", "") in events(done)
    after = spark.snapshot()
    assert after[f"{evil}/hub/models--x/file"][2] == 4242
    assert "/run/evil" not in after
    assert undone(spark).returncode == 0
    assert spark.snapshot() == before
