"""Undocumented parts of paramiko that are used: in one module, and present in the installed version."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import paramiko

import sparkcluster

PACKAGE = Path(sparkcluster.__file__).parent


def test_paramiko_still_has_the_undocumented_names_that_are_used():
    handlers = paramiko.Transport._channel_handler_table
    assert handlers[paramiko.common.MSG_CHANNEL_REQUEST] is paramiko.Channel._handle_request
    assert list(inspect.signature(paramiko.Channel._handle_request).parameters) == ["self", "m"]
    assert list(inspect.signature(paramiko.Channel._send).parameters) == ["self", "s", "m"]
    assert list(inspect.signature(paramiko.Channel._send_eof).parameters) == ["self"]
    assert "self._send_message(data)" in inspect.getsource(paramiko.Transport._send_user_message)
    channel = paramiko.Channel(0)
    assert (channel.exit_status, channel.status_event.is_set()) == (-1, False)
    assert channel.remote_chanid == 0
    assert paramiko.Message(b"abc").packet.tell() == 0
    assert list(inspect.signature(paramiko.agent.AgentSSH._connect).parameters) == ["self", "conn"]


def test_paramiko_does_not_need_invoke_until_ssh_config_is_read(tmp_path):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Match exec true\n  Port 2022\n")
    code = (
        "import sys; from sparkcluster.hosts import paramiko_transport\n"
        "assert not {'invoke', 'fabric'} & set(sys.modules)\n"
        "assert paramiko_transport.paramiko.config.invoke is None\n"
        "assert paramiko_transport.ssh_config('spark')['port'] == '2022'"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL, env=environment)


def test_no_other_module_imports_paramiko_or_fabric():
    users = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(import|from) (paramiko|fabric|invoke)\b", path.read_text(), re.MULTILINE)
    ]
    assert users == ["hosts/paramiko_transport.py"]
