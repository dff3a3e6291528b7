"""The examples of docs/commands.md whose commands contact nodes, on virtual Sparks with the stub engine."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml

from tests import examples
from tests.lab.test_setup import answers_on_its_cables

READY = """
sparks:
- {name: spark-1, ports: p1}
- {name: spark-2, ports: p1, model: absent}
"""
BARE = """
bare: true
sparks: [{name: spark-1a2b, ports: p1}, {name: spark-3c4d, ports: p1}]
"""
# The life of a cluster: command, typed line, and exit code. LAB and YES are flags that the pages omit.
LAB, YES = "--name {lab}", "--yes"
LIFE = [
    ("key", "sparkcluster key mine.yaml", "", 0),
    ("", "sparkcluster preflight mine.yaml", YES, 0),  # the inventory written by lab up is accepted, in its file
    ("lab", 'sudo "$(command -v sparkcluster)" lab fault spark-2 mtu 1500', LAB, 0),
    ("preflight", "sparkcluster preflight mine.yaml", "", 1),
    ("", "sudo sparkcluster lab heal", LAB, 0),
    ("stage", "sparkcluster stage mine.yaml", YES, 0),
    ("plan", "sparkcluster plan mine.yaml", "", 0),
    ("up", "sparkcluster up mine.yaml", YES, 0),
    ("status", "sparkcluster status mine.yaml", "", 0),
    ("connect", "sparkcluster connect mine.yaml --client curl", "", 0),
    ("logs", "sparkcluster logs mine.yaml spark-1 --grep 'KV cache size'", "", 0),
    ("doctor", "sparkcluster doctor mine.yaml", "", 0),
    ("models", "sparkcluster models mine.yaml", "", 0),
    ("upgrade", "sparkcluster upgrade mine.yaml --set args.max-num-seqs=8", f"{YES} --min-speed 0.05", 0),
    ("releases", "sparkcluster releases mine.yaml 1 2", "", 0),
    ("rollback", "sparkcluster rollback mine.yaml", "", 0),
    ("enable", "sparkcluster enable mine.yaml", "", 0),
    ("disable", "sparkcluster disable mine.yaml", "", 0),
    ("down", "sparkcluster down mine.yaml", "", 0),
]
SET_UP = [
    ("discover", "sparkcluster discover --host 10.77.0.11 --host 10.77.0.12 -o mine.yaml", "{login} --yes", 0),
    ("setup", "sparkcluster setup mine.yaml", YES, 0),
]


@pytest.fixture
def place(tmp_path):
    """The directory and user for the examples; ``sudo`` is omitted there."""
    made = examples.Place(tmp_path / "home")
    sudo = made.home / ".bin/sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    return made


def walk(place, lab, steps, **flags):
    """Run the steps in order; returns differences from the examples, by command."""
    network = f"{lab.state.gateway.rpartition('.')[0]}."
    wrong = {}
    for name, line, more, expected in steps:
        real = line.replace("10.77.0.", network)
        code, written = place.run(real, more=more.format(lab=lab.name, **flags))
        assert code == expected, f"{line}: exit code {code}\n{written}"
        text = place.shown(written, {network: "10.77.0.", f" {LAB.format(lab=lab.name)}": "", lab.name: "lab"})
        difference = examples.difference(name, line, text) if name else ""
        if difference:
            wrong[name] = difference
    return wrong


@pytest.mark.full
def test_examples_with_a_cluster_match_the_output_of_their_commands(make_lab, place):
    lab = make_lab(READY)
    inventory = yaml.safe_load(lab.inventory.read_text()) | {"cluster": "pair", "playbook": "tiny"}
    del inventory["ignore"]
    (place.home / "mine.yaml").write_text(yaml.safe_dump(inventory, sort_keys=False))
    (place.home / "playbooks").mkdir()
    shutil.copy(lab.playbook, place.home / "playbooks/tiny.yaml")
    wrong = walk(place, lab, LIFE)
    assert not wrong, "\n".join(wrong.values())


@pytest.mark.full
def test_examples_of_setup_match_the_output_of_their_commands(make_lab, place):
    lab = make_lab(BARE, engine="none")
    for spark in lab.sparks:
        answers_on_its_cables(spark)
    known_hosts = place.home / "known_hosts"
    scan = ["ssh-keyscan", "-t", "ed25519", *(spark.host for spark in lab.sparks)]
    known_hosts.write_text(subprocess.run(scan, capture_output=True, text=True, check=True).stdout)
    login = f"--user spark -i {lab.identity} --known-hosts {known_hosts}"
    wrong = walk(place, lab, SET_UP, login=login)
    assert not wrong, "\n".join(wrong.values())
