"""What bench-up measures; run by scripts/bench-up."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from sparkcluster.lab import Lab
from sparkcluster.lab.spec import LabSpec

PYTHON = sys.executable
PROGRAM = str(Path(PYTHON).with_name("sparkcluster"))


def timed(argv: list[str], **options: object) -> float:
    """Seconds that a command takes; a failure ends the bench with its words."""
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{shlex.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


def median(measure: Callable[[], float], times: int) -> float:
    return statistics.median(measure() for _ in range(times))


def show(what: str, ratio: float, limit: float | None, detail: str) -> bool:
    verdict = "" if limit is None else ("ok" if ratio <= limit else "OVER")
    bound = "" if limit is None else f"(≤ {limit:g})"
    print(f"{what:<58} {ratio:6.2f} {bound:<8} {verdict:<5} {detail}", flush=True)
    return limit is None or ratio <= limit


@contextlib.contextmanager
def lab(sparks: int, engine: str) -> Iterator[Lab]:
    spec: LabSpec | None = None
    with Lab.up(
        sparks, engine=engine, spec=spec, name=f"bench{sparks}", tell=lambda line: print(line, file=sys.stderr)
    ) as made:
        yield made


def ssh(inventory: Path) -> list[list[str]]:
    """The plain ssh command of every node."""
    document = yaml.safe_load(inventory.read_text())
    options = document["ssh"]
    common = [
        "ssh",
        "-i",
        options["identity"],
        "-o",
        f"UserKnownHostsFile={options['known_hosts']}",
        "-o",
        "BatchMode=yes",
    ]
    return [[*common, f"{options['user']}@{node['host']}"] for node in document["nodes"]]


def quick_verify(inventory: Path) -> None:
    """One second between the two answers, in both ways of starting."""
    path = inventory.with_name("playbook.yaml")
    document = yaml.safe_load(path.read_text())
    document["verify"] = {**document.get("verify", {}), "pause_s": 0}
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def by_hand(inventory: Path, plan: dict[str, object]) -> float:
    """Start the very same containers with a shell script over ssh, and wait for the first answer.

    The launcher's files lie on the nodes already, and nothing is looked at, checked or compared.
    """
    nodes = plan["nodes"]
    lines = ["set -e"]
    for node, command in zip(nodes.values(), ssh(inventory), strict=True):  # type: ignore[attr-defined]
        starts = [shlex.quote(shlex.join(container["argv"])) for container in node["containers"]]
        lines += [f"{shlex.join(command)} {start} >/dev/null &" for start in starts]
    lines.append("wait")
    head = ssh(inventory)[0]
    endpoint = next(iter(plan["endpoints"].values()))  # type: ignore[attr-defined]
    body = json.dumps(
        {"model": plan["model"], "messages": [{"role": "user", "content": "Say something"}], "max_tokens": 16}
    )
    ask = (
        "import time,urllib.request\n"
        f"request=urllib.request.Request({endpoint + '/chat/completions'!r},{body.encode()!r},"
        "{'Content-Type':'application/json'})\n"
        "limit=time.time()+600\n"
        "while time.time()<limit:\n"
        "    try:\n"
        "        urllib.request.urlopen(request,timeout=120).read(); break\n"
        "    except OSError:\n"
        "        time.sleep(0.5)\n"
        "else:\n"
        "    raise SystemExit('no answer')\n"
        "urllib.request.urlopen(request,timeout=120).read()\n"
    )
    lines.append(f"{shlex.join(head)} {shlex.quote(shlex.join(['python3', '-c', ask]))}")
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write("\n".join(lines) + "\n")
        script.flush()
        return timed(["bash", script.name])


def sweep(inventory: Path, plan: dict[str, object]) -> None:
    """Remove what the script started."""
    for command, node in zip(ssh(inventory), plan["nodes"].values(), strict=True):  # type: ignore[attr-defined]
        names = [container["name"] for container in node["containers"]]
        subprocess.run([*command, shlex.join(["docker", "rm", "-f", *names])], capture_output=True, check=False)


def cold(engine: str, times: int) -> bool:
    """``up`` from cold over the same containers by hand, in turns."""
    ups: list[float] = []
    hands: list[float] = []
    with lab(2, engine) as made:
        quick_verify(made.inventory)
        path = str(made.inventory)
        timed([PROGRAM, "up", path])  # image asked, files of the launcher in place
        timed([PROGRAM, "down", path])
        for _ in range(times):
            ups.append(timed([PROGRAM, "up", path]))
            plan = running_plan(made)
            sweep(made.inventory, plan)
            hands.append(by_hand(made.inventory, plan))
            sweep(made.inventory, plan)
        up, hand = statistics.median(ups), statistics.median(hands)
        # The bound is for the real engine: the stub starts in a second, where looking and checking is most of it.
        limit = 1.10 if engine == "vllm" else None
        return show(f"up from cold / the same by hand, {engine}", up / hand, limit, f"{up:.1f} s / {hand:.1f} s")


def running_plan(made: Lab) -> dict[str, object]:
    """The plan that the newest record on the head holds."""
    done = made.sparks[0].run(
        ["sh", "-c", f"cat $(ls /root/.local/state/sparkcluster/clusters/{made.name}/releases/*.json | tail -n 1)"]
    )
    record: dict[str, dict[str, object]] = json.loads(done.stdout)
    return record["plan"]


def noop() -> bool:
    with lab(2, "stub") as made:
        path = str(made.inventory)
        timed([PROGRAM, "up", path])
        bare = [*ssh(made.inventory)[0], "true"]
        up = median(lambda: timed([PROGRAM, "up", path]), 5)
        one = median(lambda: timed(bare), 5)
        return show("up that changes nothing / one ssh node true", up / one, 6, f"{up:.2f} s / {one:.2f} s")


def start() -> bool:
    quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    help_s = median(lambda: timed([PROGRAM, "--help"], env=quiet), 15)
    pass_s = median(lambda: timed([PYTHON, "-c", "pass"], env=quiet), 15)
    return show("--help / python3 -c pass", help_s / pass_s, 8, f"{help_s * 1e3:.0f} ms / {pass_s * 1e3:.0f} ms")


def growth() -> None:
    figures = {}
    for sparks in (2, 4, 8):
        with lab(sparks, "stub") as made:
            quick_verify(made.inventory)
            path = str(made.inventory)
            timed([PROGRAM, "up", path])
            timed([PROGRAM, "down", path])
            figures[sparks] = timed([PROGRAM, "up", path])
            again = median(lambda: timed([PROGRAM, "up", path]), 3)  # noqa: B023 - called at once
            show(f"up of {sparks} stub Sparks / of 2", figures[sparks] / figures[2], None, f"{figures[sparks]:.1f} s")
            print(f"{'':<58} again, nothing to change: {again:.2f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-up", description="up against doing it by hand, as ratios")
    parser.add_argument("--stub", action="store_true", help="without the real engine")
    args = parser.parse_args()
    held = [start(), noop()]
    held.append(cold("stub", 3))
    growth()
    if not args.stub:
        held.append(cold("vllm", 2))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
