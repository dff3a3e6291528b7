"""``models`` and ``models --prune`` on two Sparks. Stub engine."""

from __future__ import annotations

import pytest

HUB = "/root/.cache/huggingface/hub"
REVISION = "0123456789abcdef0123456789abcdef01234567"
STATE = "/root/.local/state/sparkcluster"


def downloaded(name):
    """A model in the cache, with blobs as the hub's client stores them."""
    root = f"{HUB}/models--{name.replace('/', '--')}"
    return f"""
set -e
mkdir -p {root}/refs {root}/blobs {root}/snapshots/{REVISION}
printf {REVISION} > {root}/refs/main
cd /root/models/tiny
for file in *; do
  sum=$(sha256sum "$file" | cut -d' ' -f1)
  cp "$file" {root}/blobs/$sum
  ln -s ../../blobs/$sum {root}/snapshots/{REVISION}/$file
done
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: full}, {name: bare}]\n")


@pytest.fixture
def inventories(lab, variant):
    """Two playbooks: lab/tiny from the cache, which only ``full`` has; and a directory."""
    script = f"rm -rf {HUB} {STATE}/models"
    for spark in lab.sparks:
        spark.run(["sh", "-c", script])
    for name in ("lab/tiny", "lab/own"):
        lab.spark("full").run(["sh", "-c", downloaded(name)])
    lab.spark("bare").run(["sh", "-c", downloaded("lab/own")])
    yield variant(lab, playbook={"model": {"path": None, "id": "lab/tiny"}}), lab.inventory
    for spark in lab.sparks:
        spark.run(["sh", "-c", script])


def cache(spark):
    return spark.run(["sh", "-c", f"cd {HUB} && find . | sort && find . -type f -exec sha256sum {{}} + | sort"]).stdout


def listed(document):
    return {
        each["name"]: {node: (model["bytes"] > 0, model["staged_bytes"] > 0) for node, model in each["nodes"].items()}
        for each in document["models"]
    }


@pytest.mark.full
def test_staged_weights_are_removed_when_nothing_uses_them(lab, cli, inventories):
    serving, other = inventories
    before = {spark.name: cache(spark) for spark in lab.sparks}
    cli("stage", serving, "weights").ok()
    found = cli("models", serving, "--json").ok().json
    assert listed(found)["lab/tiny"] == {"full": (True, False), "bare": (True, True)}
    assert listed(found)["lab/own"] == {"full": (True, False), "bare": (True, False)}
    assert cli("models", serving, "--prune", "--yes").ok().out == "nothing to remove\n"

    lines = cli("models", other).ok().out.splitlines()
    assert lines[0].split() == ["MODEL", "SIZE", "STAGED", "NODES", "NAMED", "BY"]
    assert {line.split()[0] for line in lines[1:]} >= {"lab/own", "lab/tiny"}

    refused = cli("models", other, "--prune")
    assert refused.code == 2
    assert "nothing was removed" in refused.err
    done = cli("models", other, "--prune", "--yes", "--json").ok().json
    assert list(done["removed"]) == ["lab/tiny"]
    assert done["removed"]["lab/tiny"]["bare"] > 0
    assert {spark.name: cache(spark) for spark in lab.sparks} == before
