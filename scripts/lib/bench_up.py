"""The measurements of scripts/bench-up, which runs this."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from bench import PROGRAM, PYTHON, Turns, lab, show, ssh, timed

from sparkcluster.lab import Lab


def as_usual(inventory: Path) -> None:
    """Set no pause between the test requests, as in the script, and ``gpu-memory-utilization``, as on a real Spark."""
    path = inventory.with_name("playbook.yaml")
    document = yaml.safe_load(path.read_text())
    document["verify"] = {**document.get("verify", {}), "pause_s": 0}
    document["args"] = {**document.get("args", {}), "gpu-memory-utilization": 0.8}
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def by_hand(inventory: Path, plan: dict[str, object]) -> float:
    """Start the same containers with a shell script over ssh, and wait for the first answer.

    The launcher's files are already on the nodes. The script checks nothing.
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
    """Remove the containers of ``plan``."""
    for command, node in zip(ssh(inventory), plan["nodes"].values(), strict=True):  # type: ignore[attr-defined]
        names = [container["name"] for container in node["containers"]]
        subprocess.run([*command, shlex.join(["docker", "rm", "-f", *names])], capture_output=True, check=False)


def cold(engine: str, times: int) -> bool:
    """The ratio of a cold ``up`` to a start of the same containers by script, in turns."""
    with lab(2, engine) as made:
        as_usual(made.inventory)
        path = str(made.inventory)
        timed([PROGRAM, "up", path, "--yes"])  # puts the launcher's files on the nodes
        timed([PROGRAM, "down", path])
        plans: list[dict[str, object]] = []

        def ours() -> float:
            taken = timed([PROGRAM, "up", path, "--yes"])
            plans.append(running_plan(made))
            sweep(made.inventory, plans[-1])
            return taken

        def hand() -> float:
            taken = by_hand(made.inventory, plans[-1])
            sweep(made.inventory, plans[-1])
            return taken

        turns = Turns(times, ours, hand)
        # The bound is for the real engine: the stub starts in a second, most of which is probing and checking.
        limit = 1.10 if engine == "vllm" else None
        what = f"cold up / the same by script, {engine}"
        return show(what, turns.ratio(0, 1), turns.detail(0, 1), at_most=limit)


def running_plan(made: Lab) -> dict[str, object]:
    """The plan in the newest release record on the head."""
    done = made.sparks[0].run(
        ["sh", "-c", f"cat $(ls /root/.local/state/sparkcluster/clusters/{made.name}/releases/*.json | tail -n 1)"]
    )
    record: dict[str, dict[str, object]] = json.loads(done.stdout)
    return record["plan"]


def noop() -> bool:
    with lab(2, "stub") as made:
        path = str(made.inventory)
        timed([PROGRAM, "up", path, "--yes"])
        bare = [*ssh(made.inventory)[0], "true"]
        turns = Turns(9, lambda: timed([PROGRAM, "up", path, "--yes"]), lambda: timed(bare))
        what = "up that changes nothing / one ssh node true"
        return show(what, turns.ratio(0, 1), turns.detail(0, 1), at_most=6)


def start() -> bool:
    turns = Turns(15, lambda: timed([PROGRAM, "--help"]), lambda: timed([PYTHON, "-c", "pass"]))
    return show("--help / python3 -c pass", turns.ratio(0, 1), turns.detail(0, 1), at_most=8)


def growth() -> None:
    figures = {}
    for sparks in (2, 4, 8):
        with lab(sparks, "stub") as made:
            as_usual(made.inventory)
            path = str(made.inventory)
            timed([PROGRAM, "up", path, "--yes"])
            timed([PROGRAM, "down", path])
            figures[sparks] = timed([PROGRAM, "up", path, "--yes"])
            again = Turns(3, lambda: timed([PROGRAM, "up", path, "--yes"])).median(0)  # noqa: B023 - called immediately
            show(f"up of {sparks} stub Sparks / of 2", figures[sparks] / figures[2], f"{figures[sparks]:.1f} s")
            print(f"{'':<58} second up, nothing to change: {again:.2f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-up", description="up against a start by shell script, as ratios")
    parser.add_argument("--stub", action="store_true", help="without the real engine")
    args = parser.parse_args()
    results = [start(), noop(), cold("stub", 3)]
    growth()
    if not args.stub:
        results.append(cold("vllm", 2))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
