"""Command lines and output of ``ib_write_bw``. Pure."""

from __future__ import annotations

import re

from sparkcluster.topology.model import Link

TOOL = "ib_write_bw"
PORT = 18515  # perftest's own default
SIZE_BYTES = 1 << 20  # at 1 MiB a twin reaches the limit of its PCIe lanes; at perftest's 64 KiB not quite

_ROW = re.compile(r"\s*\d+\s+\d+\s+\d+(?:\.\d+)?\s+(\d+(?:\.\d+)?)(?:\s+\d+(?:\.\d+)?)?\s*")


def server(link: Link, *, seconds: int, port: int = PORT) -> list[str]:
    """Command of the receiving side.

    ``-F``: the cores of a Spark differ in frequency, which perftest would refuse.
    """
    argv = [TOOL, "-d", str(link.hca), "-x", str(link.gid_index), "-s", str(SIZE_BYTES), "-D", str(seconds)]
    return [*argv, "-F", "--report_gbits", "-p", str(port)]


def client(link: Link, address: str, *, seconds: int, port: int = PORT) -> list[str]:
    """Command of the sending side; ``address`` is the server's on this rail."""
    return [*server(link, seconds=seconds, port=port), address]


def average_gbit_s(output: str) -> float | None:
    """The average of the last result row in 10^9 bits per second; None without a row.

    The exit code says nothing: with a wrong GID index there is a header, no row, and exit code 0.
    """
    _, head, rows = output.rpartition("BW average[Gb/sec]")
    found = [float(row[1]) for line in rows.splitlines() if (row := _ROW.fullmatch(line))]
    return found[-1] if head and found else None


def complaint(output: str, exit_code: int) -> str:
    """Why there was no result, as the program says."""
    lines = [line.strip() for line in output.splitlines()]
    complaints = [
        line for line in lines if re.search(r"fail|error|unable|couldn.t|not found|down", line, re.IGNORECASE)
    ]
    return complaints[0] if complaints else f"{TOOL} printed no result row, exit code {exit_code}"
