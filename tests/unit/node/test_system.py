"""System settings, the model's configuration, kernel modules, and the resolver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkcluster.node import storage, system
from sparkcluster.node.machine import Unreadable

LOGIN = "[Login]\nRemoveIPC=%s\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\n"}, True),
        ({"etc/systemd/logind.conf": LOGIN % "no"}, False),
        ({"etc/systemd/logind.conf": LOGIN % "no", "etc/systemd/logind.conf.d/a.conf": LOGIN % "yes"}, True),
        ({"etc/systemd/logind.conf.d/a.conf": LOGIN % "yes", "usr/lib/systemd/logind.conf.d/b.conf": LOGIN % "no"}, False),
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


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000, "null"])
def test_config_that_makes_no_sense_is_none(make_machine: Any, content: str) -> None:
    machine = make_machine({"files": {"m/config.json": content}})
    assert storage.config(machine, "/m", {"config.json": len(content)}) is None


def test_a_deeply_nested_document_is_unreadable(make_machine: Any) -> None:
    machine = make_machine({"files": {"x.json": "[" * 50_000, "y.json": json.dumps({"a": 1})}})
    assert machine.document("/y.json") == {"a": 1}
    with pytest.raises(Unreadable, match=r"^not JSON: /x\.json$"):
        machine.document("/x.json")
