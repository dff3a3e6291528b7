"""System settings, the model's configuration, kernel modules, and the resolver."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.lab.shims import sysfs
from sparkcluster.node import gpu, storage, system
from sparkcluster.node.machine import Machine, Unreadable

LOGIN = "[Login]\nRemoveIPC=%s\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"usr/lib/systemd/systemd-logind": ""}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\n"}, True),
        ({"etc/systemd/logind.conf": LOGIN % "no"}, False),
        ({"etc/systemd/logind.conf": LOGIN % "off", "usr/lib/systemd/logind.conf": LOGIN % "yes"}, False),
        ({"usr/lib/systemd/logind.conf": LOGIN % "0"}, False),
        ({"etc/systemd/logind.conf": "[Other]\nRemoveIPC=no\n"}, True),
        ({"etc/systemd/logind.conf": LOGIN % "no" + "RemoveIPC=perhaps\n"}, False),
        ({"etc/systemd/logind.conf": LOGIN % "no", "etc/systemd/logind.conf.d/a.conf": LOGIN % "yes"}, True),
        ({"etc/systemd/logind.conf.d/a.conf": LOGIN % "yes", "usr/lib/systemd/logind.conf.d/b.conf": LOGIN % "no"}, False),
        ({"etc/systemd/logind.conf.d/b.conf": LOGIN % "yes", "run/systemd/logind.conf.d/b.conf": LOGIN % "no"}, True),
        ({"etc/systemd/logind.conf.d/b.conf.bak": LOGIN % "no"}, None),
    ],
)  # fmt: skip
def test_remove_ipc_follows_systemds_precedence(
    make_machine: Any, files: dict[str, str], expected: bool | None
) -> None:
    assert system.remove_ipc(make_machine({"files": files})) is expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"etc/ufw/ufw.conf": "#ENABLED=yes\nENABLED=no\n"}, None),
        ({"etc/ufw/ufw.conf": 'ENABLED = "yes"\n'}, "ufw"),
        ({"run/firewalld.pid": "812\n"}, None),
        ({"run/firewalld.pid": "812\n", "proc/812/comm": "firewalld"}, "firewalld"),
        ({"run/firewalld.pid": "../..\n"}, None),
    ],
)
def test_a_firewall_is_named_only_when_it_is_on(make_machine: Any, files: dict[str, str], expected: str | None) -> None:
    assert system.firewall(make_machine({"files": files})) == expected


def test_the_kernel_log_is_short_and_names_no_board() -> None:
    lines = [f"[ {number}.0] NVRM: Xid (PCI:000f:01:00): 119, pid={number}" for number in range(500)]
    text = "\n".join(["[0.0] Linux version", *lines, "NVRM: serial 12345-A and Serial No. ABC42, S/N kept elsewhere"])
    kept = system.kernel_lines(text)
    assert len(kept) == 200
    assert kept[0] == lines[301]
    assert "12345" not in kept[-1]
    assert "ABC42" not in kept[-1]


def test_config_is_read_where_it_is_an_object_of_sane_size(make_machine: Any) -> None:
    machine = make_machine({"files": {"m/config.json": {"model_type": "llama"}, "n/params.json": {"dim": 4}}})
    assert storage.config(machine, "/m", {"config.json": 23}) == {"model_type": "llama"}
    assert storage.config(machine, "/n", {"params.json": 10}) == {"dim": 4}
    assert storage.config(machine, "/m", {"config.json": 300_000}) is None
    assert storage.config(machine, "/m", {}) is None
    assert storage.config(machine, "/gone", {"config.json": 10}) is None


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000, "null"])
def test_config_that_makes_no_sense_is_none(make_machine: Any, content: str) -> None:
    machine = make_machine({"files": {"m/config.json": content}})
    assert storage.config(machine, "/m", {"config.json": len(content)}) is None


def test_modules_are_searched_in_few_places(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"lib/modules/6.17/kernel/{name}/x.ko": "" for name in ("fs", "net", "nvidia-580-open/bits")}
    machine = make_machine({"files": {**files, "lib/modules/6.17/kernel/net/nvidia.ko": ""}})
    paths: list[str] = []
    monkeypatch.setattr(machine, "exists", lambda path: paths.append(path) or False)
    assert gpu.module(machine, "6.17") is None
    assert len(paths) <= 28


def test_names_are_resolved_by_the_nodes_own_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    assert machine.resolve("127.0.0.9") == ["127.0.0.9"]
    assert machine.resolve("a..b") == []

    def fail(kind: int) -> Any:
        def resolve(*_: Any) -> Any:
            raise socket.gaierror(kind, "Temporary failure in name resolution")

        return resolve

    monkeypatch.setattr(socket, "getaddrinfo", fail(socket.EAI_NONAME))
    assert machine.resolve("spark-9") == []
    monkeypatch.setattr(socket, "getaddrinfo", fail(socket.EAI_AGAIN))
    with pytest.raises(Unreadable, match=r"^temporary failure in name resolution: spark-9$"):
        machine.resolve("spark-9")


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("192.0.2.1 50000 192.0.2.11 22", "192.0.2.11"),
        ("fe80::1%eth0 50000 fe80::2%eth0 22", "fe80::2%eth0"),
        ("", None),
        ("odd", None),
    ],
)
def test_address_of_the_ssh_connection(variable: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SSH_CONNECTION", variable)
    assert Machine().reached_at() == expected


def test_a_deeply_nested_document_is_unreadable(make_machine: Any) -> None:
    machine = make_machine({"files": {"x.json": "[" * 50_000, "y.json": json.dumps({"a": 1})}})
    assert machine.document("/y.json") == {"a": 1}
    with pytest.raises(Unreadable, match=r"^not JSON: /x\.json$"):
        machine.document("/x.json")


def test_a_modules_version_is_read_out_of_its_own_sections(make_machine: Any) -> None:
    """As the lab writes one; a file that is cut short anywhere makes no traceback, and modinfo is run instead."""
    whole = sysfs._elf("license=Dual MIT/GPL\0version=580.95.05\0srcversion=ABC\0")
    path = "lib/modules/6.17/updates/nvidia.ko"
    machine = make_machine({"files": {path: whole}})
    assert gpu.module(machine, "6.17") == "580.95.05"
    assert machine.ran == []
    machine.case["programs"] = {"modinfo": {"output": "590.48.01\n"}}
    for length in (0, 5, 40, 64, 100, 200, 300, 400, len(whole) - 30):
        Path(machine.at("/" + path)).write_text(whole[:length])
        assert gpu.module(machine, "6.17") == "590.48.01"
