"""systemctl, loginctl, nvidia-ctk and ufw, as far as remedies use them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

from . import hardware

REQUESTS = hardware.DIRECTORY + "/services"
"""Directory of requests to the first process: one file each, removed when done."""

UNITS = {"docker": "docker", "ssh": "ssh", "sshd": "ssh", "avahi-daemon": "avahi"}
PROGRAMS = {"docker": "dockerd", "ssh": "sshd", "avahi": "avahi-daemon"}
LIMIT_S = 30
DAEMON_JSON = "/etc/docker/daemon.json"
NVIDIA_RUNTIME = {"args": [], "path": "/usr/local/lib/gb10/toolkit/nvidia-container-runtime"}
CONTAINERD_STORE = "containerd-snapshotter"
CDI_SPEC = "/run/cdi/nvidia.yaml"
UFW_CONF = "/etc/ufw/ufw.conf"
CHAIN = "ufw-user-input"  # rules that allow precede rules that drop
LINGER = "/var/lib/systemd/linger"
DEFAULT_TARGET = "/etc/systemd/system/default.target"
TARGETS = "/usr/lib/systemd/system"


def systemctl(args: list[str]) -> int:
    """Start, stop, restart or reload a service; refresh the CDI spec; report active units; set the default target."""
    words = [arg for arg in args if not arg.startswith("-")]
    if not words:
        return hardware.refuse("no systemd runs on a virtual Spark")
    verb, units = words[0], [word.rsplit(".service", 1)[0] for word in words[1:]]
    if verb in ("enable", "disable"):
        if "--now" not in args:
            return 0
        verb = "start" if verb == "enable" else "stop"
    if verb in ("daemon-reload", "reset-failed"):
        return 0
    if verb == "set-default":
        return _set_default_target(units[0])
    for unit in units:
        code = _apply(verb, unit)
        if code:
            return code
    return 0


def _set_default_target(target: str) -> int:
    """Make ``target`` the default, with the same link as systemd."""
    path = os.path.join(TARGETS, target)
    if not hardware.is_root():
        return hardware.refuse("Failed to set default target: Interactive authentication required.")
    if not path.endswith(".target") or not os.path.exists(path):
        return hardware.refuse("Failed to set default target: Unit file %s does not exist." % target)
    if os.path.lexists(DEFAULT_TARGET):
        os.unlink(DEFAULT_TARGET)
    os.symlink(path, DEFAULT_TARGET)
    return 0


def _apply(verb: str, unit: str) -> int:
    service = UNITS.get(unit.rsplit(".socket", 1)[0])
    if verb == "is-active":
        up = service is not None and _runs(service)
        sys.stdout.write("active\n" if up else "inactive\n")
        return 0 if up else 3
    if unit == "nvidia-cdi-refresh":
        return _refresh()
    if unit in ("systemd-logind", "ufw"):
        return 0
    if service is None:
        return hardware.refuse("Failed to %s %s.service: Unit %s.service not found." % (verb, unit, unit), 5)
    if verb == "reload":
        verb = "hup"
    if verb not in ("start", "stop", "restart", "hup"):
        return hardware.refuse("Unknown command verb %s." % verb)
    return request(verb, service)


def request(verb: str, service: str) -> int:
    """Make the first process apply ``verb`` to ``service``, and wait until it is done."""
    if not hardware.is_root():
        return hardware.refuse("Failed to %s %s.service: Interactive authentication required." % (verb, service))
    os.makedirs(REQUESTS, exist_ok=True)
    path = os.path.join(REQUESTS, "%s.%d" % (service, os.getpid()))
    hardware.replace(path, verb)
    os.kill(1, signal.SIGHUP)
    until = time.monotonic() + LIMIT_S
    while os.path.exists(path):
        if time.monotonic() > until:
            return hardware.refuse("Job for %s.service timed out." % service)
        time.sleep(0.02)
    return 0


def _runs(service: str) -> bool:
    name = PROGRAMS[service]
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                with open("/proc/%s/comm" % pid) as file:
                    if file.read().strip() == name:
                        return True
            except OSError:
                continue
    return False


def loginctl(args: list[str]) -> int:
    """``enable-linger USER`` and ``disable-linger USER``, with the same file as logind."""
    if len(args) != 2 or args[0] not in ("enable-linger", "disable-linger"):
        return hardware.refuse("Failed to connect to bus: no logind runs on a virtual Spark")
    path = os.path.join(LINGER, args[1])
    os.makedirs(LINGER, exist_ok=True)
    if args[0] == "enable-linger":
        with open(path, "w"):
            pass
    elif os.path.exists(path):
        os.unlink(path)
    return 0


def nvidia_ctk(args: list[str]) -> int:
    """``runtime configure`` writes Docker's daemon.json, ``cdi generate`` the CDI spec."""
    if not hardware.load()["nvidia_runtime"]:
        return hardware.refuse("bash: nvidia-ctk: command not found", 127)
    if args[:2] == ["runtime", "configure"]:
        settings = docker_settings()
        settings.setdefault("runtimes", {})["nvidia"] = NVIDIA_RUNTIME
        with open(DAEMON_JSON, "w") as file:
            file.write(json.dumps(settings, indent=4) + "\n")
        return 0
    if args[:2] == ["cdi", "generate"]:
        return _refresh(next((arg.partition("=")[2] for arg in args if arg.startswith("--output=")), CDI_SPEC))
    return hardware.refuse("nvidia-ctk: a virtual Spark does not support " + " ".join(args))


