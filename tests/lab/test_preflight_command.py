"""``preflight`` as a command on virtual Sparks: its output in a pipe, its files, its end, and ``up`` behind it.

What it finds is for test_preflight.py; this is about how it tells.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree as ET

import pytest

ESCAPE = "\x1b"


def errors(document):
    return sorted(
        (finding["code"], finding["node"]) for finding in document["findings"] if finding["severity"] == "error"
    )


def test_in_a_pipe_it_is_plain_and_fits_80_columns(lab, cli):
    done = cli("preflight", lab.inventory).ok()
    lines = done.out.splitlines()
    assert ESCAPE not in done.out
    assert lines[0] == "2 nodes, a direct cable"
    assert max(len(line) for line in lines if "hint:" not in line) <= 80
    assert re.fullmatch(r"ready: 2 nodes, \d+ checks,.* \d+\.\d s", lines[-1])
    # each twin of each node hangs on its rail
    assert sum("╡" in line for line in lines) == 4


def terminal(lab, cli, columns, **env):
    """What a terminal of ``columns`` shows, with its escapes."""
    master, slave = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "sparkcluster", "preflight", str(lab.inventory)],
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={**environment, "HOME": str(cli.home), "TERM": "xterm-256color", "COLUMNS": str(columns), **env},
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 1 << 16):
            shown += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(master)
    process.wait(60)
    return shown.decode().replace("\r\n", "\n")


def test_on_a_terminal_it_is_coloured_unless_told_otherwise(lab, cli):
    lab.fault("right", "mtu", "1500")
    coloured = terminal(lab, cli, 80)
    assert f"{ESCAPE}[1;31m✗ NET-006{ESCAPE}[0m" in coloured
    assert ESCAPE not in terminal(lab, cli, 80, NO_COLOR="1")
    narrow = re.sub(r"\x1b\[[0-9;]*m", "", terminal(lab, cli, 40))
    drawing = [line for line in narrow.splitlines() if line.endswith(("│", "┐", "┤", "┘"))]
    assert drawing
    assert {len(line) for line in drawing} == {max(map(len, drawing))}
    assert max(map(len, drawing)) <= 40


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


def test_a_report_that_cannot_be_written_costs_no_connection(lab, cli, tmp_path):
    done = cli("preflight", lab.inventory, "--junit", tmp_path / "away" / "preflight.xml")
    assert (done.code, done.out) == (2, "")
    assert "probe" not in done.err


def test_what_is_ignored_does_not_stop(lab, cli):
    lab.fault("right", "mtu", "1500")
    found = cli("preflight", lab.inventory, "--json")
    assert found.code == 1
    codes = {code for code, _ in errors(found.json)}
    flags = [word for code in codes for word in ("--ignore", code)]
    done = cli("preflight", lab.inventory, "--json", *flags).ok()
    assert done.json["ok"] is True
    assert codes <= {finding["code"] for finding in done.json["findings"] if finding["severity"] == "warning"}


def test_a_second_run_finds_the_same(lab, cli):
    lab.fault("right", "gid-missing")
    first, second = (cli("preflight", lab.inventory, "--json").json for _ in range(2))
    assert errors(first) == errors(second) != []


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


def test_up_refuses_what_only_reaching_shows(lab, cli, ranks):
    """A firewall is nothing that a node can say of itself."""
    lab.fault("right", "firewall")
    found = cli("preflight", lab.inventory, "--json")
    assert found.code == 1, found
    up = cli("up", lab.inventory, "--json")
    assert up.code == 1, up
    reported = {(finding["code"], finding["node"]) for finding in up.json["findings"] if finding["severity"] == "error"}
    assert reported & set(errors(found.json))
    assert ranks(lab) == {"left": [], "right": []}


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
