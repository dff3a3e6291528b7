"""``stage --verify`` on three Sparks: a bit flipped at rest, with unchanged size, time and inode. Stub engine."""

from __future__ import annotations

import re

import pytest

FOLDER = "/root/models/tiny"
FILE = "model.safetensors"
RECORDS = "/root/.local/state/sparkcluster/models"
FLIP = """
import os, sys
path, at = sys.argv[1], int(sys.argv[2])
before = os.stat(path)
with open(path, "r+b") as file:
    byte = file.seek(at) * 0 + file.read(1)[0]
    file.seek(at)
    file.write(bytes([byte ^ 1]))
os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
after = os.stat(path)
assert (before.st_size, before.st_mtime_ns, before.st_ino) == (after.st_size, after.st_mtime_ns, after.st_ino)
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(3)


@pytest.fixture
def lab(lab):
    """Every Spark has the model, without a record."""
    for spark in lab.sparks:
        spark.run(["sh", "-c", f"rm -rf {RECORDS} /root/kept; cp -a {FOLDER} /root/kept"])
    yield lab
    for spark in lab.sparks:
        spark.run(["sh", "-c", f"rm -rf {FOLDER} {RECORDS}; mv /root/kept {FOLDER}"])


def flip(lab, name, at=1000):
    lab.spark(name).run(["python3", "-c", FLIP, f"{FOLDER}/{FILE}", str(at)])


def sums(lab):
    return {spark.name: spark.run(["sha256sum", f"{FOLDER}/{FILE}"]).stdout.split()[0] for spark in lab.sparks}


@pytest.mark.full
def test_a_flipped_bit_in_a_directory_is_reported_and_repaired(lab, cli):
    right = sums(lab)
    names = list(right)
    wrong, source = names[2], names[0]
    cli("stage", lab.inventory, "weights", "--verify").ok()
    flip(lab, wrong)
    assert cli("stage", lab.inventory, "weights").ok().out.count("nothing is missing") == 1
    done = cli("stage", lab.inventory, "weights", "--verify").ok()
    said = rf"weights  \S+: {wrong} had a corrupt copy of {FILE} \(SHA-256 [0-9a-f]{{12}}… instead of "
    assert re.search(said + rf"{right[source][:12]}…\); replaced by the copy from {source}$", done.out, re.MULTILINE)
    assert sums(lab) == right
    again = cli("stage", lab.inventory, "weights", "--verify", "--json").ok().json
    assert again["corrupt"] == again["copied"] == []
    assert list(again["verified"].values()) == [names]
