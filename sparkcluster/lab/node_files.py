"""Files of a virtual Spark: names, users, SSH, and the files that identify DGX OS."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from sparkcluster.errors import LabError
from sparkcluster.lab import bare, network, system
from sparkcluster.lab.machine import SPARK_PATH, SPARK_USER, SYSTEM_DIRECTORIES, TOOLS
from sparkcluster.lab.shims import main, netplan, packages, services, settings
from sparkcluster.lab.spec import FUNCTIONS, GID_LAYOUTS, SparkSpec
from sparkcluster.lab.state import REGISTRY_PORT, Node, write_atomically

PACKAGE = "sparkcluster/lab/shims"

ENTRY = f"""#!/usr/bin/python3 -S
import sys
sys.path.insert(0, "{TOOLS}")
from sparkcluster.lab.shims.main import main
sys.exit(main())
"""

RUNTIME = """#!/bin/sh
exec runc "$@"
"""

RUNC = f"""#!/bin/sh
# Adapts what Docker asks for to this machine, then becomes the real runc.
previous=
for word in "$@"; do
  case $previous in --bundle|--process) {TOOLS}/bin/fit_container "$previous" "$word" || exit 1 ;; esac
  previous=$word
done
exec /usr/sbin/runc "$@"
"""

KERNEL_LOG = (
    "[    4.101122] mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).",
    "[    7.530514] NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64",
    "[   12.004417] mlx5_core 0000:01:00.1 enp1s0f1np1: Link up",
)
"""Kernel log of a healthy Spark; the first line is harmless and appears on every Spark."""
BOOT_BEFORE = (*KERNEL_LOG, "[ 9000.000000] systemd-shutdown[1]: Sending SIGTERM to remaining processes...")
"""Kernel log of the previous boot, which was shut down cleanly."""

READY_LOGIN = """Port 22
ListenAddress 0.0.0.0
PermitRootLogin prohibit-password
PasswordAuthentication no
"""
SSHD = f"""HostKey /etc/ssh/ssh_host_ed25519_key
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
Subsystem sftp internal-sftp
SetEnv PATH={SPARK_PATH}
"""
"""sshd's configuration, after the part for addresses and logins."""

Files = dict[str, tuple[int, str]]
"""Mode and text by path."""


def hardware(node: Node) -> dict[str, Any]:
    """The simulated hardware of a Spark, in the format that its tools read."""
    spark, place = node.spec, (node.state.index, node.index)
    functions = [
        {
            **dataclasses.asdict(function),
            "netdev": spark.netdev(function),
            "mac": network.mac(*place, function.mac_tail),
            "gids": spark.gids.get(function.hca, GID_LAYOUTS["standard"]),
            "speed_mbps": 200_000,
        }
        for function in spark.functions
    ]
    return {
        "hostname": spark.name,
        "bare": node.state.spec.bare,
        "address": f"{node.host}/24",
        "gateway": node.state.gateway,
        **spark.model_dump(include={"driver", "kernel", "firmware", "gpu", "nvidia_runtime"}),
        "gpu_state": "idle",
        "module": True,
        "management": spark.management,
        "registry": f"{node.state.registry}:{REGISTRY_PORT}",
        "kernel_log": list(KERNEL_LOG),
        "boot_before": list(BOOT_BEFORE),
        "memory": {
            "total_kb": spark.memory_total_kb,
            "free_kb": spark.memory_free_kb,
            "available_kb": spark.memory_available_kb,
            "swap_free_kb": 16_777_212,
            "scale": spark.memory_scale,
        },
        "functions": functions,
    }


def files(node: Node, host_key: str, client_key: str) -> Files:
    """All files of a Spark that differ from the machine's."""
    spark, is_bare = node.spec, node.state.spec.bare
    root = system.root(spark.system, bare=is_bare)
    found: Files = {
        "/etc/hostname": (0o644, spark.name + "\n"),
        "/etc/hosts": (0o644, _hosts(node)),
        # Empty on purpose: otherwise lookups would wait for a resolver that does not answer.
        "/etc/resolv.conf": (0o644, ""),
        "/etc/machine-id": (0o444, f"{int(node.state.id, 16) ^ node.index:032x}\n"),
        "/etc/dgx-release": (0o644, _dgx_release(node)),
        "/etc/ssh/sshd_config": (0o644, (bare.sshd_config(spark.login) if is_bare else READY_LOGIN) + SSHD),
        "/etc/ssh/ssh_host_ed25519_key": (0o600, host_key),
        # The machine's settings do not apply to the Spark.
        "/etc/sysctl.conf": (0o644, "# no settings\n"),
        settings.NTP: (0o644, "yes\n"),
        # logind's default is yes.
        "/etc/systemd/logind.conf": (0o644, "[Login]\nRemoveIPC=no\n"),
        services.UFW_CONF: (0o644, "ENABLED=no\nLOGLEVEL=low\n"),
        f"{TOOLS}/toolkit/nvidia-container-runtime": (0o755, RUNTIME),
        f"{TOOLS}/bin/runc": (0o755, RUNC.replace("/usr/sbin/runc", _runc(root))),
    }
    if is_bare:
        found.update(bare.files(node))
    if not is_bare or spark.login == "key":
        found["/home/spark/.ssh/authorized_keys"] = (0o600, client_key)
    if not is_bare:
        found["/root/.ssh/authorized_keys"] = (0o600, client_key)
        found[bare.SUDOERS] = (0o440, "spark ALL=(ALL) NOPASSWD: ALL\n")
    if text := _netplan(node):
        found[netplan.FILE] = (0o600, text)
    if docker := docker_settings(spark):
        found[services.DAEMON_JSON] = (0o644, json.dumps(docker, indent=4) + "\n")
    if spark.system == "machine":
        found["/etc/os-release"] = (0o644, _os_release())
    found.update(_accounts(root, node))
    for name in ("init", "sync", "gb10"):
        found[f"{TOOLS}/{name}"] = (0o755, ENTRY)
    for source in sorted(Path(__file__).with_name("shims").glob("*.py")):
        if source.name != "__init__.py":
            found[f"{TOOLS}/{PACKAGE}/{source.name}"] = (0o644, source.read_text())
    return found


