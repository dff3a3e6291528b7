"""Faults that ``lab fault`` puts on a virtual Spark, and how each is undone.

A fault is real wherever the kernel allows it (cables, MTU, rates, processes, disks); what only the
hardware could show (driver, GID table) is changed in the false hardware that the Spark's tools read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.errors import UsageError
from sparkcluster.lab import network, node_files
from sparkcluster.lab.machine import LabError, run, wait_until
from sparkcluster.lab.sparks import Spark, make_key
from sparkcluster.lab.spec import FUNCTIONS, GID_LAYOUTS

if TYPE_CHECKING:
    from sparkcluster.lab.core import Lab

Undo = dict[str, Any]
"""What heals a fault: its kind and what was there before, as JSON."""

FILLER = "/disk-full.lab"

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

FILL = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600)
size, step = 0, 1 << 40
while step >= 4096:
    try:
        os.posix_fallocate(fd, size, step)
        size += step
    except OSError:
        os.ftruncate(fd, size)
        step //= 2
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        argument: what it takes, for the help; None for nothing; in brackets where it may be left out.
        says: what it does, for the help.
        put: does it; returns what undoes it, None where there is nothing to undo.
    """

    argument: str | None
    says: str
    put: Callable[[Spark, Sequence[str]], Undo | None]


def put(lab: Lab, spark: Spark, kind: str, args: Sequence[str]) -> str:
    """Put one fault on a Spark; a line that says so.

    Raises:
        UsageError: no such fault, or its argument makes no sense.
        LabError: it could not be done.
    """
    fault = FAULTS.get(kind)
    if fault is None:
        raise UsageError(f"no fault is called {kind}", hint=f"there are {', '.join(sorted(FAULTS))}")
    least = 0 if fault.argument is None or fault.argument.startswith("[") else 1
    if not least <= len(args) <= (fault.argument is not None):
        wanted = "takes no argument" if fault.argument is None else f"takes {fault.argument}"
        raise UsageError(f"fault {kind} {wanted}", hint=f"sparkcluster lab fault {spark.name} {kind}")
    undo = fault.put(spark, args)
    if undo is not None:
        lab.state.faults.setdefault(spark.name, []).append({"kind": kind, **undo})
    return " ".join([spark.name, kind, *args])


def heal(lab: Lab, sparks: Sequence[Spark]) -> list[str]:
    """Undo all faults of ``sparks``, the youngest first; a line for each."""
    lines = []
    for spark in sparks:
        if spark.pid is None:
            spark.kill()
            spark.boot()
            spark.wait()
            lines.append(f"{spark.name} booted")
        undone = lab.state.faults.get(spark.name, [])
        while undone:
            undo = undone[-1]
            HEALERS[undo["kind"]](spark, undo)
            undone.pop()
            lab.state.write()
            lines.append(f"{spark.name} healed of {undo['kind']}")
        lab.state.faults.pop(spark.name, None)
    return lines


def _ports(spark: Spark, args: Sequence[str]) -> tuple[str, ...]:
    cabled = spark.spec.cabled
    if not cabled:
        raise UsageError(f"{spark.name} has no cable", hint="give its spec `ports: p1`")
    if args and args[0] not in cabled:
        raise UsageError(f"{spark.name} has no cable in {args[0]}", hint=f"it has {', '.join(cabled)}")
    return (args[0],) if args else cabled


def _cable_out(spark: Spark, args: Sequence[str]) -> Undo:
    ports = _ports(spark, args)
    network.set_carrier(spark.state, spark.index, ports, on=False)
    spark.tell_hardware_changed()
    return {"ports": ports}


def _cable_in(spark: Spark, undo: Undo) -> None:
    network.set_carrier(spark.state, spark.index, tuple(undo["ports"]), on=True)
    devices = [spark.spec.netdev(function) for function in FUNCTIONS if function.port in undo["ports"]]

    def lit() -> bool:
        return "0" not in spark.run(["cat", *(f"/sys/class/net/{name}/carrier" for name in devices)]).stdout

    wait_until(lit, limit_s=1.0, sleep=time.sleep)
    spark.tell_hardware_changed()


def _set_mtu(spark: Spark, mtu: int) -> None:
    devices = [spark.spec.netdev(f) for f in FUNCTIONS if f.netdev in spark.state.spec.rails(spark.index)]
    network.ip(spark.state.netns(spark.index), [f"link set {device} mtu {mtu}" for device in devices])
    spark.tell_hardware_changed()


