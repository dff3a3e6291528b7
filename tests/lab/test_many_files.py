"""A model of sixty thousand small files, and one with a file of 8 GB: from one Spark to another, in the hub's cache."""

from __future__ import annotations

import pytest
from staging_lab import HUB, Memory

from sparkcluster.lab.engine.model import tiny_model_files

pytestmark = pytest.mark.full

FILES, SMALL_BYTES = 60_000, 1500
LARGE_BYTES = 8 * 10**9
MOST_MEMORY = 64 << 20
RAILS = "cat /sys/class/net/en*/statistics/tx_packets"

# As the hub's client leaves it: content in blobs named by their SHA-256, links in a snapshot. Holes take no disk.
WRITE = """
import hashlib, json, os, sys
top, small, small_bytes, large_bytes = sys.argv[1], *map(int, sys.argv[2:5])
snapshot = top + "/snapshots/" + "1" * 40
os.makedirs(top + "/blobs"), os.makedirs(snapshot + "/data"), os.makedirs(top + "/refs")
def put(name, head, size):
    with open(top + "/fresh", "w+b") as file:
        file.write(head)
        file.truncate(max(size, len(head)))
        file.seek(0)
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    os.rename(top + "/fresh", top + "/blobs/" + digest.hexdigest())
    os.symlink("../" * (2 + name.count("/")) + "blobs/" + digest.hexdigest(), snapshot + "/" + name)
for number in range(small):
    put("data/%05d.json" % number, b"%d" % number, small_bytes)
head = json.dumps({"w": {"dtype": "U8", "shape": [large_bytes], "data_offsets": [0, large_bytes]}}).encode()
put("model.safetensors", len(head).to_bytes(8, "little") + head, 8 + len(head) + large_bytes)
for name, text in zip(("config.json", "tokenizer.json"), sys.argv[5:]):
    put(name, text.encode(), 0)
with open(top + "/refs/main", "w") as file:
    file.write("1" * 40)
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: source}, {name: target}]\n")


@pytest.fixture
def stage(lab, cli, variant):
    """Writes a model on the first Spark, and stages it: what the command says, and the most memory of its programs."""
    source, target = lab.sparks
    target.run(["sh", "-c", f"mkdir -p {HUB} && mount -t tmpfs -o size=9g tmpfs {HUB}"])
    top = f"{HUB}/models--lab--model"

    def run(small, large_bytes):
        texts = [tiny_model_files()[name].decode() for name in ("config.json", "tokenizer.json")]
        numbers = [str(number) for number in (small, SMALL_BYTES, large_bytes)]
        source.run(["python3", "-c", WRITE, top, *numbers, *texts], timeout_s=300)
        memory = Memory(lab.sparks)
        with memory:
            done = cli(
                "stage",
                variant(lab, playbook={"model": {"path": None, "id": "lab/model"}}),
                "weights",
                "--json",
                timeout=400,
            )
        done.ok()
        names = [
            spark.run(["sh", "-c", f"cd {top} && find blobs snapshots refs ! -type d | sort | sha256sum"]).stdout
            for spark in lab.sparks
        ]
        assert names[0] == names[1]
        return done.json, memory.most

    yield run
    target.run(["umount", HUB])
    for spark in lab.sparks:
        spark.run(["sh", "-c", f"rm -rf {top} /root/.local/state/sparkcluster/models"], timeout_s=300)


def packets(spark):
    return sum(map(int, spark.run(["sh", "-c", RAILS]).stdout.split()))


def test_sixty_thousand_small_files_cost_no_round_trip_each(stage, lab):
    """Who receives them sends fewer packets than there are files, so it does not ask for each."""
    target = lab.spark("target")
    before = packets(target)
    done, most = stage(FILES, 1000)
    assert packets(target) - before < FILES / 4
    assert done["copied"][0]["bytes"] > FILES * SMALL_BYTES
    assert 0 < most <= MOST_MEMORY


def test_a_file_of_8_gb_takes_no_more_memory_than_another_one(stage):
    done, most = stage(0, LARGE_BYTES)
    assert done["copied"][0]["bytes"] > LARGE_BYTES
    assert 0 < most <= MOST_MEMORY
