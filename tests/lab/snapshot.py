"""The configuration of a Spark, to compare it before and after a change."""

from __future__ import annotations

import json
from typing import TypedDict

from sparkcluster.lab import Spark
from sparkcluster.lab.shims.settings import VIRTUAL_MEMORY

ROOTS = ("/etc", "/home", "/root", "/var/lib", "/usr/local", "/usr/bin/ib_write_bw", "/run/netplan")

LEFT_OUT = (
    # Docker's images and containers; databases of packages
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/dpkg",
    "/var/lib/apt",
    # sudo's records of lectures and use; the lab's programs
    "/var/lib/sudo",
    "/home/spark/.sudo_as_admin_successful",
    "/usr/local/lib/gb10",
    # the lock and the backups of usermod and gpasswd (passwd(5))
    "/etc/.pwd.lock",
    "/etc/passwd-",
    "/etc/group-",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/subuid-",
    "/etc/subgid-",
)
"""Files and directories below ROOTS that are not compared."""


class Link(TypedDict):
    """An interface: addresses with prefix, sorted, and MTU in bytes."""

    addresses: list[str]
    mtu: int


class Snapshot(TypedDict):
    """State of a Spark.

    Attributes:
        files: by path: mode, owner and group, then SHA-256 of a file, ``-> TARGET`` of a link, ``/`` of a directory.
        groups: members by name.
        sysctls: the vm.* sysctls, which are separate for each Spark.
        links: every interface.
    """

    files: dict[str, str]
    groups: dict[str, list[str]]
    sysctls: dict[str, str]
    links: dict[str, Link]


PROGRAM = """
import grp, hashlib, json, os, stat, subprocess, sys

roots, left_out, sysctls = json.loads(sys.argv[1])
files = {}

def look(path):
    if path in left_out or not os.path.lexists(path):
        return
    found = os.lstat(path)
    content = "?"
    if stat.S_ISLNK(found.st_mode):
        content = "-> " + os.readlink(path)
    elif stat.S_ISDIR(found.st_mode):
        content = "/"
        for name in os.listdir(path):
            look(os.path.join(path, name))
    elif stat.S_ISREG(found.st_mode):
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
    files[path] = "%o %d:%d %s" % (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, content)

for root in roots:
    look(root)
links = {}
for link in json.loads(subprocess.run(["/usr/sbin/ip", "-j", "addr"], stdout=subprocess.PIPE, check=True).stdout):
    addresses = sorted("%s/%d" % (each["local"], each["prefixlen"]) for each in link["addr_info"])
    links[link["ifname"]] = {"addresses": addresses, "mtu": link["mtu"]}
values = {}
for name in sysctls:
    with open("/proc/sys/vm/" + name) as file:
        values["vm." + name] = file.read().strip()
groups = {group.gr_name: group.gr_mem for group in grp.getgrall()}
print(json.dumps({"files": files, "groups": groups, "sysctls": values, "links": links}))
"""


def snapshot(spark: Spark) -> Snapshot:
    """Files, groups, sysctls and addresses, to compare before and after a change."""
    arguments = json.dumps([ROOTS, LEFT_OUT, list(VIRTUAL_MEMORY)])
    found: Snapshot = json.loads(spark.run(["python3", "-c", PROGRAM, arguments]).stdout)
    return found
