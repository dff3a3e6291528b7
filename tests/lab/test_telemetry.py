"""Prometheus scrapes ``sparkcluster export`` of two virtual Sparks: the stub for a minute, with ``--full`` the real engine."""

from __future__ import annotations

import signal
import time

import pytest
from bench_telemetry import hung, used_s

from tests.lab.test_serving import complete
from tests.prometheus import config, expressions, free_port, needs_prometheus, prometheus, rules, until

pytestmark = needs_prometheus

NODE = "sparkcluster_node_memory_available_bytes"

EMPTY = {
    **dict.fromkeys(("Accepted drafts", "Tokens per step"), "the lab's model has no drafter"),
    **dict.fromkeys((f"Gateway: {what}" for what in ("requests", "requests in flight", "models ready")), "no gateway"),
    "Gateway: time to first byte": "no gateway",
    "RDMA errors": "a healthy pair has none",
    "Power": "without the driver spark_hwmon nothing knows that of the whole Spark",
    "GPU throttled": "it is not",
    "Guard": "no guard is installed",
}
"""Panels with an expression that has no value in the lab, and why."""


def share(spark, seconds):
    """CPU share of a Spark over ``seconds`` seconds."""
    before = used_s(spark)
    time.sleep(seconds)
    return (used_s(spark) - before) / seconds


@pytest.fixture
def exporter(make_cli):
    """``start(inventory)`` starts an exporter, always on the same port, and waits until it listens."""
    cli, port = make_cli(), free_port()

    def start(inventory):
        running = cli.start("export", inventory, "--listen", f"127.0.0.1:{port}")
        running.wait_for("listening")
        return running

    start.target = f"127.0.0.1:{port}"
    return start


def scraping(target):
    """monitoring/prometheus.yml, with only the port changed."""
    found = config()
    found["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    return found


def test_a_paused_spark_loses_only_its_own_series_and_a_new_exporter_continues_them(
    lab, cli, exporter, tmp_path, capsys
):
    cli("up", lab.inventory).ok()
    head, other = lab.sparks
    endpoint = cli("status", lab.inventory, "--json").ok().json["endpoint"]
    idle = share(head, 5)
    running = exporter(lab.inventory)
    with prometheus(tmp_path, scraping(exporter.target)) as ask:
        until(lambda: len(ask(NODE)) == 2)
        began = time.monotonic()
        for _ in range(3):
            complete(head, endpoint, 16)
        busy = share(head, 10)
        for _, expression in expressions():
            ask(expression)
        assert {each["metric"]["state"] for each in ask("sparkcluster_cluster_state == 1")} == {"serving"}
        until(lambda: ask("increase(sparkcluster_engine_generated_tokens_total[1m]) > 0"))

        with hung(other):
            until(lambda: ask(f'sparkcluster_node_up{{node="{other.name}"}} == 0'))
            until(lambda: [each["metric"]["node"] for each in ask(NODE)] == [head.name])
            # Every scrape had all metrics of the other Spark.
            since = f"[{time.monotonic() - began:.0f}s]"
            whole = f'scalar(sum_over_time(up{{job="sparkcluster"}}{since}))'
            assert ask(f'count_over_time({NODE}{{node="{head.name}"}}{since}) == {whole}')
            (slowest,) = ask("max_over_time(scrape_duration_seconds[10m])")
        until(lambda: len(ask(NODE)) == 2, 120)

        running.kill()
        until(lambda: ask('up{job="sparkcluster"} == 0'))
        running = exporter(lab.inventory)
        until(lambda: len(ask(NODE)) == 2)
        assert ask("count(sparkcluster_engine_up == 1) == 1")
        running.kill(signal.SIGINT)
        assert "Traceback" not in running.wait().err
    with capsys.disabled():
        cost = f"{head.name} uses {100 * busy:.1f} % of a core, {100 * idle:.1f} % without the exporter"
        print(f"\n{cost}; slowest scrape {float(slowest['value'][1]) * 1000:.0f} ms")


@pytest.mark.full
@pytest.mark.engine
def test_every_panel_has_a_value_with_the_real_engine(make_lab, module_cli, exporter, tmp_path):
    lab = make_lab(2, engine="vllm")
    module_cli("up", lab.inventory, timeout=600).ok()
    endpoint = module_cli("status", lab.inventory, "--json").ok().json["endpoint"]
    exporter(lab.inventory)
    with prometheus(tmp_path, scraping(exporter.target)) as ask:
        until(lambda: len(ask(NODE)) == 2)
        for _ in range(12):
            complete(lab.sparks[0], endpoint, 64)
            time.sleep(2)
        empty = {title for title, expression in expressions() if not ask(expression)}
    # An alert has no value while nothing is wrong.
    assert empty - {rule["alert"] for rule in rules()} - {"Findings"} == set(EMPTY)
