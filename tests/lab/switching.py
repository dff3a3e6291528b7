"""A cluster that is switched to another release: a client that sends requests continuously, and checks of the final state."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Self

from sparkcluster.lab import Lab

STATE = "/root/.local/state/sparkcluster"
LABELS = ("io.sparkcluster.release", "io.sparkcluster.plan")
SETTLES_S = 10


def complete(url: str, model: str, key: str | None = None, timeout_s: float = 20) -> int:
    """HTTP status of a completion; OSError or ValueError without a complete answer."""
    messages = [{"role": "user", "content": "Hello"}]
    # A model of random weights may end immediately if tokens are sampled.
    body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
    return _post(f"{url}/chat/completions", body, key, timeout_s)


def embed(url: str, model: str, timeout_s: float = 20) -> int:
    """HTTP status of an embedding request."""
    return _post(f"{url}/embeddings", {"model": model, "input": "Hello"}, None, timeout_s)


def _post(url: str, document: dict[str, Any], key: str | None, timeout_s: float) -> int:
    body = json.dumps(document).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=timeout_s) as response:
            answer = json.load(response)
            if not (answer["choices"][0]["message"]["content"] if "messages" in document else answer["data"]):
                raise ValueError("an empty answer")
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except LookupError as error:
        raise ValueError(f"not an answer: {error}") from error


class Client:
    """Sends requests to an endpoint continuously.

    Attributes:
        answered: time of each successful request.
        failed: time of each failed request, and the reason.
    """

    def __init__(
        self, url: str, model: str, ask: Callable[..., int] = complete, *, pause_s: float = 0.3, timeout_s: float = 20
    ) -> None:
        self.url, self.model = url, model
        self.ask, self.pause_s, self.timeout_s = ask, pause_s, timeout_s
        self.answered: list[float] = []
        self.failed: list[tuple[float, str]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(self.pause_s):
            sent = time.monotonic()
            try:
                status = self.ask(self.url, self.model, timeout_s=self.timeout_s)
            except (OSError, ValueError) as error:
                self.failed.append((sent, repr(error)))
            else:
                if status == 200:
                    self.answered.append(sent)
                else:
                    self.failed.append((sent, f"HTTP {status}"))

    def wait_for_answer(self, since: float, limit_s: float = 30) -> None:
        """Wait for an answer to a request sent after ``since``."""
        until = time.monotonic() + limit_s
        while not any(sent > since for sent in list(self.answered)):
            assert time.monotonic() < until, f"no answer for {limit_s} s: {self.failed[-1:]}"
            time.sleep(0.1)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def one_set(ranks: Callable[[Lab], Any], lab: Lab) -> dict[str, list[tuple[str, str, str]]]:
    """The containers of every Spark: exactly one, running, and all of one release and plan."""
    found: dict[str, list[tuple[str, str, str]]] = ranks(lab)
    assert {node: [state for _, _, state in containers] for node, containers in found.items()} == {
        spark.name: ["running"] for spark in lab.sparks
    }
    form = " ".join(f'{{{{index .Config.Labels "{label}"}}}}' for label in LABELS)
    labels = {spark.run(["docker", "inspect", "-f", form, found[spark.name][0][0]]).stdout for spark in lab.sparks}
    assert len(labels) == 1, labels
    return found


def left_behind(lab: Lab) -> list[str]:
    """Files of an unfinished switch, partial files, and our programs that still run after some seconds."""
    find = ["find", STATE, "-name", "switch.json", "-o", "-name", ".partial-*"]
    found = [f"{spark.name}:{path}" for spark in lab.sparks for path in spark.run(find).stdout.split()]
    until = time.monotonic() + SETTLES_S
    for spark in lab.sparks:
        # The boot line of our programs, which the processes of a container do not have.
        while "boot=json.loads" in (running := spark.run(["ps", "-eo", "args"]).stdout) and time.monotonic() < until:
            time.sleep(0.2)
        found += [f"{spark.name}: {line[:200]}" for line in running.splitlines() if "boot=json.loads" in line]
    return found


def settled(lab: Lab, cli: Any, ranks: Callable[[Lab], Any], inventory: Any = None) -> dict[str, Any]:
    """The status of a cluster that serves and answers, with one set of containers and no leftovers of a switch."""
    inventory = inventory or lab.inventory
    status: dict[str, Any] = cli("status", inventory, "--json").ok().json
    assert (status["state"], status["lease"], status["staging"]) == ("serving", None, None), status
    one_set(ranks, lab)
    assert left_behind(lab) == []
    assert cli("ask", inventory, "Hello", "--max-tokens", "4").ok().out.strip()
    return status


def images_of(status: dict[str, Any]) -> set[str]:
    """IDs of the running images."""
    return {node["image"] for node in status["nodes"]}
