"""The measurements of scripts/bench-preflight, which runs this."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from bench import ENVIRONMENT, PROGRAM, PYTHON, Turns, lab, show, ssh, timed

# The probe's readings of a node as commands: the same tools and files. The other tools do not test that the nodes
# reach each other, which preflight does.
COMMANDS = {
    "gpu": "nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,power.draw,clocks.sm,"
    "utilization.gpu --format=csv,noheader,nounits",
    "cuda": "nvidia-smi",
    "addresses": "ip -j addr",
    "listeners": "ss -ltnp",
    "docker": "docker info",
    "containers": "docker ps -a --no-trunc --filter label=io.sparkcluster.cluster",
    "image": "docker image inspect IMAGE",
    "disks": "df -P -B1 / /root",
    "infiniband": "find /sys/class/infiniband/ -follow -maxdepth 6 -type f "
    "( -path '*/ports/1/*' -o -name fw_ver ) -readable -exec grep -sH . {} +",
    "links": "find -L /sys/class/net -maxdepth 2 "
    "( -name mtu -o -name speed -o -name carrier -o -name operstate ) -exec grep -sH . {} +",
    "weights": "find MODEL -maxdepth 1 -type f -printf '%f %s\\n'",
    "records": "find /root/.local -maxdepth 5",
}
FILES = (
    "/etc/os-release",
    "/etc/dgx-release",
    "/proc/meminfo",
    "/proc/driver/nvidia/version",
    "/etc/systemd/logind.conf",
)

ANSIBLE, PYINFRA = "ansible-core==2.19.*", "pyinfra==3.*"


def installed(requirement: str, name: str) -> Path:
    """The ``bin`` directory of a virtual environment with ``requirement``; creates it if missing."""
    cache = Path(os.environ.get("SPARKCLUSTER_CACHE") or "~/.cache/sparkcluster").expanduser() / "bench"
    place = cache / name
    stamp = place / "requirement"
    if not stamp.exists() or stamp.read_text() != requirement:
        print(f"installing {requirement} into {place}", file=sys.stderr)
        uv = str(Path(PYTHON).with_name("uv"))
        timed([uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(place)])
        timed([uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), requirement])
        stamp.write_text(requirement)
    return place / "bin"


def readings(inventory: Path) -> dict[str, str]:
    """The commands for this lab's image and model."""
    playbook = yaml.safe_load(inventory.with_name("playbook.yaml").read_text())
    model = playbook["model"].get("path") or "/root/.cache/huggingface"
    return {
        name: command.replace("IMAGE", playbook["image"]).replace("MODEL", model) for name, command in COMMANDS.items()
    }


def ansible(inventory: Path, directory: Path) -> Callable[[], float]:
    """The readings as a playbook: facts, then one task per reading; pipelining, a fork per node, ControlPersist."""
    document = yaml.safe_load(inventory.read_text())
    options = document["ssh"]
    hosts = directory / "hosts.yaml"
    variables = {
        "ansible_user": options["user"],
        "ansible_ssh_private_key_file": options["identity"],
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={options['known_hosts']}",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    named = {node["name"]: {"ansible_host": node["host"]} for node in document["nodes"]}
    hosts.write_text(yaml.safe_dump({"all": {"hosts": named, "vars": variables}}))
    tasks: list[dict[str, object]] = [
        {"name": name, "ansible.builtin.command": command, "changed_when": False, "failed_when": False}
        for name, command in readings(inventory).items()
    ]
    tasks += [{"name": path, "ansible.builtin.slurp": {"src": path}, "failed_when": False} for path in FILES]
    play = directory / "readings.yaml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "strategy": "free", "gather_facts": True, "tasks": tasks}]))
    (directory / "ansible.cfg").write_text(
        f"[defaults]\nforks = {len(named)}\nretry_files_enabled = False\n"
        "[ssh_connection]\npipelining = True\nssh_args = -o ControlMaster=auto -o ControlPersist=60s\n"
    )
    program = installed(ANSIBLE, "ansible-core") / "ansible-playbook"
    environment = {**ENVIRONMENT, "ANSIBLE_CONFIG": str(directory / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
    return lambda: timed([str(program), "-i", str(hosts), str(play)], env=environment, cwd=directory)


def pyinfra(inventory: Path, directory: Path) -> Callable[[], float]:
    """The readings as facts, on all nodes in parallel."""
    document = yaml.safe_load(inventory.read_text())
    options = document["ssh"]
    data = {
        "ssh_user": options["user"],
        "ssh_key": options["identity"],
        "ssh_known_hosts_file": options["known_hosts"],
        "ssh_strict_host_key_checking": "yes",
    }
    hosts = [(node["host"], data) for node in document["nodes"]]
    (directory / "hosts.py").write_text(f"nodes = {hosts!r}\n")
    commands = [*readings(inventory).values(), *(f"cat {path}" for path in FILES)]
    quoted = [command.replace("( ", "\\( ").replace(" )", " \\)") + " || true" for command in commands]
    (directory / "readings.py").write_text(
        "from pyinfra import host\n"
        "from pyinfra.facts.server import Command, Hostname, Kernel, KernelVersion, LinuxDistribution, Users\n"
        "for fact in (Hostname, Kernel, KernelVersion, LinuxDistribution, Users):\n"
        "    host.get_fact(fact)\n"
        f"for command in {quoted!r}:\n"
        "    host.get_fact(Command, command=command)\n"
    )
    program = installed(PYINFRA, "pyinfra") / "pyinfra"
    return lambda: timed([str(program), "-y", "hosts.py", "readings.py"], cwd=directory)


def preflight(inventory: Path) -> Callable[[], float]:
    """One preflight, as a user runs it."""
    return lambda: timed([PROGRAM, "preflight", str(inventory), "--json"])


def whole(inventory: Path) -> None:
    """Exit if the lab has errors: a preflight that fails early would seem fast."""
    done = subprocess.run(
        [PROGRAM, "preflight", str(inventory), "--json"], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    document = json.loads(done.stdout)
    if not document.get("ok") or any("unread" in node for node in document["nodes"].values()):
        sys.exit(f"the lab has errors: {document.get('findings') or document}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-preflight", description="preflight against other tools, as ratios")
    parser.add_argument("--quick", action="store_true", help="fewer runs, without ansible-core and pyinfra")
    quick = parser.parse_args().quick
    results = []
    with lab(2, "stub") as made, tempfile.TemporaryDirectory() as directory:
        inventory, place = made.inventory, Path(directory)
        ours = preflight(inventory)
        bare = [*ssh(inventory)[0], "python3", "-c", "pass"]
        whole(inventory)
        turns = Turns(5 if quick else 11, ours, lambda: timed(bare))
        what = "preflight of 2 nodes / one ssh node python3 -c pass"
        results.append(show(what, turns.ratio(0, 1), turns.detail(0, 1), at_most=3))
        if not quick:
            theirs = [ansible(inventory, place), pyinfra(inventory, place)]
            for warm in theirs:
                warm()
            turns = Turns(3, ours, *theirs)
            for at, name, bound in ((1, "ansible-core", 5), (2, "pyinfra", 2.5)):
                what = f"{name}, the same readings / preflight"
                results.append(show(what, turns.ratio(at, 0), turns.detail(at, 0), at_least=bound))
        two = Turns(5, ours).median(0)
    with lab(8, "stub") as made:
        whole(made.inventory)
        eight = Turns(5, preflight(made.inventory)).median(0)
        results.append(show("preflight of 8 nodes / of 2", eight / two, f"{eight:.2f} s / {two:.2f} s", at_most=3.5))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
