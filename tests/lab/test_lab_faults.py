"""Faults of the lab are what they claim to be, and healing leaves nothing of them: what a Spark shows, before and after."""

from __future__ import annotations

import json
import re
import select
import subprocess
from pathlib import Path

import pytest

from sparkcluster.cli.main import main
from sparkcluster.errors import UsageError
from sparkcluster.lab.faults import FAULTS
from sparkcluster.lab.machine import wait_until

UNLIKE = """
sparks:
- name: left
  ports: p0
- name: right
  interfaces: {enp1s0f1np1: fast0, enP2p1s0f1np1: fast1, wlP9s9: radio}
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(UNLIKE)


def session(lab, spark):
    """An SSH session that returns each line that it is sent."""
    options = [f"-oUserKnownHostsFile={lab.directory}/known_hosts", "-oBatchMode=yes", "-Fnone"]
    argv = ["ssh", *options, "-i", str(lab.directory / "id_ed25519"), f"root@{spark.host}", "echo open; cat"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout.readline() == "open\n"
    return process


def says(process, word, within):
    """Whether a session returns a line in time."""
    process.stdin.write(word + "\n")
    ready, _, _ = select.select([process.stdout], [], [], within)
    return bool(ready) and process.stdout.readline() == word + "\n"


@pytest.fixture
def talk(lab):
    """A session with the Spark on the right."""
    with session(lab, lab.sparks[1]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("kind", ["silence", "ssh-hang"])
def test_a_fault_for_some_seconds_ends_by_itself(kind, lab, talk):
    right = lab.sparks[1]
    lab.fault("right", kind, "2")
    assert not right.ssh_answers()
    assert wait_until(right.ssh_answers, limit_s=20, step_s=0.1)
    assert says(talk, "again", 5)
    lab.heal()
    assert says(talk, "healed", 5)


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("firewall", ("middle",), "no other Spark is named middle"),
        ("firewall", ("99999",), "a port is a number"),
        ("clock", ("soon",), "number of seconds"),
        ("cut-weights", ("pytorch.bin",), "no pytorch.bin in"),
        ("kernel", ("../../etc",), "not a kernel release"),
        ("page-cache", ("1e9",), "a size in GB is a number"),
        ("flip-byte", ("last",), "the place of a byte is a number"),
    ],
)
def test_an_invalid_argument_changes_nothing(kind, args, message, lab):
    with pytest.raises(UsageError, match=re.escape(message)):
        lab.fault("right", kind, *args)
    assert lab.heal() == []


def test_the_page_of_the_lab_names_every_fault_and_what_is_only_simulated():
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    rows = [line.split("|") for line in page.replace("\\|", "/").splitlines() if line.startswith("| `")]
    documented = {}
    for row in rows:
        for kind, argument in re.findall(r"`([a-z-]+)(?: ([^`]*))?`", row[1]):
            if kind in FAULTS:
                documented[kind] = (argument.replace("/", "|") or None, "*simulated*" in row[2])
    short = {"VERSION": "V", "RELEASE": "V"}
    kinds = {
        kind: (fault.argument and short.get(fault.argument, fault.argument), fault.simulated)
        for kind, fault in FAULTS.items()
    }
    assert json.dumps(documented, sort_keys=True) == json.dumps(kinds, sort_keys=True)


def test_the_help_of_lab_fault_names_every_kind_unbroken(capsys):
    with pytest.raises(SystemExit):
        main(["lab", "fault", "--help"])
    text = capsys.readouterr().out.partition("kinds: ")[2].partition("\n\n")[0]
    assert [kind.split()[0] for kind in text.replace("\n", " ").split(", ")] == list(FAULTS)
