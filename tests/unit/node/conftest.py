"""A Spark made of files: a tree of /sys, /proc and /etc, canned programs and Docker answers."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkcluster.node.machine import Machine, Unreadable

GOLDEN = Path(__file__).parents[2] / "golden" / "facts"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


class FakeMachine(Machine):
    """A machine whose files are below ``root`` and whose programs and Docker engine answer from ``case``."""

    def __init__(self, root: str, case: dict[str, Any]) -> None:
        super().__init__(root)
        self.case = case
        self.ran: list[list[str]] = []

    def run(self, argv: list[str], limit_s: float = 3.0) -> tuple[int, str]:
        self.ran.append(argv)
        line = " ".join(argv)
        programs = self.case.get("programs", {})
        for start, answer in sorted(programs.items(), key=lambda each: -len(each[0])):
            if answer is not None and line.startswith(start):
                if "unread" in answer:
                    raise Unreadable(answer["unread"])
                return answer.get("exit", 0), answer["output"]
        raise Unreadable(f"{argv[0]} is not installed")

    def docker_document(self, path: str, kind: type = dict) -> Any:
        engine = self.case.get("docker", {})
        if "unread" in engine:
            raise Unreadable(engine["unread"])
        return engine.get(path)

    def addresses(self) -> dict[str, list[str]]:
        return {name: each.get("addresses", []) for name, each in self.case.get("interfaces", {}).items()}

    def resolve(self, name: str) -> list[str]:
        answer = self.case.get("names", {}).get(name, [])
        if "unread" in answer:
            raise Unreadable(answer["unread"])
        return list(answer)

    def reached_at(self) -> str | None:
        return self.case.get("reached_at")

    def space(self, path: str) -> tuple[int, int]:
        return 4_000_000_000_000, 3_000_000_000_000

    def identity(self) -> dict[str, Any]:
        return {
            "user": "nvidia",
            "uid": 1000,
            "groups": ["docker", "nvidia", "sudo"],
            "home": "/home/nvidia",
            "python": {"executable": "/usr/bin/python3", "version": "3.12.3"},
            "architecture": "aarch64",
            "hostname": "spark-1a2b",
            "kernel": self.line("/proc/sys/kernel/osrelease") or "6.17.0-1014-nvidia",
            "clock_s": 1_780_000_000.0,
            **self.case.get("identity", {}),
        }


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` merged into it; None removes a key."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict) and "unread" not in value:
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def load_case(name: str) -> dict[str, Any]:
    """The case ``name`` of tests/golden/facts, merged into its base case."""
    case = yaml.safe_load((GOLDEN / name / "machine.yaml").read_text())
    based_on = case.pop("base", None)
    return case if based_on is None else merged(load_case(based_on), case)


def safetensors(size_bytes: int, *, present_bytes: int | None = None) -> bytes:
    """A safetensors file with one tensor of ``size_bytes``, of which ``present_bytes`` are present."""
    tensor = {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    data = b"\1" * (size_bytes if present_bytes is None else present_bytes)
    return struct.pack("<Q", len(header)) + header + data


def interface_files(name: str, each: dict[str, Any]) -> dict[str, Any]:
    """The files of one interface in /sys/class/net; missing values are unreadable, as for an interface that is down."""
    here = f"sys/class/net/{name}/"
    keys = ("mtu", "address", "operstate", "carrier", "speed", "phys_port_name")
    files: dict[str, Any] = {here + key: f"{each[key]}\n" for key in keys if key in each}
    if "driver" in each:
        files[here + "device/uevent"] = f"DRIVER={each['driver']}\nPCI_CLASS=20000\n"
        files[here + "device/uevent"] += f"PCI_SLOT_NAME={each['pci']}\n" if "pci" in each else ""
    if each.get("wireless"):
        files[here + "wireless/.keep"] = ""
    return files


def hca_files(name: str, each: dict[str, Any]) -> dict[str, Any]:
    """The files of one HCA in /sys/class/infiniband; an empty GID has no readable type."""
    here = f"sys/class/infiniband/{name}/"
    port = here + "ports/1/"
    files = {port + key: f"{each[key]}\n" for key in ("state", "phys_state")}
    files[here + "fw_ver"] = each.get("fw_ver", "28.45.4028") + "\n"
    files[f"{here}device/net/{each['netdev']}/.keep"] = ""
    files[here + "device/current_link_speed"] = "32.0 GT/s PCIe\n"
    files[here + "device/current_link_width"] = f"{each.get('lanes', 4)}\n"
    files.update({f"{port}gids/{index}": EMPTY_GID + "\n" for index in range(8)})
    for index, kind, value in each["gids"]:
        files[f"{port}gids/{index}"] = value + "\n"
        files[f"{port}gid_attrs/types/{index}"] = kind + "\n"
        files[f"{port}gid_attrs/ndevs/{index}"] = each["netdev"] + "\n"
    return files


def build(root: Path, case: dict[str, Any]) -> FakeMachine:
    """Create the tree of ``case`` below ``root``."""
    files: dict[str, Any] = dict(case.get("files", {}))
    for name, each in case.get("interfaces", {}).items():
        files.update(interface_files(name, each))
    for name, each in case.get("hcas", {}).items():
        files.update(hca_files(name, each))
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict) and "link" in content:
            target.symlink_to(content["link"])
        elif isinstance(content, dict) and "safetensors" in content:
            target.write_bytes(safetensors(content["safetensors"], present_bytes=content.get("present")))
        else:
            target.write_text(content if isinstance(content, str) else json.dumps(content))
    return FakeMachine(str(root), case)


@pytest.fixture
def make_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builder of a machine from a case or from the name of one."""
    monkeypatch.setenv("HOME", "/home/nvidia")

    def make(case: str | dict[str, Any]) -> FakeMachine:
        return build(tmp_path, load_case(case) if isinstance(case, str) else case)

    return make
