"""A machine behind a jump host, over the connection to that host."""

from __future__ import annotations

from sparkcluster.hosts.connect import Address, behind
from sparkcluster.hosts.resolve import SshSettings


def address(sshd, host: str = "127.0.0.1") -> Address:
    known_hosts = str(sshd.known_hosts)
    return Address(host, "ssh", SshSettings(port=sshd.port, identity=str(sshd.identity), known_hosts=known_hosts))


def test_the_connection_of_the_jump_host_is_shared(start_sshd):
    jump, node = start_sshd("jump"), start_sshd("node")
    for sshd in (jump, node):
        sshd.trust()
    with jump.host() as between, behind(between, "beyond", address(node)) as beyond:
        assert between.run(["true"]).ok
        assert beyond.run(["echo", "x"]).stdout == b"x\n"
        assert jump.log.read_text().count("Accepted publickey") == 1
        assert node.log.read_text().count("Accepted publickey") == 1
