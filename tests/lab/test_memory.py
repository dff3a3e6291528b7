"""Memory of Sparks: engines get time to release it, leftovers are reported, and the page cache is dropped."""

from __future__ import annotations

import pytest

MODEL = "/root/models/tiny"
LEAK = {"env": {"STUB_FAULT": "leak=40,slow-start=60"}, "ready_timeout_s": 15}
"""A playbook whose launch fails while its engine holds shared memory, which it takes 8 s to release."""


def left(lab):
    """Files of a rank left in /dev/shm of every Spark."""
    return {
        spark.name: spark.run(["sh", "-c", "ls /dev/shm | grep psm_ || true"]).stdout.split() for spark in lab.sparks
    }


@pytest.fixture
def swept(lab):
    yield
    for spark in lab.sparks:
        spark.run(["sh", "-c", "rm -f /dev/shm/psm_*"])


@pytest.mark.full
def test_an_engine_whose_launch_failed_gets_time_to_release_its_memory(lab, cli, variant, ranks, swept):
    """At 3 s it was killed, and its memory stayed."""
    failed = cli("up", variant(lab, playbook=LEAK))
    assert failed.code == 1, failed
    assert ranks(lab) == {spark.name: [] for spark in lab.sparks}
    assert left(lab) == {spark.name: [] for spark in lab.sparks}
    assert "psm_" not in failed.err


@pytest.mark.full
def test_weights_leave_the_page_cache_before_a_start(lab, cli, variant):
    """The stub does not reread this file of the model, so its pages stay out of the cache."""
    for spark in lab.sparks:
        spark.run(
            ["sh", "-c", f"head -c 20000000 /dev/zero > {MODEL}/unread.bin; sync; cat {MODEL}/unread.bin > /dev/null"]
        )
        assert resident(spark) > 19_000_000
    try:
        done = cli("up", variant(lab, playbook={})).ok()
        assert {spark.name: resident(spark) for spark in lab.sparks} == dict.fromkeys(("left", "right"), 0)
    finally:
        for spark in lab.sparks:
            spark.run(["rm", f"{MODEL}/unread.bin"])
    assert "page cache of the image was not dropped" not in done.err


def resident(spark):
    """Bytes of the file in the page cache."""
    return int(spark.run(["fincore", "-b", "-n", "-o", "RES", f"{MODEL}/unread.bin"]).stdout)
