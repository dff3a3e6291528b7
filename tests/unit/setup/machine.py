"""A machine for the scripts of ``setup``: this machine's system in separate namespaces, with files that may be changed.

Real are sh, coreutils, users and groups, files, and the network's interfaces and addresses. Programs that would change
this machine or are missing are imitated below: netplan, systemctl, apt, timedatectl, Docker, nvidia-ctk, the vm.*
sysctls, and ``sleep``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.facts.survey import Survey
from sparkcluster.setup.steps import REQUESTS

ROOT = Path(__file__).parents[3]
STATE = "/run/stand-ins"
TWINS = ("enp1s0f1np1", "enP2p1s0f1np1")
SYSTEM_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin"
"""Directories of a script's programs."""
USER = "spark"
NEEDED = ("unshare", "nsenter", "ip", "usermod", "gpasswd", "flock", "setsid", "runuser")

_BOOT = f"""
set -e
hostname spark-a
mount --make-rprivate /
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p {STATE}/bin {STATE}/lower /run/src /run/over/etc /run/over/work
mount --bind "$1" /run/src
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/over/etc,workdir=/run/over/work /etc
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /home
cp "$2"/* {STATE}/bin
chmod 755 {STATE}/bin/*
for name in swappiness:60 dirty_bytes:0 dirty_ratio:20; do
  echo "${{name#*:}}" >{STATE}/"${{name%:*}}"
  mount --bind {STATE}/"${{name%:*}}" /proc/sys/vm/"${{name%:*}}"
done
echo no >{STATE}/ntp
: >{STATE}/packages; : >{STATE}/restarts; : >{STATE}/ranks; : >{STATE}/calls
sed -i '/^docker:/d' /etc/group
[ ! -e /etc/gshadow ] || sed -i '/^docker:/d' /etc/gshadow
printf '%s\\n' {USER}:x:4242:4242::/home/{USER}:/bin/sh >>/etc/passwd
printf '%s\\n' {USER}:x:4242: docker:x:4243: >>/etc/group
[ ! -e /etc/gshadow ] || printf '%s\\n' '{USER}:!::' 'docker:!::' >>/etc/gshadow
[ ! -e /etc/shadow ] || printf '%s\\n' '{USER}:*:19000:0:99999:7:::' >>/etc/shadow
rm -rf /etc/docker /etc/netplan /etc/systemd/system/default.target
mkdir -p /etc/netplan /etc/docker /etc/sysctl.d /etc/security/limits.d /etc/systemd/system
echo '{{"log-level": "warn"}}' >/etc/docker/daemon.json
chmod 604 /etc/docker/daemon.json
printf '127.0.0.1 localhost\\n192.168.86.11 spark-a' >/etc/hosts
mkdir -p /home/{USER}/.ssh /home/{USER}/.cache/huggingface/hub/models--x /home/{USER}/.cache/vllm
echo 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOther friend@laptop' >/home/{USER}/.ssh/authorized_keys
chmod 600 /home/{USER}/.ssh/authorized_keys
chmod 700 /home/{USER}/.ssh
chown -R {USER}: /home/{USER}
echo weights >/home/{USER}/.cache/huggingface/hub/models--x/file
printf x >"/home/{USER}/.cache/huggingface/hub/models--x/a 'name
of lines"
ln -s /etc/passwd /home/{USER}/.cache/huggingface/hub/models--x/link
chown -h root:root /home/{USER}/.cache/huggingface/hub/models--x /home/{USER}/.cache/huggingface/hub/models--x/*
chown root:{USER} /home/{USER}/.cache/huggingface/hub/models--x/file
ip link set lo up
for name in enP7s7 {" ".join(TWINS)}; do
  ip link add "$name" type veth peer name "to-${{name#en}}"
  ip link set "to-${{name#en}}" up
  ip link set "$name" mtu 1500 up
done
ip addr add 192.168.86.11/24 dev enP7s7
echo ready
exec cat
"""

