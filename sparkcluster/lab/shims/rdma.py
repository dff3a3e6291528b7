"""ibdev2netdev, show_gids, rdma, ibv_devinfo: from the Spark's live links and addresses."""

from __future__ import annotations

import json
import sys
from typing import Any

from . import hardware

ACTIVE_MTU = {1024: "1024 (3)", 2048: "2048 (4)", 4096: "4096 (5)"}


def ibdev2netdev(args: list[str]) -> int:
    """HCA, port and interface, a line for each HCA."""
    del args
    for function in hardware.functions():
        state = "Up" if function["link"]["up"] else "Down"
        sys.stdout.write("%s port 1 ==> %s (%s)\n" % (function["hca"], function["netdev"], state))
    return 0


def show_gids(args: list[str]) -> int:
    """The GID tables; the IPv4 column is blank where there is none, as in NVIDIA's script."""
    sys.stdout.write("DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n")
    sys.stdout.write("---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n")
    count = 0
    for function in hardware.functions(*args[:1]):
        for index, (gid, version, address) in sorted(hardware.gid_table(function).items()):
            row = (function["hca"], 1, index, gid, "%-15s" % address, "v%d" % version, function["netdev"])
            sys.stdout.write("%s\t%d\t%d\t%s\t%s\t%s\t%s\n" % row)
            count += 1
    sys.stdout.write("n_gids_found=%d\n" % count)
    return 0


def rdma(args: list[str]) -> int:
    """``rdma link``; everything else is refused, since the real program would show the machine's own devices."""
    words = [arg for arg in args if not arg.startswith("-")]
    if words[:1] != ["link"]:
        return hardware.refuse('rdma: the lab has no object "%s"' % " ".join(words[:1]))
    rows = [
        {
            "ifindex": index,
            "ifname": function["hca"],
            "port": 1,
            "state": "ACTIVE" if function["link"]["up"] else "DOWN",
            "physical_state": "LINK_UP" if function["link"]["up"] else "DISABLED",
            "netdev": function["netdev"],
        }
        for index, function in enumerate(hardware.functions())
    ]
    if any(arg.startswith("-") and "j" in arg for arg in args):
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    for row in rows:
        text = "link %(ifname)s/%(port)d state %(state)s physical_state %(physical_state)s netdev %(netdev)s \n"
        sys.stdout.write(text % row)
    return 0


def ibv_devinfo(args: list[str]) -> int:
    """Attributes of an HCA or of all."""
    hca = args[args.index("-d") + 1] if "-d" in args else None
    functions = hardware.functions(hca)
    if not functions:
        return hardware.refuse("No IB devices found" if hca is None else "IB device '%s' wasn't found" % hca)
    for function in functions:
        sys.stdout.write(_device(function))
    return 0


def _device(function: dict[str, Any]) -> str:
    up = function["link"]["up"]
    rows = [
        ("transport", "InfiniBand (0)"),
        ("fw_ver", hardware.load()["firmware"]),
        ("node_guid", function["guid"]),
        ("sys_image_guid", function["sys_image_guid"]),
        ("vendor_id", "0x02c9"),
        ("vendor_part_id", "4129"),
        ("hw_ver", "0x0"),
        ("board_id", hardware.BOARD),
        ("phys_port_cnt", "1"),
    ]
    port = [
        ("state", "PORT_ACTIVE (4)" if up else "PORT_DOWN (1)"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", ACTIVE_MTU[hardware.rdma_mtu(function) if up else 1024]),
        ("sm_lid", "0"),
        ("port_lid", "0"),
        ("port_lmc", "0x00"),
        ("link_layer", "Ethernet"),
    ]
    text = "hca_id:\t%s\n" % function["hca"]
    text += "".join("\t%s:%s%s\n" % (name, _tabs(name, 32), value) for name, value in rows)
    text += "\t\tport:\t1\n"
    text += "".join("\t\t\t%s:%s%s\n" % (name, _tabs(name, 24), value) for name, value in port)
    return text + "\n"


def _tabs(name: str, width: int) -> str:
    return "\t" * max(1, (width - len(name) - 1 + 7) // 8)
