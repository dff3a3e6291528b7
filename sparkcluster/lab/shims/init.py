"""First process of a virtual Spark: runs services and guards, updates the simulated hardware, reaps processes."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from . import guards, netplan, services, settings, sysfs
from .hardware import DIRECTORY, load, replace

READY = DIRECTORY + "/machine/ready.json"
"""Tells the lab on the machine that Docker is ready."""

MEMORY_S = 0.25
"""Interval for updating /proc/meminfo from the control group."""

SETTLE_S = 0.03
"""Links change in bursts; one update after a burst is enough."""

# <linux/rtnetlink.h>
RTMGRP_LINK = 1
RTMGRP_IPV4_IFADDR = 0x10
RTMGRP_IPV6_IFADDR = 0x100

STOP_S = 10
"""Time limit for a service to stop or to answer."""

SSHD = ["/usr/sbin/sshd", "-D", "-e"]
# Without the limits in its configuration, which are meant for a daemon started by systemd.
AVAHI = ["/usr/sbin/avahi-daemon", "--no-rlimits"]
DOCKERD = [
    "--exec-root=/run/docker",
    "--pidfile=/run/docker.pid",
    "--host=unix:///run/docker.sock",
    "--group=docker",
    "--exec-opt=native.cgroupdriver=cgroupfs",
    "--iptables=false",
    "--ip-masq=false",
    "--bridge=none",
]


def dockerd_command(facts: dict[str, Any]) -> list[Any]:
    """Docker as installed by apt, or as a snap; its runtimes are in daemon.json, as on a real Spark.

    It runs in its own mount namespace: when it exits it unmounts everything below its directory, including the layers
    that the lab mounted there.
    """
    # For containerd's store, an explicit driver would be taken for a snapshotter.
    containerd = services.docker_settings().get("features", {}).get(services.CONTAINERD_STORE)
    driver = [] if containerd else ["--storage-driver=overlay2"]
    registry = ["--insecure-registry=" + facts["registry"]]
    root = "/var/snap/docker/common/var-lib-docker" if facts.get("docker_snap") else "/var/lib/docker"
    return ["unshare", "--mount", "dockerd", "--data-root=" + root, *driver, *registry, *DOCKERD]


def dockerd_environment(facts: dict[str, Any]) -> dict[str, Any]:
    """``--gpus`` works only if dockerd finds NVIDIA's hook on its PATH."""
    path = "/usr/local/lib/gb10/bin:" + os.environ["PATH"]
    if facts["nvidia_runtime"] and "nvidia" in services.docker_settings().get("runtimes", {}):
        path = "/usr/local/lib/gb10/toolkit:" + path
    return dict(os.environ, PATH=path)


def start(command: list[str], log: str, environment: dict[str, Any] | None = None) -> int:
    """Start a service with its output in a log; return its process ID."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        ).pid


class Services:
    """Starts and stops sshd, Docker and avahi, on requests of systemctl."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}

    def start(self, name: str) -> None:
        """Start a service unless it is running."""
        if name in self._pids and _alive(self._pids[name]):
            return
        if name == "ssh":
            self._pids[name] = start(SSHD, "/var/log/sshd.log")
        elif name == "avahi":
            self._pids[name] = start(AVAHI, "/var/log/avahi.log")
        else:
            facts = load()
            command = dockerd_command(facts)
            self._pids[name] = start(command, "/var/log/dockerd.log", dockerd_environment(facts))

    def stop(self, name: str) -> None:
        """Stop a service and wait for its exit; its child processes keep running."""
        pid = self._pids.pop(name, None)
        if pid is None or not _alive(pid):
            return
        # Only once: on a third SIGTERM, Docker exits without cleaning up.
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + STOP_S
        while _alive(pid):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def serve(self) -> None:
        """Handle pending requests."""
        for entry in sorted(os.listdir(services.REQUESTS)):
            path = os.path.join(services.REQUESTS, entry)
            if entry.endswith(".new"):
                continue
            with open(path) as file:
                verb = file.read()
            name = entry.split(".")[0]
            if verb == "hup":
                if name in self._pids and _alive(self._pids[name]):
                    os.kill(self._pids[name], signal.SIGHUP)
            elif verb in ("stop", "restart"):
                self.stop(name)
            if verb in ("start", "restart"):
                self.start(name)
                _wait_for(name)
            os.unlink(path)


