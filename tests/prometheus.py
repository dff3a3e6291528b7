"""A real Prometheus for tests, and the expressions of monitoring/."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MONITORING = ROOT / "monitoring"

needs_prometheus = pytest.mark.skipif(
    not shutil.which("promtool"), reason="Prometheus is missing: apt-get install prometheus"
)

Ask = Callable[..., list[dict[str, Any]]]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def dashboards() -> dict[str, dict[str, Any]]:
    """Grafana's dashboards, by file name without suffix."""
    files = sorted((MONITORING / "grafana/dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in files}


def expressions() -> list[tuple[str, str]]:
    """Every expression, as sent by Grafana with all variables selected, with its panel title or alert name."""
    found = [(rule["alert"], rule["expr"]) for rule in rules()]
    for board in dashboards().values():
        found += [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]]
        found += [(each["name"], each["expr"]) for each in board["annotations"]["list"]]
    chosen = {"$__rate_interval": "1m", "$cluster": ".*", "$node": ".*"}
    for name, value in chosen.items():
        found = [(title, expression.replace(name, value)) for title, expression in found]
    return found


def config() -> dict[str, Any]:
    """monitoring/prometheus.yml with the paths of the alerts; its only job is the exporter."""
    found = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    return {**found, "rule_files": [str(MONITORING / "alerts.yml")]}


def free_port() -> int:
    """A free port on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def prometheus(folder: Path, configuration: dict[str, Any]) -> Iterator[Ask]:
    """``ask(expression)``: the result of a query to a Prometheus with this configuration; an error fails the test."""
    file, port = folder / "prometheus.yml", free_port()
    file.write_text(yaml.safe_dump(configuration))
    argv = [f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]

    def ask(expression: str) -> list[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
            answer = json.loads(connection.getresponse().read())
        assert answer["status"] == "success", (expression, answer)
        return list(answer["data"]["result"])

    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(["prometheus", *argv], stderr=log) as process:
        try:
            until(lambda: ask("vector(1)"))
            yield ask
        finally:
            process.terminate()


def until(condition: Callable[[], Any], limit_s: float = 60.0) -> Any:
    """Wait for ``condition`` and return its value; connection errors and incomplete answers are retried."""
    deadline = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if found := condition():
                return found
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.1)
