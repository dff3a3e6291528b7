"""Faults in the middle of a copy between four Sparks: a restart, a worker that is stopped, a slow link, an image that is removed."""

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
    """``a`` has a model, which the others get over slow links, in about ten seconds; afterwards nothing listens."""
    lab.spark("a").run(["sh", "-ec", WRITE])
    for spark in lab.sparks:
        lab.fault(spark.name, "slow-link", "40mbit")
        if spark.name != "a":
            spark.run(["sh", "-c", f"rm -rf $(dirname {FILE})"])
    yield lab
    until(lambda: not listening(lab), limit_s=10)


def listening(lab):
    """What listens on the Sparks and is written in Python, as a worker is."""
    lines = [line for spark in lab.sparks for line in spark.run(["ss", "-Htlnp"]).stdout.splitlines()]
    return [line for line in lines if "python" in line]


def names(done, node):
    """The command failed, and its error names ``node``, the cause and what to type."""
    assert done.code == 1, done
    assert done.error["node"] == node, done
    assert re.search(rf"\b{node}: \w+", done.error["message"]), done
    assert done.error["hint"], done


@contextlib.contextmanager
def stopped(spark):
    """The worker on ``spark`` is stopped by a signal, and continued at the end."""
    pid = worker(spark)
    spark.run(["kill", "-STOP", pid])
    try:
        yield
    finally:
        spark.run(["kill", "-CONT", pid])


@pytest.mark.parametrize(("name", "others"), [("a", ""), ("b", "acd")])
def test_a_node_that_restarts_is_named_and_the_next_stage_completes(lacking, cli, name, others):
    stage = cli.start("stage", lacking.inventory, "weights", "--json")
    arriving(lacking.spark("d"), FILE_BYTES // 4)
    lacking.fault(name, "reboot")
    names(stage.wait(), name)
    assert not others or len(sums(lacking, others)) == 1
    cli("stage", lacking.inventory, "weights").ok()
    assert len(sums(lacking)) == 1


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_worker_that_is_stopped_for_a_while_is_gone_past_and_goes_on(lacking, cli, name):
    stage = cli.start("stage", lacking.inventory, "weights", "--json")
    arriving(lacking.spark("d"), FILE_BYTES // 4)
    with stopped(lacking.spark(name)):
        stage.wait_for(f": {name} s")  # said, or sent, nothing for 5 s
    done = stage.wait()
    if done.code:
        names(done, name)
        assert len(sums(lacking, "acd")) == 1
        cli("stage", lacking.inventory, "weights").ok()
    assert len(sums(lacking)) == 1


def test_a_slow_node_fails_nobody_and_its_source_sends_once(lacking, cli):
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
    """Whether a part of the image is on ``d``, and more is to come."""
    found = lab.spark("d").run(["sh", "-c", f"du -sb {STAGING}/*/images"], check=False).stdout.split()
    return bool(found) and int(found[0]) > FILE_BYTES // 4


@pytest.mark.parametrize("moment", [is_saved, is_copied])
def test_an_image_that_is_removed_at_its_source_arrives_whole_or_is_named(lacking, cli, variant, image, moment):
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
