"""The connection through ssh_config's ProxyCommand."""

from __future__ import annotations

import os

from sparkcluster.hosts.paramiko_transport import Proxy


def test_ctrl_c_in_the_terminal_does_not_reach_the_proxy_command():
    proxy = Proxy("cat 'a file' -")
    try:
        assert os.getsid(proxy.process.pid) == proxy.process.pid != os.getsid(0)
        proxy.send(b"hello")
        assert proxy.recv(5) == b"hello"
        assert proxy.cmd == ["cat", "a file", "-"]
    finally:
        proxy.close()
        proxy.process.communicate()
