"""ibdev2netdev, show_gids, rdma, ibv_devinfo: from the Spark's live links and addresses."""

# Runs on a virtual Spark's own python3.

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import hardware


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
    for function in hardware.functions():
        if args and function["hca"] != args[0]:
            continue
        for index, (gid, version, address) in sorted(hardware.gid_table(function).items()):
            row = (function["hca"], 1, index, gid, "%-15s" % address, "v%d" % version, function["netdev"])
            sys.stdout.write("%s\t%d\t%d\t%s\t%s\t%s\t%s\n" % row)
            count += 1
    sys.stdout.write("n_gids_found=%d\n" % count)
    return 0


def rdma(args: list[str]) -> int:
    """``rdma link`` and ``rdma dev``; everything else goes to the real program."""
    words = [arg for arg in args if not arg.startswith("-")]
    as_json = any(arg.startswith("-") and "j" in arg for arg in args)
    if words[:1] not in (["link"], ["dev"]):
        os.execv("/usr/bin/rdma", ["rdma", *args])
    rows = []
    for index, function in enumerate(hardware.functions()):
        up = function["link"]["up"]
        if words[0] == "dev":
            row = {
                "ifindex": index,
                "ifname": function["hca"],
                "node_type": "ca",
                "fw": hardware.load()["firmware"],
            }
        else:
            row = {
                "ifindex": index,
                "ifname": function["hca"],
                "port": 1,
                "state": "ACTIVE" if up else "DOWN",
                "physical_state": "LINK_UP" if up else "DISABLED",
                "netdev": function["netdev"],
            }
        rows.append(row)
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    for row in rows:
        if words[0] == "dev":
            sys.stdout.write("%(ifindex)s: %(ifname)s: node_type %(node_type)s fw %(fw)s\n" % row)
        else:
            text = "link %(ifname)s/1 state %(state)s physical_state %(physical_state)s netdev %(netdev)s \n"
            sys.stdout.write(text % row)
    return 0


def ibv_devices(args: list[str]) -> int:
    """HCAs and their GUIDs."""
    del args
    sys.stdout.write("    device          \t   node GUID\n    ------          \t----------------\n")
    for function in hardware.functions():
        sys.stdout.write("    %-16s\t%s\n" % (function["hca"], function["guid"].replace(":", "")))
    return 0


def ibv_devinfo(args: list[str]) -> int:
    """Attributes of an HCA or of all."""
    wanted = args[args.index("-d") + 1] if "-d" in args else None
    functions = [f for f in hardware.functions() if wanted in (None, f["hca"])]
    if not functions:
        sys.stderr.write("No IB devices found\n" if wanted is None else "IB device '%s' wasn't found\n" % wanted)
        return 1
    for function in functions:
        sys.stdout.write(_device(function, "-v" in args))
    return 0


def _device(function: dict[str, Any], verbose: bool) -> str:
    up = function["link"]["up"]
    mtu = function["link"]["mtu"]
    active = "4096 (5)" if mtu >= 4200 else "2048 (4)" if mtu >= 2200 else "1024 (3)"
    rows = [
        ("transport", "InfiniBand (0)"),
        ("fw_ver", hardware.load()["firmware"]),
        ("node_guid", function["guid"]),
        ("sys_image_guid", function["sys_image_guid"]),
        ("vendor_id", "0x02c9"),
        ("vendor_part_id", "4129"),
        ("hw_ver", "0x0"),
        ("board_id", "NVD0000000087"),
        ("phys_port_cnt", "1"),
    ]
    port = [
        ("state", "PORT_ACTIVE (4)" if up else "PORT_DOWN (1)"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", active if up else "1024 (3)"),
        ("sm_lid", "0"),
        ("port_lid", "0"),
        ("port_lmc", "0x00"),
        ("link_layer", "Ethernet"),
    ]
    if verbose:
        port += [("active_width", "2X (16)"), ("active_speed", "100.0 Gbps (128)")]
        for index, (gid, version, _) in sorted(hardware.gid_table(function).items()):
            port.append(("GID[%3d]" % index, "%s, RoCE v%d" % (gid, version)))
    text = "hca_id:\t%s\n" % function["hca"]
    text += "".join("\t%s:%s%s\n" % (name, _tabs(name, 32), value) for name, value in rows)
    text += "\t\tport:\t1\n"
    text += "".join("\t\t\t%s:%s%s\n" % (name, _tabs(name, 24), value) for name, value in port)
    return text + "\n"


def _tabs(name: str, width: int) -> str:
    return "\t" * max(1, (width - len(name) - 1 + 7) // 8)
