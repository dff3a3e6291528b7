"""Faults of services and processes: sshd, Docker, containers, ports. All are real except the snap."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from sparkcluster.errors import LabError
from sparkcluster.lab.faults.base import Fault, Steps, changed, command, number, put_file, undone_by, until
from sparkcluster.lab.machine import command_line
from sparkcluster.lab.shims.services import DAEMON_JSON
from sparkcluster.lab.sparks import Spark, make_key

# The parent exits when the port is open; the child keeps it open.
LISTENER = """
import os, signal, socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", int(sys.argv[2])))
s.listen(16)
if os.fork():
    os._exit(0)
os.setsid()
os.closerange(0, 3)
signal.pause()
"""

SNAP_ROOT = "/var/snap/docker/common/var-lib-docker"
RESTART_DOCKER = ["systemctl", "restart", "docker"]

SSHD = "^(/[^ ]*/)?sshd"
"""Pattern for pkill: command lines of sshd and its sessions."""

HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
# On SIGHUP sshd reloads its keys and keeps its process ID.
LOAD_HOST_KEY = f"""
key=$(ssh-keygen -y -f {HOST_KEY} | cut -d' ' -f2)
systemctl reload ssh
for try in $(seq 50); do
  ssh-keyscan -T 2 -t ed25519 127.0.0.1 2> /dev/null | grep -qF "$key" && exit 0
  sleep 0.1
done
echo sshd did not load its new key >&2
exit 1
"""


def _port_busy(spark: Spark, text: str) -> Steps:
    port = number(text, 1, 65535, "a port")
    if spark.run(["python3", "-c", LISTENER, "port-busy", str(port)], check=False).returncode:
        raise LabError(f"port {port} of {spark.name} is already in use", node=spark.name)
    # After a reboot the process no longer exists.
    return undone_by(spark, ["sh", "-c", f"pkill -KILL -f 'port-busy {port}$' || true"])


def _ssh_hang(spark: Spark, seconds: str = "") -> Steps:
    steps = until(spark, seconds, ["pkill", "-CONT", "-f", SSHD])
    if spark.run(["pkill", "-STOP", "-f", SSHD], check=False).returncode:
        raise LabError(f"sshd is not running on {spark.name}", node=spark.name)
    return steps


def _ssh_restart(spark: Spark) -> Steps:
    spark.run(["systemctl", "restart", "ssh"])
    return []


def _ssh_stopped(spark: Spark) -> Steps:
    steps = _stopped("ssh")(spark)
    # Sessions survive the listener and would still answer.
    spark.run(["pkill", "-KILL", "-f", SSHD], check=False)
    return steps


def _stopped(service: str) -> Callable[[Spark], Steps]:
    return lambda spark: command(spark, ["systemctl", "stop", service], ["systemctl", "start", service])


def _host_key(spark: Spark) -> Steps:
    key = spark.directory / "other_host_key"
    make_key(key, spark.name)
    load = ["sh", "-c", LOAD_HOST_KEY]
    return put_file(spark, HOST_KEY, key.read_text()) + command(spark, load, load)


def _no_docker_group(spark: Spark) -> Steps:
    rows = spark.run(["cat", "/etc/group"]).stdout.splitlines()
    emptied = [row.removesuffix("spark") if row.startswith("docker:") else row for row in rows]
    return put_file(spark, "/etc/group", "\n".join(emptied) + "\n")


def _no_runtime(spark: Spark) -> Steps:
    """As if NVIDIA's toolkit had never been configured: no runtime in daemon.json, no CDI spec, Docker restarted."""
    settings = json.loads(spark.run(["cat", DAEMON_JSON], check=False).stdout or "{}")
    settings.pop("runtimes", None)
    steps = put_file(spark, DAEMON_JSON, json.dumps(settings) + "\n")
    spark.run(["sh", "-c", "rm -f /run/cdi/* /etc/cdi/*"])
    return steps + command(spark, RESTART_DOCKER, [*RESTART_DOCKER, "nvidia-cdi-refresh"])


def _snap_docker(spark: Spark) -> Steps:
    # Not a link, since Docker would report its target.
    spark.run(["sh", "-c", f"mkdir -p {SNAP_ROOT} && mount --rbind /var/lib/docker {SNAP_ROOT}"])
    remove = f"umount -R -l {SNAP_ROOT} && rmdir -p {SNAP_ROOT} 2> /dev/null || [ ! -e /var/snap ]"
    steps = changed(docker_snap=True)(spark) + command(spark, RESTART_DOCKER, RESTART_DOCKER)
    return steps + undone_by(spark, ["sh", "-c", remove])


def _kill_worker(spark: Spark) -> Steps:
    if not _kill_in_containers(spark, "", signal.SIGKILL):
        raise LabError(f"no container is running on {spark.name}", node=spark.name)
    return []


def _kill_engine(spark: Spark) -> Steps:
    # vLLM detects a dead core and exits within seconds. It does not detect one that hangs: its API server keeps
    # reporting that it is healthy.
    number = signal.SIGSTOP if spark.state.engine == "vllm" else signal.SIGKILL
    if not _kill_in_containers(spark, "EngineCore", number):
        raise LabError(
            f"no engine core is running on {spark.name}",
            node=spark.name,
            hint="use the head: the engine runs there",
        )
    return []


def _kill_in_containers(spark: Spark, word: str, number: signal.Signals) -> bool:
    """Send a signal to the processes of the Spark's containers with ``word`` in their command line, if any."""
    pids = []
    for pid in sorted(spark.processes()):
        with contextlib.suppress(OSError):
            if "/docker/" in Path(f"/proc/{pid}/cgroup").read_text() and word in " ".join(command_line(pid)):
                pids.append(pid)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(pids)


def _reboot(spark: Spark) -> Steps:
    spark.reboot()
    return []


FAULTS: dict[str, Fault] = {
    "port-busy": Fault("PORT", _port_busy),
    "ssh-hang": Fault("[SECONDS]", _ssh_hang),
    "ssh-restart": Fault(None, _ssh_restart),
    "ssh-stopped": Fault(None, _ssh_stopped),
    "host-key-changed": Fault(None, _host_key),
    "no-docker-group": Fault(None, _no_docker_group),
    "no-runtime": Fault(None, _no_runtime),
    "snap-docker": Fault(None, _snap_docker, simulated=True),
    "docker-stopped": Fault(None, _stopped("docker")),
    "kill-worker": Fault(None, _kill_worker),
    "kill-engine": Fault(None, _kill_engine),
    "reboot": Fault(None, _reboot),
}
"""Faults of services and processes, by kind."""
