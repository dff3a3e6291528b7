"""``docs/first-hour.md``, line by line, on two virtual Sparks with both image stores and a registry.

Changed for the lab: ``spark-1`` and ``spark-2`` are reached by an ``ssh`` with the lab's keys, ``sudo`` is omitted (the
user is root), and ``--yes`` accepts the lab's playbook.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from lab_registry import registry_of

from sparkcluster.lab import images

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/first-hour.md").read_text()
BLOCKS = [
    (int(step), reason, lines.splitlines())
    for step, text in re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for reason, lines in re.findall(r"(?:<!-- hardware: (.*?) -->\n)?```sh\n(.*?)```", text, re.DOTALL)
]

SPARKCLUSTER = """#!/bin/sh
case "$1 $*" in "up "* | "stage "* | *--deep* | *"preflight "*--bundle*) set -- "$@" --yes;; esac
exec {python} -m sparkcluster "$@"
"""
SSH = '#!/bin/sh\nexec {ssh} -F {config} "$@"\n'
HOST = "Host {name}\n  HostName {host}\n  User root\n  IdentityFile {state}/id_ed25519\n  UserKnownHostsFile {state}/known_hosts\n"


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(
        "sparks: [{name: spark-1, ports: p1, image: absent}, {name: spark-2, ports: p1, docker: containerd, image: absent}]\n"
    )


@pytest.fixture
def shell(lab, variant, tmp_path):
    """Runs a line of the page in the operator's home."""
    home = tmp_path / "home"
    programs = home / "bin"
    programs.mkdir(parents=True)
    real = subprocess.run(["which", "ssh"], capture_output=True, text=True, check=True).stdout.strip()
    state = lab.state.directory
    config = "".join(HOST.format(name=spark.name, host=spark.host, state=state) for spark in lab.sparks)
    (home / "ssh_config").write_text(config)
    (programs / "ssh").write_text(SSH.format(ssh=real, config=home / "ssh_config"))
    (programs / "sparkcluster").write_text(SPARKCLUSTER.format(python=sys.executable))
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": "",
    }

    def run(line):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line.replace("sudo ", "")],
            cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    run.home = home
    with registry_of(lab) as registry:
        reference = registry.add("first-hour", images.archive("stub"), platforms=True)
        (home / "mine.yaml").write_text(variant(lab, playbook={"image": reference}).read_text())
        run("sparkcluster preflight mine.yaml --yes || true")  # the author of the inventory knows its permissions
        yield run
    for spark in lab.sparks:
        spark.run(["sh", "-c", "docker image rm -f $(docker images -q)"], check=False)


def unpacked(path):
    with tarfile.open(path) as archive:
        return {each.name.partition("/")[2]: archive.extractfile(each).read().decode() for each in archive}


def observed(files):
    found = {}
    for line in files.get("observed.jsonl", "").splitlines():
        entry = json.loads(line)
        found.setdefault(entry["what"], []).append(entry)
    return found


@pytest.mark.full
def test_each_command_of_the_page_runs_and_the_bundles_have_every_item(shell):
    assert [step for step, reason, _ in BLOCKS if reason] == [9]
    for _, reason, lines in BLOCKS:
        for line in [] if reason else lines:
            shell(line)
    idle = unpacked(shell.home / "1-idle.tar.gz")
    files = unpacked(shell.home / "first-hour.tar.gz")
    serving = unpacked(shell.home / "2-serving.tar.gz")
    assert {"doctor.json", "first-hour.json", "observed.jsonl", "release.json"} <= set(serving)
    assert any(name.startswith("logs/") for name in serving)
    assert {"preflight.json", "findings.txt", "spec/inventory.json", "facts/spark-1.json"} <= set(files)

    for bundle in (idle, files):
        facts = {name: json.loads(bundle[f"facts/{name}.json"]) for name in ("spark-1", "spark-2")}
        stores = {name: node["docker"]["containerd_store"] for name, node in facts.items()}
        assert stores == {"spark-1": False, "spark-2": True}
        for node in facts.values():
            assert node["memory"]["free_bytes"] > 0
            assert node["weights"]["foreign"] is None
            assert any(
                gid["value"].startswith("0000:0000:0000:0000:0000:ffff") for hca in node["hcas"] for gid in hca["gids"]
            )
    assert all(node["image"]["entrypoint"] for node in facts.values())
    for node in json.loads(files["first-hour.json"]).values():
        # The others stay below the hard limits of the machine that the lab runs on.
        assert re.search(r"^stack.* 65536$", node["rank"], re.MULTILINE), node

    found = [json.loads(line) for line in files["observed.jsonl"].splitlines()]
    assert {each["what"] for each in found} == {"deep", "pull", "stage", "evict", "launch", "up", "stop"}
    assert [each["outcome"] for each in found if each["what"] == "launch"] == ["answered"] * 3
    assert [each["clear_caches"] for each in found if each["what"] == "up"] == [True, False, False]