def _mtu(spark: Spark, args: Sequence[str]) -> Undo:
    _ports(spark, ())
    _set_mtu(spark, _number(args[0], 68, network.BRIDGE_MTU, "an MTU"))
    return {}


def _hardware(spark: Spark, change: Callable[[dict[str, Any]], None]) -> Undo:
    values = node_files.read_hardware(spark.state, spark.index)
    before = json.loads(json.dumps(values))
    change(values)
    node_files.write_hardware(spark.state, spark.index, values)
    spark.tell_hardware_changed()
    return {"hardware": before}


def _old_hardware(spark: Spark, undo: Undo) -> None:
    node_files.write_hardware(spark.state, spark.index, undo["hardware"])
    spark.tell_hardware_changed()


def _gids(layout: str) -> Callable[[Spark, Sequence[str]], Undo]:
    def put_layout(spark: Spark, args: Sequence[str]) -> Undo:
        rails = spark.state.spec.rails(spark.index)
        cabled = [function.hca for function in FUNCTIONS if function.netdev in rails]
        if not cabled or (args and args[0] not in cabled):
            raise UsageError(f"{spark.name} has no such HCA with a cable", hint=f"it has {', '.join(cabled)}")
        # A shift is seen on all HCAs of a node, a lost entry on one: its second twin, by default.
        chosen = list(args) or (cabled if layout == "shifted" else cabled[-1:])

        def change(values: dict[str, Any]) -> None:
            for function in values["functions"]:
                if function["hca"] in chosen:
                    function["gids"] = GID_LAYOUTS[layout]

        return _hardware(spark, change)

    return put_layout


def _slow(spark: Spark, args: Sequence[str]) -> Undo:
    _ports(spark, ())
    network.shape(spark.state, spark.index, args[0])
    return {}


def _driver(spark: Spark, args: Sequence[str]) -> Undo:
    if not re.fullmatch(r"[0-9][0-9.]*|none", args[0]):
        raise UsageError(f"{args[0]!r} is no driver version", hint="write it as 590.48.01, or none")
    return _hardware(spark, lambda values: values.update(driver=args[0]))


def _port_busy(spark: Spark, args: Sequence[str]) -> Undo:
    port = _number(args[0], 1, 65535, "a port")
    log = f"/run/gb10/port-{port}.log"
    # The program comes as text and the shell's own id is the listener's after exec.
    script = f'echo $$ > {log}.pid; exec setsid python3 -c "$1" {port} > {log} 2>&1 < /dev/null'
    spark.run(["sh", "-c", f"( {script} ) & :", "sh", LISTENER])

    def up() -> bool:
        return "listening" in spark.run(["cat", log], check=False).stdout

    def failed() -> bool:
        return "Error" in spark.run(["cat", log], check=False).stdout

    wait_until(lambda: up() or failed(), limit_s=5.0, sleep=time.sleep)
    if not up():
        raise LabError(f"port {port} of {spark.name} is taken already", node=spark.name)
    return {"match": LISTENER, "port": port}


def _port_free(spark: Spark, undo: Undo) -> None:
    _signal(_matching(spark, lambda words: undo["match"] in words and str(undo["port"]) in words), signal.SIGKILL)


