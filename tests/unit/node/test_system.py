"""System settings, the model's configuration, kernel modules, and the resolver."""

from __future__ import annotations

from typing import Any

import pytest

from sparkcluster.node import storage, system


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"etc/ufw/ufw.conf": "#ENABLED=yes\nENABLED=no\n"}, None),
        ({"etc/ufw/ufw.conf": 'ENABLED = "yes"\n'}, "ufw"),
    ],
)
def test_a_firewall_is_reported_only_when_enabled(
    make_machine: Any, files: dict[str, str], expected: str | None
) -> None:
    assert system.firewall(make_machine({"files": files})) == expected


def test_the_kernel_log_is_short_and_contains_no_board_names() -> None:
    lines = [f"NVRM: Xid (PCI:000f:01:00): 119, pid={number}" for number in range(500)]
    serial = "NVRM: serial 12345-A and Serial No. ABC42, S/N kept elsewhere"
    kept = system.kernel_lines(["Linux version", *lines, serial])
    assert len(kept) == 200
    assert kept[0] == lines[301]
    assert "12345" not in kept[-1]
    assert "ABC42" not in kept[-1]


@pytest.mark.parametrize("content", ["[]", "{", "null"])
def test_an_invalid_config_is_none(make_machine: Any, content: str) -> None:
    machine = make_machine({"files": {"m/config.json": content}})
    assert storage.config(machine, "/m", {"config.json": len(content)}) is None
