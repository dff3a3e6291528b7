"""Weights in a cache with files of root from containers, for a user who has Docker and no sudo. Stub engine."""

from __future__ import annotations

import re

import pytest

HUB = "/home/spark/.cache/huggingface/hub"
MODEL = f"{HUB}/models--lab--tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
# The state after NVIDIA's playbook, which mounts the directory into a container that runs as root.
DOWNLOADED_ALL = f"""
set -e
mkdir -p {MODEL}/refs {MODEL}/snapshots/{REVISION}/original
printf {REVISION} > {MODEL}/refs/main
cp /root/models/tiny/* {MODEL}/snapshots/{REVISION}
head -c 2000000 /dev/zero > {MODEL}/snapshots/{REVISION}/original/consolidated.00.pth
chown -R spark:spark /home/spark/.cache
"""
ROOTS = f"""
set -e
install -d -o spark -g spark /home/spark/.cache
mkdir -p {MODEL}/blobs {HUB}/models--other--model
touch {MODEL}/blobs/cut.incomplete
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: full}, {name: bare}]\n")


@pytest.fixture
def inventory(lab, variant):
    """The inventory of the user ``spark``, without sudo; one Spark has the model with all files of the hub."""
    for spark in lab.sparks:
        spark.run(["sh", "-c", "rm -rf /home/spark/.cache /home/spark/.local; mv /etc/sudoers.d/spark /etc/spark"])
    lab.spark("full").run(["sh", "-c", DOWNLOADED_ALL])
    lab.spark("bare").run(["sh", "-c", ROOTS])
    yield variant(lab, ssh={"user": "spark"}, playbook={"model": {"path": None, "id": "lab/tiny"}})
    for spark in lab.sparks:
        spark.run(["sh", "-c", "rm -rf /home/spark/.cache /home/spark/.local; mv /etc/spark /etc/sudoers.d/spark"])


def owners(spark, folder):
    lines = spark.run(["find", folder, "-printf", "%u %p\n"]).stdout.splitlines()
    return {path: owner for owner, path in (line.split(" ", 1) for line in lines)}


@pytest.mark.full
def test_a_cache_owned_by_root_is_detected_and_repaired_and_only_served_files_are_copied(
    lab, cli, preflight, inventory
):
    assert ("HOST-031", "bare", "info") in preflight(inventory).notes
    dry = cli("stage", inventory, "weights", "--dry-run").ok()
    assert re.search(r"^weights +bare +full ", dry.out, re.MULTILINE)
    bare = lab.spark("bare")
    assert set(owners(bare, HUB).values()) == {"root"}

    staged = cli("stage", inventory, "weights").ok()
    assert (
        f"{MODEL} belongs to root: changing the owner of the folders of lab/tiny to spark, in a container" in staged.err
    )
    after = owners(bare, HUB)
    mine = {path for path, owner in after.items() if owner == "spark"}
    assert mine == {path for path in after if "models--lab--tiny" in path}
    assert after[HUB] == after[f"{HUB}/models--other--model"] == "root"
    assert f"{MODEL}/snapshots/{REVISION}/config.json" in after
    assert not [path for path in after if "original" in path]
    assert f"{MODEL}/snapshots/{REVISION}/original/consolidated.00.pth" in owners(lab.spark("full"), MODEL)
    cli("stage", inventory, "weights", "--verify").ok()
    assert "nothing is missing" in cli("stage", inventory, "weights").ok().out
    assert not [each for each in preflight(inventory).notes if each[0] == "HOST-031"]
