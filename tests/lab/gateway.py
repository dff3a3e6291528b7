"""A client of a gateway, and inspection of the engines behind it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass
from typing import Any

from sparkcluster.lab import Lab
from sparkcluster.lab.sparks import Spark
from tests.lab.switching import STATE

LIMIT_S = 200


@dataclass
class Answer:
    """Status, headers and body of an answer; ``lines`` are the lines of a stream, each with its time in seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    lines: list[tuple[float, str]]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The documents of a stream."""
        found = [line.removeprefix("data: ") for _, line in self.lines if line.startswith("data: ")]
        return [json.loads(each) for each in found if each != "[DONE]"]

    @property
    def comments(self) -> list[tuple[float, str]]:
        """The comments of a stream, which are sent while a model loads."""
        return [line for line in self.lines if line[1].startswith(":")]


class Gateway:
    """The gateway of a lab's inventory, for a client with ``key``."""

    def __init__(self, host: str, key: str, port: int = 8000) -> None:
        self.host, self.port, self.key = host, port, key

    def send(self, path: str, body: Any = None, *, key: str | None = None, header: str = "Authorization") -> Answer:
        """Send a request; GET without a body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT_S)
        secret = self.key if key is None else key
        headers = {"Content-Type": "application/json"}
        headers |= {header: f"Bearer {secret}" if header == "Authorization" else secret} if secret else {}
        began = time.monotonic()
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        lines = [(time.monotonic() - began, line.decode().rstrip("\r\n")) for line in answer]
        body_bytes = "\n".join(line for _, line in lines).encode()
        connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body_bytes, lines)

    def chat(self, model: str, *, path: str = "/v1/chat/completions", stream: bool = False, **more: Any) -> Answer:
        """Send a chat request to a model."""
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "stream": stream}
        key, header = more.pop("key", None), more.pop("header", "Authorization")
        return self.send(path, {**body, **more}, key=key, header=header)

    def models(self) -> dict[str, Any]:
        """The listed models, by name."""
        return {each["id"]: each for each in self.send("/v1/models").json["data"]}

    def state(self, model: str) -> Any:
        """The state of a model."""
        return self.models()[model]["state"]


class Asking(threading.Thread):
    """A request in flight; ``answer`` waits for its answer."""

    def __init__(self, gateway: Gateway, model: str, **more: Any) -> None:
        super().__init__(daemon=True)
        self._gateway, self._model, self._more = gateway, model, more
        self._found: Answer | None = None
        self.start()

    def run(self) -> None:
        self._found = self._gateway.chat(self._model, **self._more)

    def answer(self) -> Answer:
        """The answer."""
        self.join(LIMIT_S)
        assert self._found is not None
        return self._found


def running(lab: Lab, spark: Spark) -> dict[str, str]:
    """IDs of the running containers on a Spark, by model; ``gateway`` is the gateway's container."""
    form = '{{.Label "io.sparkcluster.cluster"}} {{.ID}}'
    lines = spark.run(["docker", "ps", "--no-trunc", "--format", form]).stdout.splitlines()
    found = dict(line.split() for line in lines)
    return {cluster.removeprefix(lab.name).lstrip("-") or "base": each for cluster, each in found.items()}


def backends(lab: Lab) -> dict[str, list[str]]:
    """Addresses of the engines of each model in the gateway's config.json."""
    path = f"{STATE}/clusters/{lab.name}-gateway/ranks/*/config.json"
    document = json.loads(lab.sparks[0].run(["sh", "-c", f"cat {path}"]).stdout)
    return {each["name"]: each["backends"] for each in document["models"]}
