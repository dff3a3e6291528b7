"""``preflight`` as a command on virtual Sparks: output in a pipe, files, exit code, and a following ``up``.

test_preflight.py tests the findings; these tests are about the output.
"""

from __future__ import annotations

import signal
import time

import pytest


def errors(document):
    return sorted(
        (finding["code"], finding["node"]) for finding in document["findings"] if finding["severity"] == "error"
    )


def test_preflight_and_up_report_the_same_findings_including_ignored_ones(lab, cli, ranks):
    lab.fault("right", "mtu", "1500")
    found = cli("preflight", lab.inventory, "--json")
    assert found.code == 1
    assert errors(found.json) == [("NET-006", "right")]

    up = cli("up", lab.inventory, "--json")
    assert up.code == 1
    assert errors(up.json) == errors(found.json)
    assert ranks(lab) == {"left": [], "right": []}
    assert "✓ copy" not in up.err

    ignored = cli("preflight", lab.inventory, "--json", "--ignore", "NET-006").ok().json
    assert ignored["ok"] is True
    assert "NET-006" in {finding["code"] for finding in ignored["findings"] if finding["severity"] == "warning"}


@pytest.mark.full
def test_an_interrupt_prints_one_line_and_leaves_nothing_running(lab, cli):
    lab.fault("right", "ssh-hang")
    running = cli.start("preflight", lab.inventory)
    running.wait_for("connect")
    time.sleep(0.5)  # into the middle of a connection that hangs
    running.kill(signal.SIGINT)
    done = running.wait()
    assert done.code == 130
    assert "interrupted" in done.err
    assert "Traceback" not in done.err
    left = lab.sparks[0].run(["sh", "-c", "ps ax -o args | grep -c '[p]ython3 -I' || true"]).stdout.strip()
    assert left == "0"