def _alive(pid: int) -> bool:
    """Whether a child process is running; reaps it if it has exited."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _wait_for(name: str) -> None:
    until = time.monotonic() + STOP_S
    while name != "avahi" and time.monotonic() < until:
        if name == "docker" and answers("/run/docker.sock"):
            return
        if name == "ssh":
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", 22)) == 0:
                    return
        time.sleep(0.02)


def answers(path: str) -> bool:
    """Whether Docker answers on its socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(2)
            client.connect(path)
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200" in client.recv(64)
    except OSError:
        return False


def reap() -> None:
    """Reap every child and orphan that has exited."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def raise_limits() -> None:
    """Set the limits that systemd sets for services; the limit of open files cannot exceed the kernel's."""
    with open("/proc/sys/fs/nr_open") as file:
        files = min(1048576, int(file.read()))
    infinite = resource.RLIM_INFINITY
    for limit, most in ((resource.RLIMIT_MEMLOCK, infinite), (resource.RLIMIT_NOFILE, files)):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError) as error:
            sys.stderr.write("limit %d not raised: %s\n" % (limit, error))


def main() -> None:
    """Never returns: the Spark runs as long as this process."""
    raise_limits()
    with open("/proc/sys/net/ipv4/conf/all/rp_filter", "w") as file:
        file.write("2\n")
    watch = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    watch.bind((0, RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR))
    watch.setblocking(False)
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_out, False)
    signal.set_wakeup_fd(wake_out)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGIO):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    running, guarded = Services(), dict[str, int]()
    virtual_memory = settings.VirtualMemory()
    start_all(running, virtual_memory)
    docker_ready = False
    while True:
        sources: list[Any] = [watch, wake_in]
        readable, _, _ = select.select(sources, [], [], MEMORY_S if docker_ready else 0.05)
        with contextlib.suppress(OSError):
            sysfs.sync_memory()
        if not docker_ready and answers("/run/docker.sock"):
            docker_ready = True
            replace(READY, json.dumps({"docker": True, "at": time.time()}))
        if not readable:
            with contextlib.suppress(OSError):
                guards.look(guarded)
            continue
        signals = os.read(wake_in, 65536) if wake_in in readable else b""
        if signal.SIGIO in signals:
            virtual_memory.update()
        if watch in readable:
            time.sleep(SETTLE_S)
            drain(watch)
        reap()
        if watch in readable or signal.SIGHUP in signals:
            apply(running)


def start_all(running: Services, virtual_memory: settings.VirtualMemory) -> None:
    """Start what systemd starts at boot: hardware files, sysctls, services, and on a bare Spark its network."""
    facts = load()
    sysfs.sync()
    os.makedirs("/var/log", exist_ok=True)
    if facts["nvidia_runtime"] and facts["driver"] != "none":
        services.write_cdi(facts["driver"])
    os.makedirs(services.REQUESTS, exist_ok=True)
    virtual_memory.load()
    virtual_memory.watch()
    for name in ("ssh", "docker", *(["avahi"] if facts["bare"] else [])):
        running.start(name)
    if facts["bare"]:
        netplan.apply()


def apply(running: Services) -> None:
    """Handle requests and update the simulated hardware."""
    try:
        running.serve()
        sysfs.sync()
    except OSError as error:
        # A full disk or a missing interface must not end the Spark.
        sys.stderr.write("hardware not updated: %s\n" % error)


def drain(watch: socket.socket) -> None:
    """Read everything pending on a socket."""
    try:
        while watch.recv(65536):
            pass
    except OSError:
        pass
