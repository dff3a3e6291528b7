"""A virtual Spark as it comes out of the box: the files in which it differs from one of a ready lab."""

from __future__ import annotations

import ctypes

from sparkcluster.errors import LabError
from sparkcluster.lab.shims import packages, services
from sparkcluster.lab.state import Node

CACHE = "/home/spark/.cache/huggingface"
"""Hugging Face cache of the user, which belongs to root as after a container that ran as root and mounted it."""

CACHE_FILES = {
    "hub/version.txt": "1",
    "hub/models--example--tiny/refs/main": "0" * 40,
    f"hub/models--example--tiny/snapshots/{'0' * 40}/config.json": "{}\n",
}

RENDERER = "/etc/netplan/01-network-manager-all.yaml"
AVAHI_CONFIGURATION = "/etc/avahi/avahi-daemon.conf"
SUDOERS = "/etc/sudoers.d/spark"
HASH_SALT = "$6$sparkclusterlab$"

ABSENT = (packages.PERFTEST, services.DEFAULT_TARGET)
"""Files of the machine that a Spark does not have."""

# No D-Bus runs on a virtual Spark. NVIDIA's script discover-sparks (dgx-spark-playbooks) browses _ssh._tcp.
AVAHI = """[server]
use-ipv4=yes
use-ipv6=yes
enable-dbus=no

[wide-area]
enable-wide-area=no

[publish]
publish-hinfo=no
publish-workstation=no
"""
SSH_SERVICE = """<?xml version="1.0" standalone='no'?>
<!DOCTYPE service-group SYSTEM "avahi-service.dtd">
<service-group>
  <name replace-wildcards="yes">%h</name>
  <service>
    <type>_ssh._tcp</type>
    <port>22</port>
  </service>
</service-group>
"""


def files(node: Node) -> dict[str, tuple[int, str]]:
    """Mode and text of files by path, beside those that every Spark has."""
    found = {
        # As DGX OS has it: NetworkManager cares for what no other file names.
        RENDERER: (0o600, "network:\n  version: 2\n  renderer: NetworkManager\n"),
        AVAHI_CONFIGURATION: (0o644, AVAHI),
        "/etc/avahi/services/ssh.service": (0o644, SSH_SERVICE),
        **{f"{CACHE}/{name}": (0o644, text) for name, text in CACHE_FILES.items()},
    }
    if node.spec.sudo == "free":
        found[SUDOERS] = (0o440, "spark ALL=(ALL) NOPASSWD: ALL\n")
    return found


def members(group: str, sudo: str) -> str:
    """Members of a group where the only plain user is ``spark``, as the first user of DGX OS: not in group docker."""
    return "spark" if group == "adm" or (group == "sudo" and sudo != "refused") else ""


def password_hash(password: str) -> str:
    """The password as /etc/shadow keeps it.

    Raises:
        LabError: the C library has no SHA-512 crypt(3).
    """
    # crypt(3) has one buffer for its result, and Sparks are prepared in threads: PyDLL keeps the interpreter's lock.
    library = ctypes.PyDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    found: bytes | None = library.crypt(password.encode(), HASH_SALT.encode())
    if not found or not found.startswith(b"$6$"):
        raise LabError("crypt(3) of this machine cannot make a SHA-512 hash", step="lab up")
    return found.decode()


def sshd_config(login: str) -> str:
    """The part of sshd's configuration that is about addresses and logins; root has no way in."""
    return (
        f"Port 22\nPermitRootLogin prohibit-password\nPasswordAuthentication {'yes' if login == 'password' else 'no'}\n"
    )
