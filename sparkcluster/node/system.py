"""The node's operating system: release, memory, logind, firewall, kernel log."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, List, Optional

from sparkcluster.node.machine import Machine, Unreadable, failed

# In order of precedence, logind.conf(5).
_CONFIG_DIRS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
_TRUE, _FALSE = ("1", "yes", "y", "true", "t", "on"), ("0", "no", "n", "false", "f", "off")
_LOG_LINES = 200
_LOG = re.compile(r"NVRM|\bXid\b|oom-kill|oom_reaper|Out of memory|Killed process|mlx5", re.IGNORECASE)
_SERIALS = (
    (re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE), "GPU-(removed)"),
    (re.compile(r"(serial(?:\s*(?:number|num|no))?\.?\s*[:=#]?\s*)[\w-]+", re.IGNORECASE), r"\1(removed)"),
)


def machine_id(machine: Machine) -> str:
    """SHA-256 of /etc/machine-id: machine-id(5) asks not to show the ID itself to others."""
    return hashlib.sha256(machine.text("/etc/machine-id").strip().encode()).hexdigest()


def remove_ipc(machine: Machine) -> Optional[bool]:
    """Whether logind removes a user's IPC objects at the last logout; None without logind.

    The default of systemd is yes (logind.conf(5); Debian 12 has it as the comment ``#RemoveIPC=yes``). Users below
    SYS_UID_MAX, such as root, are exempt.
    """
    main = next((folder + "/logind.conf" for folder in _CONFIG_DIRS if machine.exists(folder + "/logind.conf")), None)
    dropped: Dict[str, str] = {}
    for folder in reversed(_CONFIG_DIRS):
        for name in machine.names(folder + "/logind.conf.d"):
            if name.endswith(".conf"):
                # a file of the same name in an earlier folder replaces it; a link to /dev/null removes it
                dropped[name] = "%s/logind.conf.d/%s" % (folder, name)
    files = ([main] if main else []) + [dropped[name] for name in sorted(dropped)]
    if not files and not machine.exists("/usr/lib/systemd/systemd-logind"):
        return None
    value = True
    for path in files:
        value = _login_setting(machine.text(path), "RemoveIPC", value)
    return value


def lingers(machine: Machine, user: str) -> bool:
    """Whether logind keeps the user's session without a login (``loginctl enable-linger``)."""
    return machine.exists("/var/lib/systemd/linger/%s" % user.replace("/", "_"))


def firewall(machine: Machine) -> Optional[str]:
    """The active firewall, as far as it is visible without root."""
    if re.search(r"^\s*ENABLED\s*=\s*[\"']?yes\b", machine.text("/etc/ufw/ufw.conf", ""), re.MULTILINE | re.IGNORECASE):
        return "ufw"
    pid = machine.line("/run/firewalld.pid") or ""
    return "firewalld" if pid.isdigit() and machine.exists("/proc/" + pid) else None


def kernel_log(machine: Machine) -> List[str]:
    """The newest kernel messages about GPU, memory and ConnectX, without serial numbers.

    Raises:
        Unreadable: this user can read neither dmesg nor the kernel's journal.
    """
    reasons = []
    for argv in (["dmesg"], ["journalctl", "-k", "-b", "-n", "2000", "--no-pager", "-q"]):
        try:
            exit_code, output = machine.run(argv)
        except Unreadable as error:
            reasons.append(str(error))
            continue
        if exit_code == 0 and output.strip():
            return kernel_lines(output)
        reasons.append(str(failed(argv[0], exit_code, output, 0)))
    raise Unreadable("; ".join(reasons))


def kernel_lines(text: str) -> List[str]:
    """The lines of a kernel log that ``kernel_log`` returns."""
    kept = [line.strip() for line in text.splitlines() if _LOG.search(line)][-_LOG_LINES:]
    for pattern, instead in _SERIALS:
        kept = [pattern.sub(instead, line) for line in kept]
    return kept


def _login_setting(text: str, name: str, before: bool) -> bool:
    """The boolean ``name`` of section [Login]; the last valid line wins."""
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line
        key, equals, value = line.partition("=")
        if section == "[Login]" and equals and key.strip() == name:
            word = value.strip().lower()
            before = True if word in _TRUE else False if word in _FALSE else before
    return before


def meminfo(text: str) -> Dict[str, Any]:
    """``/proc/meminfo`` in bytes; a kernel without a contiguous memory area has no CmaTotal."""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d{1,18}) kB", text, re.MULTILINE)}
    lines = {
        "total_bytes": "MemTotal",
        "free_bytes": "MemFree",
        "available_bytes": "MemAvailable",
        "cached_bytes": "Cached",
        "swap_total_bytes": "SwapTotal",
        "swap_free_bytes": "SwapFree",
    }
    for name in lines.values():
        if name not in found:
            raise Unreadable("no %s: /proc/meminfo" % name)
    memory: Dict[str, Any] = {key: found[name] for key, name in lines.items()}
    memory["cma_total_bytes"] = found.get("CmaTotal")
    memory["anonymous_bytes"] = found.get("AnonPages")
    return memory


def assignments(text: str) -> Dict[str, str]:
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


def os_release(text: str) -> Dict[str, str]:
    """``/etc/os-release``."""
    found = assignments(text)
    return {
        "id": found.get("ID", ""),
        "version": found.get("VERSION_ID", ""),
        "pretty_name": found.get("PRETTY_NAME", ""),
    }


def dgx_release(text: str) -> Dict[str, Optional[str]]:
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
