"""``preflight`` as a command on virtual Sparks: its output in a pipe, its files, its end, and ``up`` behind it.

What it finds is for test_preflight.py; this is about how it tells.
"""

from __future__ import annotations

import signal
import time
from xml.etree import ElementTree as ET

import pytest


def errors(document):
    return sorted(
        (finding["code"], finding["node"]) for finding in document["findings"] if finding["severity"] == "error"
    )


def test_the_report_for_ci_names_check_and_node(lab, cli, tmp_path):
    lab.fault("right", "mtu", "1500")
    report = tmp_path / "preflight.xml"
    done = cli("preflight", lab.inventory, "--junit", report, "--json")
    assert done.code == 1
    failed = [
        (case.get("classname"), case.find("failure").get("type"))
        for case in ET.parse(report).getroot().iter("testcase")
        if case.find("failure") is not None
    ]
    assert sorted({(node.removeprefix("preflight."), code) for node, code in failed}) == sorted(
        {(node, code) for code, node in errors(done.json)}
    )


def test_what_is_ignored_does_not_stop(lab, cli):
    lab.fault("right", "mtu", "1500")
    found = cli("preflight", lab.inventory, "--json")
    assert found.code == 1
    codes = {code for code, _ in errors(found.json)}
    flags = [word for code in codes for word in ("--ignore", code)]
    done = cli("preflight", lab.inventory, "--json", *flags).ok()
    assert done.json["ok"] is True
    assert codes <= {finding["code"] for finding in done.json["findings"] if finding["severity"] == "warning"}


def test_up_refuses_with_the_same_findings_before_it_stages_anything(lab, cli, ranks):
    lab.fault("right", "mtu", "1500")
    found = cli("preflight", lab.inventory, "--json")
    up = cli("up", lab.inventory, "--json")
    assert up.code == 1
    reported = sorted(
        (finding["code"], finding["node"]) for finding in up.json["findings"] if finding["severity"] == "error"
    )
    assert set(reported) <= set(errors(found.json))
    assert ("NET-006", "right") in reported
    assert ranks(lab) == {"left": [], "right": []}
    assert "stage" not in {line.partition(":")[0] for line in up.err.splitlines()}


@pytest.mark.full
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_interrupt_ends_it_with_one_line_and_leaves_nothing_running(flags, lab, cli):
    lab.fault("right", "ssh-hang")
    running = cli.start("preflight", lab.inventory, *flags)
    running.wait_for("probe")
    time.sleep(0.5)  # into the middle of a connection that hangs
    running.kill(signal.SIGINT)
    done = running.wait(20)
    assert done.code == 130
    output = done.out if flags else done.err
    assert "interrupted" in output
    assert "Traceback" not in done.err
    assert done.seconds < 8
    left = lab.sparks[0].run(["sh", "-c", "ps ax -o args | grep -c '[p]ython3 -I' || true"]).stdout.strip()
    assert left == "0"