# Each imitated program by name. A text that begins with #! is the complete program.
STAND_INS = {
    "sleep": f"""
# A second passes in a twentieth of it, or not at all if a test says so.
/bin/sleep 0.05
while [ -e {STATE}/still ]; do /bin/sleep 0.02; done
""",
    "sysctl": f"""
# -n NAME, or -q -w NAME=VALUE; of dirty_bytes and dirty_ratio one is 0, as in Linux.
case $1 in
  -n) exec cat {STATE}/"${{2#vm.}}" ;;
esac
name=${{3%%=*}}
echo "${{3#*=}}" >{STATE}/"${{name#vm.}}"
case $name in
  vm.dirty_bytes) echo 0 >{STATE}/dirty_ratio ;;
  vm.dirty_ratio) echo 0 >{STATE}/dirty_bytes ;;
esac
""",
    "netplan": f"""
# apply: gives the interfaces of 40-cx7.yaml what it says, as networkd does; others stay as they are.
file=/etc/netplan/40-cx7.yaml
[ ! -e /run/netplan/40-cx7.yaml ] || file=/run/netplan/40-cx7.yaml
echo apply "$file" >>{STATE}/applied
[ ! -e {STATE}/cuts ] || case $file in
  /run/*) ip addr del "$(cat {STATE}/cuts)" dev enP7s7 ;;
  *) ip addr add "$(cat {STATE}/cuts)" dev enP7s7 nodad 2>/dev/null ;;
esac
[ -e "$file" ] || exit 0
if ! grep -q '^network:' "$file"; then
  echo "Error in network definition" >&2
  exit 78
fi
[ ! -e {STATE}/ignores ] || exit 0
name=
while read -r key value; do
  case $key in
    en*:)
      name=${{key%:}}
      ip -4 addr flush dev "$name" scope global
      ;;
    addresses:) value=${{value#[}} && ip addr add "${{value%]}}" dev "$name" ;;
    mtu:) ip link set dev "$name" mtu "$value" ;;
    link-local:)
      echo 1 >/proc/sys/net/ipv6/conf/"$name"/addr_gen_mode
      ip -6 addr flush dev "$name"
      ;;
  esac
done <"$file"
""",
    "systemctl": f"""
case "$1 $2" in
  "set-default "*) ln -sf /lib/systemd/system/"$2" /etc/systemd/system/default.target ;;
  "restart docker")
    echo restart >>{STATE}/restarts
    if [ -e {STATE}/breaks ] && grep -q nvidia /etc/docker/daemon.json; then
      echo "Job for docker.service failed." >&2
      exit 1
    fi
    ;;
  *) exit 1 ;;
esac
""",
    "timedatectl": f"""
case "$1 $2" in
  "show -p") echo "NTP=$(cat {STATE}/ntp)" ;;
  "set-ntp "*) echo "$2" >{STATE}/ntp ;;
esac
""",
    "docker": f"""
case $1 in
  ps) cat {STATE}/ranks ;;
  --version) echo "Docker version 28.1.1, build 4eba377" ;;
esac
""",
    "nvidia-ctk": f"""#!{sys.executable}
import json, os, sys
path = [each[9:] for each in sys.argv if each.startswith("--config=")][0]
known = json.load(open(path)) if os.path.exists(path) else {{}}
known["runtimes"] = {{"nvidia": {{"args": [], "path": "nvidia-container-runtime"}}}}
open(path, "w").write(json.dumps(known, indent=4) + "\\n")
""",
    "apt-get": f"""
# install of perftest, which comes with libibumad3; -s only says what it would do
simulate='' verb='' name=''
while [ $# -gt 0 ]; do
  case $1 in
    -s) simulate=1 ;;
    -o) shift ;;
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$1; else name="$name $1"; fi ;;
  esac
  shift
done
[ "$verb" != update ] || exit 0
if [ -e {STATE}/offline ] && [ -z "$simulate" ] && [ "$verb" = install ]; then
  echo "E: Failed to fetch perftest" >&2
  exit 100
fi
if [ "$verb" = install ]; then
  for each in libibumad3 perftest; do
    grep -qx "$each" {STATE}/packages && continue
    if [ -n "$simulate" ]; then echo "Inst $each (4.5 Ubuntu:24.04 [arm64])"; else echo "$each" >>{STATE}/packages; fi
  done
  [ -z "$simulate" ] || echo "Inst libibverbs1 [50.0] (51.0 Ubuntu:24.04 [arm64])"
fi
""",
    "dpkg": f"""
# --purge NAME...: refused where another package needs one
case " $* " in
  *" perftest "*) ;;
  *) echo "dpkg: dependency problems prevent removal of $2" >&2; exit 1 ;;
esac
shift
for each; do sed -i "/^$each\\$/d" {STATE}/packages; done
""",
    "dpkg-query": f"""
# -W -f FORMAT NAME...: of the survey the names with their states, else the status alone
status=1
for each; do
  for name in $(grep -x "$(echo "$each" | sed 's/[*]/.*/')" {STATE}/packages); do
    status=0
    case $3 in
      *Package*) printf '%s installed install\\n' "$name" ;;
      *) printf installed ;;
    esac
  done
done
exit $status
""",
}

