"""Faults of services and processes: sshd, Docker, containers, ports. All but the snap are real."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.errors import LabError
from sparkcluster.lab.faults.base import (
    Fault,
    Heal,
    Undo,
    hardware,
    matching,
    number,
    put_file,
    restore_file,
    restore_hardware,
    send,
    words,
)
from sparkcluster.lab.machine import run, wait_until
from sparkcluster.lab.shims.services import DAEMON_JSON
from sparkcluster.lab.sparks import Spark, make_key

LISTENER = """
import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", int(sys.argv[1])))
s.listen(16)
print("listening", flush=True)
while True:
    time.sleep(3600)
"""

SNAP_ROOT = "/var/snap/docker/common/var-lib-docker"
SYSTEMCTL = "/usr/local/bin/systemctl"


def _port_busy(spark: Spark, args: Sequence[str]) -> Undo:
    port = number(args[0], 1, 65535, "a port")
    log = f"/run/gb10/port-{port}.log"
    # The shell's process id is the listener's after exec.
    script = f'echo $$ > {log}.pid; exec setsid python3 -c "$1" {port} > {log} 2>&1 < /dev/null'
    spark.run(["sh", "-c", f"( {script} ) & :", "sh", LISTENER])

    def up() -> bool:
        return "listening" in spark.run(["cat", log], check=False).stdout

    def failed() -> bool:
        return "Error" in spark.run(["cat", log], check=False).stdout

    wait_until(lambda: up() or failed(), limit_s=5.0, sleep=time.sleep)
    if not up():
        raise LabError(f"port {port} of {spark.name} is already in use", node=spark.name)
    return {"match": LISTENER, "port": port}


def _port_free(spark: Spark, undo: Undo) -> None:
    send(matching(spark, lambda found: undo["match"] in found and str(undo["port"]) in found), signal.SIGKILL)


def _sshd(spark: Spark) -> list[int]:
    return matching(spark, lambda found: found[0].rsplit("/", 1)[-1].startswith("sshd"))


def _ssh_hang(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    stopped = _sshd(spark)
    if not stopped:
        raise LabError(f"no sshd runs on {spark.name}", node=spark.name)
    send(stopped, signal.SIGSTOP)
    return {}


def _ssh_on(spark: Spark, undo: Undo) -> None:
    del undo
    send(_sshd(spark), signal.SIGCONT)


def _ssh_stopped(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    spark.run([SYSTEMCTL, "stop", "ssh"])
    # Sessions outlive the listener and would still answer.
    send(_sshd(spark), signal.SIGKILL)
    return {}


def _host_key(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    fresh = spark.directory / "other_host_key"
    make_key(fresh, spark.name)
    _install_host_key(spark, fresh)
    return {}


def _install_host_key(spark: Spark, key: Path) -> None:
    path = "/etc/ssh/ssh_host_ed25519_key"
    spark.run(["sh", "-c", f"umask 077; cat > {path}.new && mv {path}.new {path}"], text_in=key.read_text())
    # On SIGHUP sshd reloads its keys and keeps its process id.
    listener = matching(spark, lambda found: found[0].startswith("sshd: ") or found[:1] == ["/usr/sbin/sshd"])
    send(listener[:1], signal.SIGHUP)
    wanted = key.with_name(key.name + ".pub").read_text().split()[1]

    def shown() -> bool:
        return wanted in run(["ssh-keyscan", "-T", "2", "-t", "ed25519", spark.host], check=False).stdout

    if not wait_until(shown, limit_s=5.0, sleep=time.sleep):
        raise LabError(f"sshd of {spark.name} did not load its new key", node=spark.name)


def _no_docker_group(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    rows = spark.run(["cat", "/etc/group"]).stdout.splitlines()
    emptied = [row.removesuffix("spark") if row.startswith("docker:") else row for row in rows]
    return put_file(spark, "/etc/group", "\n".join(emptied) + "\n")


def _no_runtime(spark: Spark, args: Sequence[str]) -> Undo:
    """As if NVIDIA's toolkit had never been set up: no runtime in daemon.json, no CDI spec, Docker restarted."""
    del args
    before = spark.run(["cat", DAEMON_JSON], check=False).stdout
    settings = json.loads(before or "{}")
    settings.pop("runtimes", None)
    undo = put_file(spark, DAEMON_JSON, json.dumps(settings) + "\n")
    spark.run(["sh", "-c", "rm -f /run/cdi/* /etc/cdi/*"])
    spark.run([SYSTEMCTL, "restart", "docker"])
    return undo


