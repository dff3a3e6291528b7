"""The measurements of scripts/bench-upgrade, which runs this."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import yaml
from bench import PROGRAM, lab, show, ssh, timed, wait_until_quiet
from bench_up import as_usual, running_plan

from sparkcluster.lab import Lab

# Time between two requests: the resolution of the downtime.
EVERY_S = 0.02
# Seconds until the guards have connected to each other and watch the group.
WATCHING_S = 10
STATE = "/root/.local/state/sparkcluster/clusters"


class Client:
    """Sends requests to the endpoint continuously, and records when each answer ended."""

    def __init__(self, url: str, model: str) -> None:
        self.answered: list[float] = []
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode()
        self._request = urllib.request.Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                with urllib.request.urlopen(self._request, timeout=30) as response:
                    if json.load(response)["choices"][0]["finish_reason"] != "abort":
                        self.answered.append(time.monotonic())
            except (OSError, ValueError, LookupError):
                continue

    def during(self, change: Callable[[], object]) -> tuple[float, float]:
        """The longest gap between answers while ``change`` ran, and the time from the start to that gap, in seconds."""
        self._thread.start()
        while not self.answered:
            time.sleep(EVERY_S)
        began = time.monotonic()
        change()
        ended = time.monotonic()
        while self.answered[-1] < ended:
            time.sleep(EVERY_S)
        self._over.set()
        self._thread.join()
        times = [each for each in self.answered if each > began - 1]
        gap, last = max((after - before, before) for before, after in pairwise(times))
        return gap, last - began


def build(made: Lab, name: str) -> str:
    """Build the playbook's image with one changed layer on the first node; return its reference."""
    image = yaml.safe_load(made.playbook.read_text())["image"]
    reference = f"bench-upgrade:{name}"
    script = (
        f"set -e; head -c 1000000 /dev/urandom > /tmp/{name}; docker create --name {name} {image}; "
        f"docker cp /tmp/{name} {name}:/{name}; docker commit {name} {reference}; docker rm {name}"
    )
    made.sparks[0].run(["sh", "-c", script])
    return reference


def restart_by_hand(inventory: Path, plan: dict[str, object]) -> None:
    """Stop the containers of ``plan``, the head first, and start the same containers, with a shell script over ssh."""
    nodes = list(plan["nodes"].values())  # type: ignore[attr-defined]
    lines = ["set -e"]
    commands = ssh(inventory)
    for node, command in zip(nodes, commands, strict=True):
        for container in node["containers"]:
            stop = f"docker stop -t 90 {container['name']} >/dev/null && docker rm {container['name']} >/dev/null"
            lines.append(f"{shlex.join(command)} {shlex.quote(stop)}")
    for node, command in zip(nodes, commands, strict=True):
        starts = [shlex.quote(shlex.join(container["argv"])) for container in node["containers"]]
        lines += [f"{shlex.join(command)} {start} >/dev/null &" for start in starts]
    lines.append("wait")
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write("\n".join(lines) + "\n")
        script.flush()
        timed(["bash", script.name])


def switch(engine: str, times: int) -> bool:
    """The ratio of downtimes of a switch and of a manual restart, and how long the old release answered."""
    with lab(2, engine) as made:
        as_usual(made.inventory)
        path = str(made.inventory)
        timed([PROGRAM, "up", path, "--yes"])
        images = [build(made, name) for name in ("even", "odd")]
        for image in images:  # from here on every node has both images
            timed([PROGRAM, "upgrade", path, "--image", image, "--yes", "--min-speed", "0"])
        ratios, ours, bare, shares = [], [], [], []
        wait_until_quiet()
        for turn in range(times):
            plan = running_plan(made)
            url, model = next(iter(plan["endpoints"].values())), str(plan["model"])  # type: ignore[attr-defined]
            words = [PROGRAM, "upgrade", path, "--image", images[turn % 2], "--yes", "--min-speed", "0"]
            began = time.monotonic()
            down, served = Client(url, model).during(partial(timed, words))
            taken = time.monotonic() - began
            again, _ = Client(url, model).during(partial(restart_by_hand, made.inventory, running_plan(made)))
            ours.append(down)
            bare.append(again)
            ratios.append(down / again)
            shares.append(served / taken)
        detail = f"{statistics.median(ours):.3g} s / {statistics.median(bare):.3g} s"
        # The bound is for the real engine: the stub starts in a second, about as long as a check takes.
        limit = 1.10 if engine == "vllm" else None
        within = show(
            f"downtime of a switch / manual restart, {engine}", statistics.median(ratios), detail, at_most=limit
        )
        show(f"share of the upgrade while the old release answered, {engine}", statistics.median(shares), "")
        return within


def served_again(made: Lab) -> int:
    """How often the guards restarted the group."""
    journal = f"{STATE}/{made.name}/enabled/journal.jsonl"
    found = made.sparks[0].run(["cat", journal], check=False).stdout
    return [json.loads(line)["act"] for line in found.splitlines()].count("serving")


def guards(engine: str, times: int) -> None:
    """The ratio of downtimes after a rank dies in an enabled cluster and of a manual restart, in turns."""
    with lab(2, engine) as made:
        as_usual(made.inventory)
        timed([PROGRAM, "up", str(made.inventory), "--yes"])
        plan = running_plan(made)
        url, model = next(iter(plan["endpoints"].values())), str(plan["model"])  # type: ignore[attr-defined]
        ours, bare = [], []

        def die() -> None:
            before = served_again(made)
            made.fault(made.sparks[1].name, "kill-worker")
            while served_again(made) == before:
                time.sleep(0.5)

        for _ in range(times):
            # With guards enabled, the guards would restart the group too.
            bare.append(Client(url, model).during(partial(restart_by_hand, made.inventory, plan))[0])
            timed([PROGRAM, "enable", str(made.inventory)])
            time.sleep(WATCHING_S)
            ours.append(Client(url, model).during(die)[0])
            timed([PROGRAM, "disable", str(made.inventory)])
        ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
        detail = f"{statistics.median(ours):.3g} s / {statistics.median(bare):.3g} s"
        show(f"restart of a dead group by guards / manual restart, {engine}", ratio, detail)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-upgrade", description="a switch against a manual restart, as ratios")
    parser.add_argument("--stub", action="store_true", help="without the real engine")
    args = parser.parse_args()
    results = [switch("stub", 3)]
    guards("stub", 3)
    if not args.stub:
        results.append(switch("vllm", 3))
        guards("vllm", 2)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
