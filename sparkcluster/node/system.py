"""The node's operating system: release, memory, logind, firewall, kernel log."""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

from sparkcluster.node.machine import Machine, Unreadable, failed

# In order of precedence, logind.conf(5).
_CONFIG_DIRS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
_TRUE, _FALSE = ("1", "yes", "y", "true", "t", "on"), ("0", "no", "n", "false", "f", "off")
_REMOVE_IPC = re.compile(r"^\s*RemoveIPC\s*=\s*(\w+)\s*$", re.MULTILINE)
_LOG_LINES = 200
_NEWEST = ["-n", "2000", "--no-pager", "-q"]
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
_OPTIONAL = ("CmaTotal", "AnonPages")
_SINCE_BOOT = re.compile(r"^\[\s*(\d{1,10})\.\d+\] (?:\S+ kernel: )?")
# What systemd logs last in a boot that it ends itself (systemd-shutdown(8)).
_SHUT_DOWN = re.compile(
    r"systemd-shutdown\[|Journal stopped|systemd\[1\]: Shutting down|System is (?:rebooting|powering down)"
    r"|Reached target (?:reboot|poweroff|System (?:Reboot|Power Off))"
)
_SERIALS = (
    (re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE), "GPU-(removed)"),
    (re.compile(r"(serial(?:\s*(?:number|num|no))?\.?\s*[:=#]?\s*)[\w-]+", re.IGNORECASE), r"\1(removed)"),
)


def machine_id(machine: Machine) -> str:
    """SHA-256 of /etc/machine-id: machine-id(5) asks not to show the ID itself to others."""
    return hashlib.sha256(machine.text("/etc/machine-id").strip().encode()).hexdigest()


def remove_ipc(machine: Machine) -> bool | None:
    """Whether logind removes a user's IPC objects at the last logout; None without logind.

    The default of systemd is yes (logind.conf(5); Debian 12 has it as the comment ``#RemoveIPC=yes``). Users below
    SYS_UID_MAX, such as root, are exempt.
    """
    main = next((folder + "/logind.conf" for folder in _CONFIG_DIRS if machine.exists(folder + "/logind.conf")), None)
    dropped: dict[str, str] = {}
    for folder in reversed(_CONFIG_DIRS):
        for name in machine.names(folder + "/logind.conf.d"):
            if name.endswith(".conf"):
                # a file of the same name in an earlier folder replaces it; a link to /dev/null removes it
                dropped[name] = "%s/logind.conf.d/%s" % (folder, name)
    files = ([main] if main else []) + [dropped[name] for name in sorted(dropped)]
    if not files and not machine.exists("/usr/lib/systemd/systemd-logind"):
        return None
    words = [word.lower() for path in files for word in _REMOVE_IPC.findall(machine.text(path))]
    return next((word in _TRUE for word in reversed(words) if word in _TRUE + _FALSE), True)


def lingers(machine: Machine, user: str) -> bool:
    """Whether logind keeps the user's session without a login (``loginctl enable-linger``)."""
    return machine.exists("/var/lib/systemd/linger/%s" % user.replace("/", "_"))


def firewall(machine: Machine) -> str | None:
    """The active firewall, as far as it is visible without root."""
    if re.search(r"^\s*ENABLED\s*=\s*[\"']?yes\b", machine.text("/etc/ufw/ufw.conf", ""), re.MULTILINE | re.IGNORECASE):
        return "ufw"
    pid = machine.line("/run/firewalld.pid") or ""
    return "firewalld" if pid.isdigit() and machine.exists("/proc/" + pid) else None


def kernel_log(machine: Machine, now_s: float) -> list[str]:
    """The newest kernel messages about GPU, memory, ConnectX and the kernel itself, without serial numbers.

    Each starts with its time (UTC), where the node says for how long it has run; ``now_s`` is in seconds since 1970.

    Raises:
        Unreadable: this user can read neither dmesg nor the kernel's journal.
    """
    try:
        booted_s: float | None = now_s - float(machine.text("/proc/uptime").split()[0])
    except (Unreadable, ValueError, IndexError):
        booted_s = None
    reasons = []
    for argv in (["dmesg"], ["journalctl", "-k", "-b", "-o", "short-monotonic", *_NEWEST]):
        try:
            return kernel_lines("\n".join(_printed(machine, argv)), booted_s)
        except Unreadable as error:
            reasons.append(str(error))
    raise Unreadable("; ".join(reasons))


def boot_before(machine: Machine) -> list[str] | None:
    """The last such messages of the boot before this one; None where that ended by a shutdown.

    Raises:
        Unreadable: this user cannot read the kernel's journal, or it has no boot before.
    """
    # A user without the group adm sees his own lines of that boot, and none of the kernel.
    kernel = _printed(machine, ["journalctl", "-k", "-b", "-1", "-o", "short-iso", *_NEWEST])
    end = _printed(machine, ["journalctl", "-b", "-1", "-o", "short-iso", "-n", "60", "--no-pager", "-q"])
    if any(_SHUT_DOWN.search(line) for line in end):
        return None
    return kernel_lines("\n".join(kernel))[-20:] or kernel[-1:]


def _printed(machine: Machine, argv: list[str]) -> list[str]:
    exit_code, output = machine.run(argv)
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("-- ")]
    if exit_code or not lines:
        raise failed(argv[0], exit_code, output, 0)
    return lines


def kernel_lines(text: str, booted_s: float | None = None) -> list[str]:
    """The lines of a kernel log that ``kernel_log`` returns; ``booted_s`` is when the node booted."""

    def at(found: re.Match[str]) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime((booted_s or 0) + int(found[1])))

    kept = [line.strip() for line in text.splitlines() if _LOG.search(line)][-_LOG_LINES:]
    for pattern, instead in _SERIALS:
        kept = [pattern.sub(instead, line) for line in kept]
    return kept if booted_s is None else [_SINCE_BOOT.sub(at, line) for line in kept]


def meminfo(text: str) -> dict[str, Any]:
    """``/proc/meminfo`` in bytes; a kernel without a contiguous memory area has no CmaTotal."""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d{1,18}) kB", text, re.MULTILINE)}
    missing = [name for name in _MEMORY.values() if name not in found and name not in _OPTIONAL]
    if missing:
        raise Unreadable("no %s: /proc/meminfo" % missing[0])
    return {key: found.get(name) for key, name in _MEMORY.items()}


def assignments(text: str) -> dict[str, str]:
    """``NAME=value`` lines of a shell file, without quotes; the last line of a name wins."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and re.match(r"^[A-Za-z_]\w*$", name):
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            found[name] = value
    return found


def os_release(text: str) -> dict[str, str]:
    """``/etc/os-release``."""
    found = assignments(text)
    return {"id": found.get("ID", ""), "version": found.get("VERSION_ID", "")}


def dgx_release(text: str) -> dict[str, str | None]:
    """``/etc/dgx-release``; every over-the-air update appends lines. The serial number is left out."""
    found = assignments(text)
    if not any(name.startswith("DGX_") for name in found):
        raise Unreadable("no DGX_ lines: /etc/dgx-release")
    return {
        "name": found.get("DGX_NAME") or found.get("DGX_PRETTY_NAME") or "",
        "platform": found.get("DGX_PLATFORM") or None,
        "ota_version": found.get("DGX_OTA_VERSION") or None,
        "swbuild_version": found.get("DGX_SWBUILD_VERSION") or None,
    }