def _restore_runtime(spark: Spark, undo: Undo) -> None:
    restore_file(spark, undo)
    spark.run([SYSTEMCTL, "restart", "docker", "nvidia-cdi-refresh"])


def _snap_docker(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    # Not by a link: Docker would report its target.
    spark.run(["sh", "-c", f"mkdir -p {SNAP_ROOT} && mount --rbind /var/lib/docker {SNAP_ROOT}"])
    undo = hardware(spark, lambda values: values.update(docker_snap=True))
    spark.run([SYSTEMCTL, "restart", "docker"])
    return undo


def _apt_docker(spark: Spark, undo: Undo) -> None:
    restore_hardware(spark, undo)
    spark.run([SYSTEMCTL, "restart", "docker"])
    spark.run(["sh", "-c", f"umount -R -l {SNAP_ROOT} && rmdir -p {SNAP_ROOT} 2> /dev/null || [ ! -e /var/snap ]"])


def _docker_stopped(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    spark.run([SYSTEMCTL, "stop", "docker"])
    return {}


def _start(service: str) -> Heal:
    return lambda spark, _: spark.run([SYSTEMCTL, "start", service])


def _kill_worker(spark: Spark, args: Sequence[str]) -> None:
    del args
    ranks = _in_containers(spark)
    if not ranks:
        raise LabError(f"no container runs on {spark.name}", node=spark.name)
    send(ranks, signal.SIGKILL)


def _kill_engine(spark: Spark, args: Sequence[str]) -> None:
    del args
    cores = [pid for pid in _in_containers(spark) if "EngineCore" in " ".join(words(pid))]
    if not cores:
        raise LabError(
            f"no engine core runs on {spark.name}",
            node=spark.name,
            hint="give the head: the engine runs there",
        )
    # vLLM notices a dead core and exits within seconds. It never notices one that hangs: its API server
    # keeps reporting that it is healthy.
    send(cores, signal.SIGSTOP if spark.state.engine == "vllm" else signal.SIGKILL)


def _reboot(spark: Spark, args: Sequence[str]) -> None:
    del args
    spark.kill()
    spark.boot()
    spark.wait()


def _in_containers(spark: Spark) -> list[int]:
    """Processes of the Spark's containers, by their control group."""
    found = []
    for pid in sorted(spark.processes()):
        try:
            groups = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            continue
        if "/docker/" in groups:
            found.append(pid)
    return found


FAULTS: dict[str, Fault] = {
    "port-busy": Fault("PORT", _port_busy, _port_free),
    "ssh-hang": Fault(None, _ssh_hang, _ssh_on),
    "ssh-stopped": Fault(None, _ssh_stopped, _start("ssh")),
    "host-key-changed": Fault(None, _host_key, lambda spark, _: _install_host_key(spark, spark.directory / "host_key")),
    "no-docker-group": Fault(None, _no_docker_group, restore_file),
    "no-runtime": Fault(None, _no_runtime, _restore_runtime),
    "snap-docker": Fault(None, _snap_docker, _apt_docker, simulated=True),
    "docker-stopped": Fault(None, _docker_stopped, _start("docker")),
    "kill-worker": Fault(None, _kill_worker),
    "kill-engine": Fault(None, _kill_engine),
    "reboot": Fault(None, _reboot),
}
"""Faults of services and processes, by kind."""