# Kills a script and its children, except the guard, which is in another session. (timeout makes a process group.)
KILL_ALL = """
kill_all() {
  for each in /proc/[0-9]*; do
    [ "$each" != /proc/1 ] && [ "$each" != /proc/$$ ] && read -r stat 2>/dev/null <"$each/stat" || continue
    set -- ${stat##*) }
    [ "$4" != 0 ] || kill -9 "${each#/proc/}"
  done
  kill -9 $$
}
"""

# Counts calls; kills the script and its children, except the guard, before or after a call by its number.
_KILLER = f"""
{KILL_ALL}
echo call >>{STATE}/calls
number=$(/usr/bin/wc -l <{STATE}/calls)
[ "$number" != "$KILL_BEFORE" ] || kill_all
PATH=${{PATH#*:}}
"${{0##*/}}" "$@"
code=$?
[ "$number" != "$KILL_AFTER" ] || kill_all
exit $code
"""
# Programs that change something, or allow a change.
CHANGING = (
    *("mv", "cp", "rm", "mkdir", "rmdir", "chmod", "chown", "sync", "ip", "usermod", "gpasswd", "xargs", "setsid"),
    *("netplan", "systemctl", "timedatectl", "nvidia-ctk", "apt-get", "apt-mark", "sysctl"),
)

HIDDEN = (STATE, "/run/src", "/run/over", "/run/sudo", "/run/mount")  # sudo notes that a survey asked it
_SNAPSHOT = f"""
import hashlib, json, os, stat, subprocess, sys
found = {{}}
def note(path):
    about = os.lstat(path)
    if stat.S_ISLNK(about.st_mode):
        content = "-> " + os.readlink(path)
    elif stat.S_ISREG(about.st_mode):
        content = hashlib.sha256(open(path, "rb").read()).hexdigest()
    else:
        content = "other"
    found[path] = [content, oct(about.st_mode), about.st_uid, about.st_gid]
for top in ("/etc", "/home", "/var/lib", "/run"):
    for folder, folders, files in os.walk(top):
        folders[:] = [each for each in folders if os.path.join(folder, each) not in {HIDDEN}]
        for each in folders + files:
            path = os.path.join(folder, each)
            if path not in ("/etc/group-", "/etc/gshadow-", "/etc/.pwd.lock"):
                note(path)
for each in json.loads(subprocess.check_output(["ip", "-j", "addr"])):
    name = each["ifname"]
    if name.startswith("en"):
        mode = open("/proc/sys/net/ipv6/conf/" + name + "/addr_gen_mode").read().strip()
        addresses = sorted("%s/%s" % (a["local"], a["prefixlen"]) for a in each["addr_info"])
        found[name] = [each["mtu"], mode, addresses]
for each in ("swappiness", "dirty_bytes", "dirty_ratio", "ntp", "packages"):
    found[each] = sorted(open("{STATE}/" + each).read().split())
print(json.dumps(found))
"""


