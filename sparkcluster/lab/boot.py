"""First half of a virtual Spark's boot: disk, root directory, devices.

Runs as the first process of new mount, PID, hostname and IPC namespaces, inside the Spark's network namespace, while
the machine's files are still visible. At its end it executes the Spark's first process,
:mod:`sparkcluster.lab.shims.init`, with the Spark's python3.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

from sparkcluster.lab import cgroups
from sparkcluster.lab.machine import (
    CLONE_NEWCGROUP,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    SPARK_PATH,
    SPARK_USER,
    TOOLS,
    mount,
    run,
    unshare,
)
from sparkcluster.lab.shims.settings import VIRTUAL_MEMORY

SHARED = ("bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr", "var")
"""Directories of the distribution, which a Spark shares with the machine."""

PRIVATE = ("dev", "home", "mnt", "proc", "root", "run", "srv", "sys", "tmp")
"""Directories that start empty on a Spark."""

HIDDEN = (
    "opt",
    "usr/local",
    "usr/lib/modules",
    "usr/src",
    "var/cache",
    "var/log",
    "var/tmp",
    "var/lib/docker",
    "var/lib/containerd",
    "var/lib/sparkcluster-lab",
    "etc/ssh",
    "etc/cdi",
    "etc/docker",
    "etc/ufw",
    "etc/netplan",
    "etc/avahi",
    "etc/sysctl.d",
)
"""Directories of the distribution that start empty on a Spark."""

ABSENT = ("etc/systemd/logind.conf.d", "usr/lib/systemd/logind.conf.d")
"""Directories of the distribution that would override the Spark's settings."""

# No kmsg: it is the machine's kernel log, for reading and for writing.
DEVICES = {
    "null": (1, 3, 0o666),
    "zero": (1, 5, 0o666),
    "full": (1, 7, 0o666),
    "random": (1, 8, 0o666),
    "urandom": (1, 9, 0o666),
    "tty": (5, 0, 0o666),
    "fuse": (10, 229, 0o666),
}

# Numbers as in the drivers. No driver is behind these nodes; they are passed to containers.
GPU_DEVICES = {
    "nvidia0": (195, 0, 0o666),
    "nvidiactl": (195, 255, 0o666),
    "nvidia-modeset": (195, 254, 0o666),
    "nvidia-uvm": (511, 0, 0o666),
    "nvidia-uvm-tools": (511, 1, 0o666),
}


def main(config_file: str) -> None:
    """Boot the Spark that ``config_file`` describes; does not return."""
    config: dict[str, Any] = json.loads(Path(config_file).read_text())
    directory = Path(config["directory"])
    # Before the new /proc is mounted, the process ID on the machine is visible.
    (directory / "pid").write_text(str(Path("/proc/self").readlink()))
    cgroups.join(config["cgroup"])
    unshare(CLONE_NEWCGROUP)
    socket.sethostname(config["hostname"])
    mount("none", "/", flags=MS_REC | MS_PRIVATE)

    disk, root = directory / "disk", directory / "root"
    first_boot = mount_disk(directory / "disk.ext4", disk)
    if first_boot:
        populate(disk / "upper", config)
    layers = f"lowerdir={config['system']},upperdir={disk}/upper,workdir={disk}/work"
    mount("overlay", root, "overlay", data=layers)
    (root / "var/lib/docker").mkdir(parents=True, exist_ok=True)
    mount(str(disk / "docker"), root / "var/lib/docker", flags=MS_BIND)

    kernel_file_systems(root, directory, config)
    devices(root / "dev", config)
    preload(root, config, first_boot=first_boot)
    pivot(root)
    environment = {"PATH": SPARK_PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "linux"}
    os.execve("/usr/bin/python3", ["init", "-S", f"{TOOLS}/init"], environment)


def mount_disk(image: Path, disk: Path) -> bool:
    """Mount the Spark's disk; return whether this is its first boot."""
    disk.mkdir(exist_ok=True)
    disk.with_name("root").mkdir(exist_ok=True)
    # mount(8) finds a free loop device, and makes the kernel free it after the last unmount.
    run(["mount", "-n", "-t", "ext4", "-o", "loop,noatime,discard,noinit_itable", str(image), str(disk)])
    if (disk / "booted").exists():
        return False
    for name in ("upper", "work", "docker"):
        (disk / name).mkdir(exist_ok=True)
    return True