def docker_settings() -> dict[str, Any]:
    """Docker's daemon.json; empty if there is none."""
    if not os.path.exists(DAEMON_JSON):
        return {}
    with open(DAEMON_JSON) as file:
        found: dict[str, Any] = json.load(file)
    return found


def _refresh(path: str = CDI_SPEC) -> int:
    facts = hardware.load()
    if facts["driver"] == "none":
        return hardware.refuse('level=error msg="failed to generate CDI spec: NVML: Driver Not Loaded"')
    write_cdi(facts["driver"], path)
    return 0


def write_cdi(driver: str, path: str = CDI_SPEC) -> None:
    """Write the CDI spec for a driver, like nvidia-cdi-refresh."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    libraries = "/usr/lib/aarch64-linux-gnu"
    mounts = "".join(
        "  - containerPath: %s/%s.so.%s\n    hostPath: %s/%s.so.%s\n"
        "    options: [ro, nosuid, nodev, rbind, rprivate]\n" % (libraries, name, driver, libraries, name, driver)
        for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    )
    nodes = "".join("  - path: /dev/%s\n" % name for name in ("nvidia-modeset", "nvidia-uvm", "nvidiactl"))
    devices = "".join(
        '- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n  name: "%s"\n' % name for name in ("0", "all")
    )
    hardware.replace(
        path,
        "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  deviceNodes:\n%s  mounts:\n%sdevices:\n%skind: nvidia.com/gpu\n"
        % (nodes, mounts, devices),
    )


def ufw(args: list[str]) -> int:
    """``status``, ``enable``, ``disable``, ``allow [in on IF] [from ADDRESS] [to any] [port N]``, with real rules."""
    words = [arg for arg in args if arg not in ("--force", "any")]
    if not hardware.is_root():
        return hardware.refuse("ERROR: You need to be root to run this script")
    with open(UFW_CONF) as file:
        text = file.read()
    active = "ENABLED=yes" in text
    if words[:1] == ["status"]:
        sys.stdout.write("Status: %s\n" % ("active" if active else "inactive"))
        return 0
    if words[:1] in (["enable"], ["disable"]):
        enabled = "yes" if words[0] == "enable" else "no"
        with open(UFW_CONF, "w") as file:
            file.write(re.sub(r"ENABLED=\w+", "ENABLED=" + enabled, text))
        if enabled == "no":
            _iptables("-F", CHAIN)
        return 0
    if words[:1] == ["allow"]:
        return _iptables("-I", CHAIN, *_rule(words[1:]), "-j", "ACCEPT") if active else 0
    return hardware.refuse("ERROR: Invalid syntax")


def _rule(words: list[str]) -> list[str]:
    found: list[str] = []
    remaining = [word for word in words if word not in ("in", "to")]
    protocol, port = "", ""
    while remaining:
        word = remaining.pop(0)
        if word == "on" and remaining:
            found += ["-i", remaining.pop(0)]
        elif word == "from" and remaining:
            found += ["-s", remaining.pop(0)]
        elif word == "proto" and remaining:
            protocol = remaining.pop(0)
        elif word == "port" and remaining:
            port = remaining.pop(0)
        elif re.match(r"^\d+(:\d+)?(/\w+)?$", word):
            port, _, protocol = word.partition("/")
    if port:
        found += ["-p", protocol or "tcp", "--dport", port]
    return found


def _iptables(*args: str) -> int:
    return subprocess.run(["/usr/sbin/iptables", "-w", *args], check=False).returncode