def docker_settings(spark: SparkSpec) -> dict[str, Any]:
    """Docker's daemon.json; empty for no file."""
    settings: dict[str, Any] = {}
    if spark.nvidia_runtime:
        settings["runtimes"] = {"nvidia": services.NVIDIA_RUNTIME}
    if spark.containerd:
        settings["features"] = {services.CONTAINERD_STORE: True}
    return settings


def _runc(root: Path) -> str:
    for directory in SYSTEM_DIRECTORIES:
        if (root / directory.lstrip("/") / "runc").exists():
            return f"{directory}/runc"
    raise LabError("Docker is installed without runc", hint="sudo apt-get install -y runc")


def links(*, perftest: bool) -> dict[str, str]:
    """The shims, all links to one program; ``perftest``: whether that package is installed."""
    found = {
        f"/usr/local/bin/{name}": f"{TOOLS}/gb10" for name in main.TOOLS if name not in (*main.INTERNAL, *main.PACKAGED)
    }
    found[f"{TOOLS}/toolkit/nvidia-container-runtime-hook"] = f"{TOOLS}/gb10"
    found[f"{TOOLS}/bin/fit_container"] = f"{TOOLS}/gb10"
    if perftest:
        found[packages.PERFTEST] = f"{TOOLS}/gb10"
    found["/var/run"] = "/run"
    return found


def _accounts(root: Path, node: Node) -> Files:
    """The distribution's accounts, and a plain user ``spark``, who may use Docker unless the Spark is bare."""

    def lines(name: str, *replaced: str) -> list[str]:
        rows = (root / "etc" / name).read_text().splitlines()
        return [row for row in rows if not row.startswith(("spark:", *replaced)) and f":{SPARK_USER}:" not in row]

    group, shadow, passwd = lines("group", "docker:"), lines("shadow", "root:"), lines("passwd", "root:")
    taken = {row.split(":")[2] for row in group}
    docker_id = next(number for number in range(988, 100, -1) if str(number) not in taken)
    group += [f"spark:x:{SPARK_USER}:", f"docker:x:{docker_id}:spark"]
    password = "*"
    if node.state.password is not None:
        password = bare.password_hash(node.state.password)
        group = [":".join([*row.split(":")[:3], bare.members(row.split(":")[0], node.spec.sudo)]) for row in group]
    found = {
        "/etc/passwd": (
            0o644,
            ["root:x:0:0:root:/root:/bin/bash", *passwd, f"spark:x:{SPARK_USER}:{SPARK_USER}::/home/spark:/bin/bash"],
        ),
        "/etc/group": (0o644, group),
        "/etc/gshadow": (0o600, [f"{name}:!::{users}" for name, _, _, users in (row.split(":") for row in group)]),
        # Not an exclamation mark, which sshd takes for a locked account.
        "/etc/shadow": (0o600, ["root:*:19000:0:99999:7:::", *shadow, f"spark:{password}:19000:0:99999:7:::"]),
    }
    return {name: (mode, "\n".join(rows) + "\n") for name, (mode, rows) in found.items()}


def _hosts(node: Node) -> str:
    rows = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"127.0.1.1 {node.name}"]
    if not node.state.spec.bare:
        rows += [f"{other.host} {other.name}" for other in node.state.nodes if other.index != node.index]
    return "\n".join(rows) + "\n"


def _os_release() -> str:
    return (
        'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\n'
        'VERSION="24.04.3 LTS (Noble Numbat)"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n'
    )


def _dgx_release(node: Node) -> str:
    serial = f"LAB{node.state.index:03d}{node.index:06d}"
    return (
        'DGX_NAME="DGX Spark"\nDGX_PRETTY_NAME="NVIDIA DGX Spark"\n'
        'DGX_SWBUILD_DATE="2025-09-10-13-50-03"\nDGX_SWBUILD_VERSION="7.2.3"\nDGX_COMMIT_ID="833b4a7"\n'
        f'DGX_PLATFORM="DGX Server for KVM"\nDGX_SERIAL_NUMBER="{serial}"\n\n'
        f'DGX_OTA_VERSION="{node.spec.ota}"\nDGX_OTA_DATE="Wed Nov 19 05:05:30 PM CET 2025"\n'
    )


def _netplan(node: Node) -> str:
    """A netplan file as written by a Spark's owner; empty if no interface has an address.

    In a ready lab, the lab configures the addresses itself.
    """
    import yaml

    ethernets = {
        node.spec.netdev(function): {
            "dhcp4": False,
            "dhcp6": False,
            "link-local": [],
            "mtu": node.spec.mtu,
            "addresses": [address],
        }
        for function in FUNCTIONS
        if (address := node.address(function)) is not None
    }
    if not ethernets and node.state.spec.bare:
        return ""
    return str(yaml.safe_dump({"network": {"version": 2, "ethernets": ethernets}}, sort_keys=False))


def hardware_file(node: Node) -> Path:
    """The file with the simulated hardware, including its faults, as the Spark reads it."""
    return node.directory / "hardware" / "hardware.json"


def write_hardware(node: Node, values: dict[str, Any]) -> None:
    """Write the simulated hardware."""
    file = hardware_file(node)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(values, indent=1))