def populate(upper: Path, config: dict[str, Any]) -> None:
    """Write the Spark's files into the upper layer of its root."""
    system = Path(config["system"])
    foreign = [entry.name for entry in sorted(system.iterdir()) if not entry.is_symlink()]
    hidden = [name for name in foreign if name not in (*SHARED, *PRIVATE)]
    absent = [*ABSENT, *(path.lstrip("/") for path in config["absent"])]
    for name in hidden + [name for name in absent if os.path.lexists(system / name)]:
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        # A character device 0:0 in an upper layer hides the entry below it.
        os.mknod(upper / name, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    for name in ("etc", "var", *PRIVATE, *HIDDEN):
        (upper / name).mkdir(parents=True, exist_ok=True)
    for name in (*PRIVATE, *HIDDEN):
        # Hides the directory of that name in the lower layer.
        os.setxattr(upper / name, "trusted.overlay.opaque", b"y")
    for name, mode in {"root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777}.items():
        (upper / name).chmod(mode)
    for name, (mode, text) in config["files"].items():
        file = upper / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
    for name, target in config["links"].items():
        link = upper / name.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    home = upper / "home/spark"
    root_owned = upper / config["root_owned"].lstrip("/")
    for path in (home, *home.rglob("*")):
        if path != root_owned and root_owned not in path.parents:
            os.chown(path, SPARK_USER, SPARK_USER)


def kernel_file_systems(root: Path, directory: Path, config: dict[str, Any]) -> None:
    """Mount /proc, /sys and /run with their simulated parts."""
    mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    simulated = root / "run/gb10"
    for part in ("", "infiniband", "class/infiniband", "net"):
        (simulated / part).mkdir(parents=True, exist_ok=True)
    (root / "run/sshd").mkdir(mode=0o755)
    (simulated / "machine").mkdir()
    mount(str(directory / "hardware"), simulated / "machine", flags=MS_BIND)
    (simulated / "hardware.json").symlink_to("machine/hardware.json")

    mount("proc", root / "proc", "proc")
    for name, target in {"meminfo": "meminfo", "osrelease": "sys/kernel/osrelease"}.items():
        (simulated / name).write_text("")
        mount(str(simulated / name), root / "proc" / target, flags=MS_BIND)
    (simulated / "vm").mkdir()
    for name, value in VIRTUAL_MEMORY.items():
        (simulated / "vm" / name).write_text(f"{value}\n")
        mount(str(simulated / "vm" / name), root / "proc/sys/vm" / name, flags=MS_BIND)
    if (root / "proc/driver").is_dir():
        mount("tmpfs", root / "proc/driver", "tmpfs", data="mode=755")
        (root / "proc/driver/nvidia").mkdir()

    mount("sysfs", root / "sys", "sysfs")
    # Overlays over sysfs add what the kernel lacks; everything else stays live.
    mount("overlay", root / "sys/class", "overlay", data=f"lowerdir={simulated}/class:{root}/sys/class")
    mount(str(simulated / "infiniband"), root / "sys/class/infiniband", flags=MS_BIND)
    for function in config["hardware"]["functions"]:
        name = function["netdev"]
        files = {
            f"device/net/{name}/": "",
            f"device/infiniband/{function['hca']}/": "",
            "device/vendor": "0x15b3\n",
            "device/device": "0x1021\n",
            "device/uevent": f"DRIVER=mlx5_core\nPCI_SLOT_NAME={function['pci']}\n",
            "phys_port_name": function["port"] + "\n",
            # A link, so that the speed can follow the carrier: the layers of an overlay must not change.
            "speed": f"/run/gb10/net/{name}/speed",
        }
        overlay_interface(root, simulated, name, files)
    cgroups.mount_hierarchies(root / "sys/fs/cgroup")


def overlay_interface(root: Path, simulated: Path, name: str, files: dict[str, str]) -> None:
    """Add sysfs entries to an interface: a directory if the path ends with ``/``, a link if the text is a path."""
    layer = simulated / "layers" / name
    for path, text in files.items():
        (layer / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (layer / path).mkdir()
        elif text.startswith("/"):
            (layer / path).symlink_to(text)
        else:
            (layer / path).write_text(text)
    real = root / "sys/devices/virtual/net" / name
    mount("overlay", real, "overlay", data=f"lowerdir={layer}:{real}")


def devices(dev: Path, config: dict[str, Any]) -> None:
    """Make /dev with the nodes of the GPU and the HCAs."""
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755")
    nodes = dict(DEVICES)
    if config["hardware"]["gpu"] == "present":
        nodes.update(GPU_DEVICES)
    if config["hardware"]["functions"]:
        (dev / "infiniband").mkdir()
        nodes["infiniband/rdma_cm"] = (10, 58, 0o666)
        for number in range(len(config["hardware"]["functions"])):
            nodes[f"infiniband/uverbs{number}"] = (231, 192 + number, 0o666)
            nodes[f"infiniband/umad{number}"] = (231, number, 0o600)
    for name, (major, minor, mode) in nodes.items():
        os.mknod(dev / name, stat.S_IFCHR | mode, os.makedev(major, minor))
        (dev / name).chmod(mode)
    for name in ("pts", "shm", "mqueue"):
        (dev / name).mkdir()
    mount("devpts", dev / "pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620,gid=5")
    # Separate shared memory: vLLM uses it to detect whether two ranks are on the same host.
    mount("tmpfs", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    mount("mqueue", dev / "mqueue", "mqueue")
    for name, target in {
        "ptmx": "pts/ptmx",
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
    }.items():
        (dev / name).symlink_to(target)


def preload(root: Path, config: dict[str, Any], *, first_boot: bool) -> None:
    """Install image and weights as the spec says, then mark the disk as set up."""
    if config["image_engine"]:
        from sparkcluster.lab import images

        # On every boot: mounts in Docker's directory do not survive a reboot.
        images.mount_into(images.prepare(config["image_engine"]), root / "var/lib/docker")
    if first_boot and config["model_path"]:
        from sparkcluster.lab.engine import tiny_llama

        path = root / config["model_path"].lstrip("/")
        tiny_llama.write_tiny_model(path)
        if (root / "home/spark") in path.parents:
            for each in (path.parent, path, *path.rglob("*")):
                os.chown(each, SPARK_USER, SPARK_USER)
    (root.with_name("disk") / "booted").touch()


def pivot(root: Path) -> None:
    """Make ``root`` the root of this namespace, and unmount the machine's root."""
    os.chdir(root)
    run(["pivot_root", ".", "mnt"])
    os.chdir("/")
    run(["umount", "-n", "-l", "/mnt"])


if __name__ == "__main__":
    main(sys.argv[1])