def with_stand_ins(script: str) -> str:
    """A script whose PATH has the imitations first, then this machine's programs."""
    return script.replace(f"\n{SYSTEM_PATH} ", "\nPATH=$PATH ")


def missing() -> str | None:
    """Reason why there can be no such machine here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    lacking = [each for each in NEEDED if not shutil.which(each)]
    return f"needs {', '.join(lacking)}" if lacking else None


class Machine:
    """A machine that disappears when it is closed or this process ends."""

    def __init__(self, folder: Path) -> None:
        stand_ins = folder / "stand-ins"
        if not stand_ins.exists():
            stand_ins.mkdir(parents=True)
            for name, text in STAND_INS.items():
                (stand_ins / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
        self.process = subprocess.Popen(
            [
                *("unshare", "--mount", "--uts", "--ipc", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-c", _BOOT, "sh", str(ROOT), str(stand_ins)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert self.process.stderr
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError(self.process.stderr.read())
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        self.pid = children.split()[0]

    def close(self) -> None:
        """End it with everything that runs in it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def argv(self, argv: Sequence[str], user: str = "root") -> list[str]:
        """The command that runs ``argv`` there."""
        path = f"{STATE}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        home = "/root" if user == "root" else f"/home/{user}"
        become = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        enter = ["nsenter", "-t", self.pid, "-m", "-u", "-i", "-p", "-n"]
        return [*enter, "env", "-i", f"PATH={path}", f"HOME={home}", *become, *argv]

    def run(
        self,
        script: str,
        *,
        user: str = "root",
        kill: Mapping[str, int] | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script as ``setup`` does: by standard input.

        Args:
            kill: ``before`` or ``after``, and the index of the call of a changing program.
        """
        argv = self.argv(["sh", "-s"], user)
        if kill is not None:
            links = " ".join(f"ln -s killer {each};" for each in CHANGING)
            make = f"[ -e killer ] || {{ cat >killer; chmod 755 killer; {links} }}"
            self.shell(f": >{STATE}/calls; mkdir -p {STATE}/kill; cd {STATE}/kill; {make}", f"#!/bin/sh\n{_KILLER}")
            at = argv.index("env") + 2
            argv[at] = argv[at].replace("PATH=", f"PATH={STATE}/kill:")
            argv[at:at] = [f"KILL_{key.upper()}={kill.get(key, '')}" for key in ("before", "after")]
        done = subprocess.run(
            argv,
            input=with_stand_ins(script),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            start_new_session=True,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def shell(self, command: str, stdin: str = "", user: str = "root") -> str:
        """Output of a command there."""
        done = subprocess.run(
            self.argv(["sh", "-c", command], user), input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def snapshot(self) -> dict[str, Any]:
        """Every file below /etc, /home, /var/lib and /run with its mode and owner, addresses, and the imitations' states."""
        done = subprocess.run(
            self.argv(["/usr/bin/env", "python3", "-c", _SNAPSHOT]), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def survey(self, user: str = USER) -> Survey:
        """The survey by the node program."""
        program = (
            "import json, sys; from sparkcluster.node import survey; "
            "print(json.dumps(survey.main(json.load(sys.stdin))))"
        )
        done = subprocess.run(
            self.argv(["env", "PYTHONPATH=/run/src", "PYTHONDONTWRITEBYTECODE=1", "python3", "-c", program], user),
            input=json.dumps({"hf_home": "~/.cache/huggingface", **REQUESTS}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Survey.model_validate_json(done.stdout)


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine for one test."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    made = Machine(folder)
    try:
        yield made
    finally:
        made.close()


def until(condition: Any, limit_s: float = 60) -> None:
    """Wait for an action of another process."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)
