"""A virtual Spark in factory state: the files in which it differs from a Spark of a ready lab."""

from __future__ import annotations

import ctypes

from sparkcluster.errors import LabError
from sparkcluster.lab.shims import packages, services
from sparkcluster.lab.state import Node

CACHE = "/home/spark/.cache/huggingface"
"""Hugging Face cache of the user; owned by root, as after a container that ran as root and mounted it."""

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
    """Mode and text of files by path, in addition to the files that every Spark has."""
    found = {
        # As on DGX OS: NetworkManager manages interfaces that no other file configures.
        RENDERER: (0o600, "network:\n  version: 2\n  renderer: NetworkManager\n"),
        AVAHI_CONFIGURATION: (0o644, AVAHI),
        "/etc/avahi/services/ssh.service": (0o644, SSH_SERVICE),
        **{f"{CACHE}/{name}": (0o644, text) for name, text in CACHE_FILES.items()},
    }
    if node.spec.sudo == "free":
        found[SUDOERS] = (0o440, "spark ALL=(ALL) NOPASSWD: ALL\n")
    return found


def members(group: str, sudo: str) -> str:
    """Members of a group; the only plain user is ``spark``, the first user of DGX OS, who is not in group docker."""
    return "spark" if group == "adm" or (group == "sudo" and sudo != "refused") else ""


def password_hash(password: str) -> str:
    """Hash of the password for /etc/shadow.

    Raises:
        LabError: the C library has no SHA-512 crypt(3).
    """
    # crypt(3) has a single result buffer, and Sparks are prepared in threads: PyDLL holds the interpreter's lock.
    library = ctypes.PyDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    found: bytes | None = library.crypt(password.encode(), HASH_SALT.encode())
    if not found or not found.startswith(b"$6$"):
        raise LabError("crypt(3) on this machine does not support SHA-512", step="lab up")
    return found.decode()


def sshd_config(login: str) -> str:
    """The part of sshd's configuration for addresses and logins; root cannot log in."""
    return (
        f"Port 22\nPermitRootLogin prohibit-password\nPasswordAuthentication {'yes' if login == 'password' else 'no'}\n"
    )