def _disk_full(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    spark.run(["python3", "-c", FILL, FILLER])
    return {}


def _disk_free(spark: Spark, undo: Undo) -> None:
    del undo
    spark.run(["rm", "-f", FILLER])


def _ssh_hang(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    stopped = _matching(spark, lambda words: words[0].rsplit("/", 1)[-1].startswith("sshd"))
    if not stopped:
        raise LabError(f"no sshd runs on {spark.name}", node=spark.name)
    _signal(stopped, signal.SIGSTOP)
    return {}


def _ssh_on(spark: Spark, undo: Undo) -> None:
    del undo
    _signal(_matching(spark, lambda words: words[0].rsplit("/", 1)[-1].startswith("sshd")), signal.SIGCONT)


def _host_key(spark: Spark, args: Sequence[str]) -> Undo:
    del args
    fresh = spark.directory / "other_host_key"
    make_key(fresh, spark.name)
    _install_host_key(spark, fresh)
    return {}


def _install_host_key(spark: Spark, key: Path) -> None:
    path = "/etc/ssh/ssh_host_ed25519_key"
    spark.run(["sh", "-c", f"umask 077; cat > {path}.new && mv {path}.new {path}"], text_in=key.read_text())
    # On SIGHUP sshd reads its keys again and goes on under the same process id.
    listener = _matching(spark, lambda words: words[0].startswith("sshd: ") or words[:1] == ["/usr/sbin/sshd"])
    _signal(listener[:1], signal.SIGHUP)
    wanted = key.with_name(key.name + ".pub").read_text().split()[1]

    def shown() -> bool:
        return wanted in run(["ssh-keyscan", "-T", "2", "-t", "ed25519", spark.host], check=False).stdout

    if not wait_until(shown, limit_s=5.0, sleep=time.sleep):
        raise LabError(f"sshd of {spark.name} did not take its new key", node=spark.name)


def _kill_worker(spark: Spark, args: Sequence[str]) -> None:
    del args
    ranks = _in_containers(spark)
    if not ranks:
        raise LabError(f"no container runs on {spark.name}", node=spark.name)
    _signal(ranks, signal.SIGKILL)


def _kill_engine(spark: Spark, args: Sequence[str]) -> None:
    del args
    cores = [pid for pid in _in_containers(spark) if "EngineCore" in " ".join(_words(pid))]
    if not cores:
        raise LabError(
            f"no engine core runs on {spark.name}",
            node=spark.name,
            hint="the engine runs on the head: name that",
        )
    # vLLM notices a core that is gone and ends within seconds. One that hangs it never notices: its API server
    # says that all is well for ever.
    _signal(cores, signal.SIGSTOP if spark.state.engine == "vllm" else signal.SIGKILL)


def _reboot(spark: Spark, args: Sequence[str]) -> None:
    del args
    spark.kill()
    spark.boot()
    spark.wait()


def _in_containers(spark: Spark) -> list[int]:
    """Processes of the Spark's containers: they have a mount namespace and a control group of their own."""
    found = []
    for pid in sorted(spark.processes()):
        try:
            groups = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            continue
        if "/docker/" in groups:
            found.append(pid)
    return found


def _matching(spark: Spark, wanted: Callable[[list[str]], bool]) -> list[int]:
    return [pid for pid in sorted(spark.processes()) if (words := _words(pid)) and wanted(words)]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _number(text: str, low: int, high: int, what: str) -> int:
    if not text.isdigit() or not low <= int(text) <= high:
        raise UsageError(f"{what} is a number from {low} to {high}, not {text!r}")
    return int(text)


FAULTS: dict[str, Fault] = {
    "cable-out": Fault("[p0|p1]", "pulls the cable: both twins of the port lose their carrier", _cable_out),
    "mtu": Fault("N", "sets the MTU of the cabled interfaces", _mtu),
    "gid-shift": Fault("[HCA]", "moves the IPv4 GIDs from indices 2 and 3 to 5 and 6", _gids("shifted")),
    "gid-missing": Fault("[HCA]", "empties the IPv4 GIDs of one HCA", _gids("missing")),
    "slow-link": Fault("RATE", "limits the cabled interfaces both ways, as 200mbit or 13gbit", _slow),
    "driver": Fault("VERSION", "shows another NVIDIA driver; `none` for one that is not loaded", _driver),
    "port-busy": Fault("PORT", "a process listens on the port", _port_busy),
    "disk-full": Fault(None, "fills the Spark's disk to the last block", _disk_full),
    "ssh-hang": Fault(None, "stops sshd: connections are taken and nothing answers", _ssh_hang),
    "host-key-changed": Fault(None, "gives sshd another host key", _host_key),
    "kill-worker": Fault(None, "kills all processes of the Spark's containers", _kill_worker),
    "kill-engine": Fault(None, "takes the engine's core out; its API server lives on", _kill_engine),
    "reboot": Fault(None, "kills everything and boots; containers stay stopped", _reboot),
}
"""Every kind of fault."""

HEALERS: dict[str, Callable[[Spark, Undo], None]] = {
    "cable-out": _cable_in,
    "mtu": lambda spark, _: _set_mtu(spark, spark.spec.mtu),
    "gid-shift": _old_hardware,
    "gid-missing": _old_hardware,
    "driver": _old_hardware,
    "slow-link": lambda spark, _: network.shape(spark.state, spark.index, None),
    "port-busy": _port_free,
    "disk-full": _disk_free,
    "ssh-hang": _ssh_on,
    "host-key-changed": lambda spark, _: _install_host_key(spark, spark.directory / "host_key"),
}
"""What undoes each kind that leaves something to undo."""
