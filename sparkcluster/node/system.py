"""The node's operating system: release, memory, logind, firewall, kernel log."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from sparkcluster.node.machine import Machine, failed

_TRUE = ("1", "yes", "y", "true", "t", "on")
_LOG_LINES = 200
_LOG = re.compile(
    r"NVRM|\bXid\b|oom-kill|oom_reaper|Out of memory|Killed process|mlx5|(?:AER: |severity=).*(?:Uncorrect|Fatal)"
    r"|lockup|\bOops\b|kernel panic|\bBUG: |Unable to handle kernel|rcu: .*stall",
    re.IGNORECASE,
)
_MEMORY = {
    "total_bytes": "MemTotal",
    "free_bytes": "MemFree",
    "available_bytes": "MemAvailable",
    "cached_bytes": "Cached",
    "swap_total_bytes": "SwapTotal",
    "swap_free_bytes": "SwapFree",
    "cma_total_bytes": "CmaTotal",
    "anonymous_bytes": "AnonPages",
}
# systemd's last log messages in a boot that was shut down cleanly (systemd-shutdown(8)).
_SHUT_DOWN = re.compile(
    r"systemd-shutdown\[|Journal stopped|systemd\[1\]: Shutting down|System is (?:rebooting|powering down)"
    r"|Reached target (?:reboot|poweroff|System (?:Reboot|Power Off))"
)
_SERIALS = (
    (re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE), "GPU-(removed)"),
    (re.compile(r"(serial(?:\s*(?:number|num|no))?\.?\s*[:=#]?\s*)[\w-]+", re.IGNORECASE), r"\1(removed)"),
)


def machine_id(machine: Machine) -> str:
    """SHA-256 of /etc/machine-id: machine-id(5) asks not to expose the ID itself."""
    return hashlib.sha256(machine.text("/etc/machine-id").strip().encode()).hexdigest()


def remove_ipc(machine: Machine) -> bool | None:
    """Whether logind removes a user's IPC objects at the last logout; None without systemd.

    systemd's default is yes (logind.conf(5); Debian 12 has it as the comment ``#RemoveIPC=yes``). Users below
    SYS_UID_MAX, such as root, are exempt.
    """
    program = "/usr/bin/systemd-analyze"
    if not machine.exists(program):
        return None
    config = machine.run([program, "cat-config", "systemd/logind.conf"])[1]
    words = re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)", config, re.MULTILINE)
    return not words or words[-1].lower() in _TRUE


def lingers(machine: Machine, user: str) -> bool:
    """Whether logind keeps the user's session without a login (``loginctl enable-linger``)."""
    return machine.exists("/var/lib/systemd/linger/%s" % user.replace("/", "_"))


def firewall(machine: Machine) -> str | None:
    """The active firewall, as far as visible without root."""
    is_on = re.search(r"(?im)^\s*ENABLED\s*=\s*[\"']?yes\b", machine.text("/etc/ufw/ufw.conf", ""))
    return "ufw" if is_on else None


def kernel_log(machine: Machine) -> list[str]:
    """The newest kernel messages about GPU, memory, ConnectX and the kernel itself, each with its time (UTC).

    Raises:
        Unreadable: this user cannot read the kernel's journal.
    """
    return kernel_lines(_journal(machine, 2000, "-k", "-b", "0"))


def boot_before(machine: Machine) -> list[str] | None:
    """The last such messages of the previous boot; None if it was shut down cleanly.

    Raises:
        Unreadable: this user cannot read the kernel's journal, or there is no previous boot.
    """
    # A user outside the group adm sees only their own messages of that boot, none of the kernel.
    kernel = _journal(machine, 2000, "-k", "-b", "-1")
    if any(map(_SHUT_DOWN.search, _journal(machine, 60, "-b", "-1"))):
        return None
    return kernel_lines(kernel)[-20:] or kernel[-1:]


def _journal(machine: Machine, newest: int, *options: str) -> list[str]:
    argv = ["journalctl", *options, "-n", str(newest), "-o", "short-iso", "--utc", "--no-pager", "-q"]
    exit_code, output = machine.run(argv)
    if exit_code or not output:
        raise failed("journalctl", exit_code, output, 0)
    return output.splitlines()


def kernel_lines(lines: list[str]) -> list[str]:
    """The relevant lines of a kernel log, without serial numbers."""
    kept = [line for line in lines if _LOG.search(line)][-_LOG_LINES:]
    for pattern, instead in _SERIALS:
        kept = [pattern.sub(instead, line) for line in kept]
    return kept


def meminfo(text: str) -> dict[str, Any]:
    """``/proc/meminfo`` in bytes; a kernel without a contiguous memory area has no CmaTotal."""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    return {key: found.get(name) for key, name in _MEMORY.items()}


def swapped_pages(machine: Machine) -> int:
    """Pages swapped in and out since boot."""
    return sum(map(int, re.findall(r"^pswp(?:in|out) (\d+)$", machine.text("/proc/vmstat"), re.MULTILINE)))


def pressure(machine: Machine) -> dict[str, dict[str, float]]:
    """By resource, seconds since boot during which some or all tasks waited for it; empty without PSI in the kernel."""
    texts = {resource: machine.text("/proc/pressure/" + resource, "") for resource in ("cpu", "memory", "io")}
    pattern = re.compile(r"^(some|full) .*total=(\d+)", re.MULTILINE)  # microseconds
    return {resource: {kind: int(us) / 1e6 for kind, us in pattern.findall(text)} for resource, text in texts.items()}


def assignments(text: str) -> dict[str, str]:
    """``NAME=value`` lines of a shell file, without quotes; the last line of a name wins."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.strip().strip("\"'") for name, _, value in pairs}


def os_release(text: str) -> dict[str, str]:
    """``/etc/os-release``."""
    found = assignments(text)
    return {"id": found.get("ID", ""), "version": found.get("VERSION_ID", "")}


def dgx_release(text: str) -> dict[str, str | None]:
    """``/etc/dgx-release``; each over-the-air update appends lines. The serial number is omitted."""
    found = assignments(text)
    return {
        "name": found.get("DGX_NAME", ""),
        "platform": found.get("DGX_PLATFORM"),
        "ota_version": found.get("DGX_OTA_VERSION"),
        "swbuild_version": found.get("DGX_SWBUILD_VERSION"),
    }
