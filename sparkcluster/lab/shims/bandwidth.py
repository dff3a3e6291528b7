"""ib_write_bw between two virtual Sparks: a connection over the interface of the HCA, reported as RDMA.

The interface, the address, the GID index, the carrier and any limit on the link are real. Without a limit it reports
rates measured on Sparks (92.57 Gb/s with small packets, 97.3 at 64 KiB, 108.5 at 1 MiB with jumbo frames).
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from typing import Any

from . import hardware

PORT = 18515
LINE = "-" * 87
TIMEOUT_S = 20
SO_BINDTODEVICE = 25
# Options with a value that are ignored.
IGNORED = ("-i", "-D", "--duration", "-n", "--iters", "-q", "--qp", "-m", "--mtu", "-t", "-Q", "-S")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ib_write_bw", allow_abbrev=False)
    parser.add_argument("-d", "--ib-dev", dest="device")
    parser.add_argument("-x", "--gid-index", type=int)
    parser.add_argument("-s", "--size", type=int, default=65536)
    parser.add_argument("-p", "--port", type=int, default=PORT)
    for option in IGNORED:
        parser.add_argument(option)
    parser.add_argument("host", nargs="?")
    return parser


def ib_write_bw(args: list[str]) -> int:
    """Server without a host, client with one; returns 0 even without a result, 1 if the device cannot be used."""
    options = _parser().parse_known_args(args)[0]
    device = options.device
    functions = hardware.functions(device)
    if not functions:
        return hardware.refuse(" IB device %s not found\n Unable to find the Infiniband/RoCE device" % device)
    function = next((f for f in functions if f["link"]["up"]), functions[0])
    if not function["link"]["up"]:
        return hardware.refuse(" Port number 1 state is Down\n Couldn't set the link layer")
    table = hardware.gid_table(function)
    chosen = options.gid_index
    if chosen is None:
        chosen = next((i for i, (_, version, address) in sorted(table.items()) if version == 2 and address), 0)
    entry = table.get(chosen, ("", 0, ""))
    local = {
        "hca": function["hca"],
        "gid_index": chosen,
        "good": bool(entry[2]) and entry[1] == 2,
        "address": entry[2],
        "mtu": hardware.rdma_mtu(function),
        "limit": _limit_gbps(function["netdev"]),
    }
    if options.host:
        return _client(options.host, options.port, local, function["netdev"], options.size)
    return _server(options.port, local, options.size)


def _limit_gbps(netdev: str) -> float | None:
    """Rate of a token-bucket filter on the interface; None if there is none."""
    text = subprocess.run(["tc", "-j", "qdisc", "show", "dev", netdev], stdout=subprocess.PIPE, check=True).stdout
    for qdisc in json.loads(text.decode() or "[]"):
        rate = qdisc.get("options", {}).get("rate")
        if qdisc.get("kind") == "tbf" and rate:
            return float(rate) * 8 / 1e9
    return None


def _server(port: int, local: dict[str, Any], size: int) -> int:
    with socket.socket() as listener, socket.socket() as sink:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", port))
        listener.listen(1)
        sys.stdout.write("\n%s\n* Waiting for client to connect... *\n%s\n" % ("*" * 36, "*" * 36))
        sys.stdout.flush()
        control, _ = listener.accept()
        if local["address"]:
            sink.bind((local["address"], 0))
            sink.listen(1)
            sink.settimeout(TIMEOUT_S)
            local["data_port"] = sink.getsockname()[1]
        remote = _greet(control, local)
        if local["good"] and remote["good"]:
            sink.accept()[0].close()
            _result(_gbps(local, remote, size), size)
    return 0


def _client(host: str, port: int, local: dict[str, Any], netdev: str, size: int) -> int:
    try:
        control = socket.create_connection((host, port), TIMEOUT_S)
    except OSError as error:
        return hardware.refuse("Couldn't connect to %s:%d: %s\n Unable to open file descriptor" % (host, port, error))
    with control:
        remote = _greet(control, local)
        if not (local["good"] and remote["good"]):
            return 0
        try:
            with socket.socket() as data:
                if hardware.is_root():
                    data.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, netdev.encode())
                data.bind((local["address"], 0))
                data.settimeout(3)
                data.connect((remote["address"], remote["data_port"]))
        except OSError:
            return hardware.refuse(" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81")
        _result(_gbps(local, remote, size), size)
    return 0


def _gbps(local: dict[str, Any], remote: dict[str, Any], size: int) -> float:
    limits: list[float] = [end["limit"] for end in (local, remote) if end["limit"]]
    return min([_nominal(min(local["mtu"], remote["mtu"]), size), *limits])


def _nominal(mtu: int, size: int) -> float:
    if mtu < 4096:
        return 92.57
    return 108.5 if size >= 1 << 20 else 97.3


def _greet(control: socket.socket, local: dict[str, Any]) -> dict[str, Any]:
    """Exchange the parameters of both ends, print the banner, and return the other end's."""
    control.settimeout(TIMEOUT_S)
    lines = control.makefile("rw")
    lines.write(json.dumps(local) + "\n")
    lines.flush()
    remote: dict[str, Any] = json.loads(lines.readline())
    sys.stdout.write(
        "%s\n                    RDMA_Write BW Test\n"
        " Dual-port       : OFF\t\tDevice         : %s\n"
        " Number of qps   : 1\t\tTransport type : IB\n"
        " Mtu             : %d[B]\n Link type       : Ethernet\n GID index       : %d\n%s\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        % (LINE, local["hca"], local["mtu"], local["gid_index"], LINE)
    )
    sys.stdout.flush()
    return remote


def _result(gbps: float, size: int) -> None:
    rate = gbps * 1e9 / 8 / size
    row = (size, int(rate * 5), 0.0, gbps, rate / 1e6)
    sys.stdout.write(" %-10d %-16d %-18.2f %-20.2f %f\n%s\n" % (*row, LINE))
