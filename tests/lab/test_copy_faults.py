"""Faults during a copy between four Sparks: a reboot, a paused worker, a slow link, a removed image."""

from __future__ import annotations

import contextlib
import re

import pytest
from staging_lab import MB, Rails

from tests.lab.test_relay import FILE, FILE_BYTES, STAGING, arriving, sums, worker
from tests.lab.test_serving import until

pytestmark = pytest.mark.full

MORE, MORE_BYTES = 4, 6 * MB
PAYLOAD = FILE_BYTES + MORE * MORE_BYTES
WRITE = f"""
cd $(dirname {FILE})
head -c {FILE_BYTES} /dev/urandom > {FILE}
for at in $(seq {MORE}); do head -c {MORE_BYTES} /dev/urandom > more-$at; done
"""


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    absent = "{name: b, model: absent}, {name: c, model: absent}, {name: d, model: absent}"
    return make_lab(f"sparks: [{{name: a}}, {absent}]\n")


@pytest.fixture
def lacking(lab):
    """``a`` has a model, which the others get over slow links in about ten seconds; afterwards nothing listens."""
    lab.spark("a").run(["sh", "-ec", WRITE])
    for spark in lab.sparks:
        lab.fault(spark.name, "slow-link", "40mbit")
        if spark.name != "a":
            spark.run(["sh", "-c", f"rm -rf $(dirname {FILE})"])
    yield lab
    until(lambda: not listening(lab), limit_s=10)


def listening(lab):
    """Listening processes on the Sparks that are written in Python, like a worker."""
    lines = [line for spark in lab.sparks for line in spark.run(["ss", "-Htlnp"]).stdout.splitlines()]
    return [line for line in lines if "python" in line]


def names(done, node):
    """The command failed, and its error names ``node``, the cause and the command to type."""
    assert done.code == 1, done
    assert done.error["node"] == node, done
    assert re.search(rf"\b{node}: \w+", done.error["message"]), done
    assert done.error["hint"], done


@contextlib.contextmanager
def stopped(spark):
    """Pause the worker on ``spark`` by a signal; it continues at the end."""
    pid = worker(spark)
    spark.run(["kill", "-STOP", pid])
    try:
        yield
    finally:
        spark.run(["kill", "-CONT", pid])


@pytest.mark.parametrize(("name", "others"), [("a", ""), ("b", "acd")])
def test_a_rebooting_node_is_reported_and_the_next_stage_completes(lacking, cli, name, others):
    stage = cli.start("stage", lacking.inventory, "weights", "--json")
    arriving(lacking.spark("d"), FILE_BYTES // 4)
    lacking.fault(name, "reboot")
    names(stage.wait(), name)
    assert not others or len(sums(lacking, others)) == 1
    cli("stage", lacking.inventory, "weights").ok()
    assert len(sums(lacking)) == 1


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_paused_worker_is_bypassed_and_continues_afterwards(lacking, cli, name):
    stage = cli.start("stage", lacking.inventory, "weights", "--json")
    arriving(lacking.spark("d"), FILE_BYTES // 4)
    with stopped(lacking.spark(name)):
        stage.wait_for(f": {name} s")  # no message and no data for 5 s
    done = stage.wait()
    if done.code:
        names(done, name)
        assert len(sums(lacking, "acd")) == 1
        cli("stage", lacking.inventory, "weights").ok()
    assert len(sums(lacking)) == 1


def test_a_slow_node_delays_no_other_and_its_source_sends_each_file_once(lacking, cli):
    lacking.fault("c", "slow-link", "15mbit")
    with Rails(lacking) as rails:
        done = cli("stage", lacking.inventory, "weights", "--json").ok()
    assert {copy["node"] for copy in done.json["copied"]} == set("bcd")
    assert not re.search(r"skipped|continuing with|waiting for|failed", done.err), done
    assert len(sums(lacking)) == 1
    assert rails.bytes(lacking.spark("a"), sent=True) <= 1.5 * PAYLOAD


def is_saved(lab):
    return lab.spark("a").run(["pgrep", "-f", "^docker save"], check=False).returncode == 0


def is_copied(lab):
    """Whether a part of the image is on ``d``, and more is to follow."""
    found = lab.spark("d").run(["sh", "-c", f"du -sb {STAGING}/*/images"], check=False).stdout.split()
    return bool(found) and int(found[0]) > FILE_BYTES // 4


@pytest.mark.parametrize("moment", [is_saved, is_copied])
def test_an_image_removed_at_its_source_during_the_copy_arrives_complete_or_is_reported(
    lacking, cli, variant, image, moment
):
    reference = image(lacking, moment.__name__, sparks=1, layer_bytes=FILE_BYTES)
    inventory = variant(lacking, playbook={"image": reference})
    stage = cli.start("stage", inventory, "image", "--json")
    until(lambda: moment(lacking) or stage.process.poll() is not None, pause_s=0.02)
    assert stage.process.poll() is None, stage.wait()
    lacking.spark("a").run(["docker", "rmi", "--force", reference])
    done = stage.wait()
    inspect = ["docker", "image", "inspect", "--format", "{{.Id}}", reference]
    if done.code:
        names(done, "a")
        assert all(spark.run(inspect, check=False).returncode for spark in lacking.sparks)
    else:
        cli("stage", inventory, "image").ok()
        assert len({spark.run(inspect).stdout for spark in lacking.sparks}) == 1
