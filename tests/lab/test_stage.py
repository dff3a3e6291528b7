"""``stage`` on two Sparks of which one has nothing: real images, real files, and nothing is started."""

from __future__ import annotations

import re
import signal

import pytest

from sparkcluster.lab.machine import wait_until

FILE = "/root/models/tiny/merges.txt"
FILE_BYTES = 24_000_000


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: full}, {name: bare, image: absent, model: absent}]\n")


def test_one_spark_copies_to_the_other_and_stage_starts_nothing(lab, cli, ranks):
    dry = cli("stage", lab.inventory, "--dry-run").ok()
    assert re.search(r"^image +bare +full +[\d.]+ [GM]B", dry.out, re.MULTILINE)
    assert re.search(r"^weights +bare +full +[\d.]+ [GM]B +[\d.]+ s ", dry.out, re.MULTILINE)
    assert cli("stage", lab.inventory, "--dry-run").ok().out == dry.out

    done = cli("stage", lab.inventory, "weights", "--json").ok().json
    assert [(copy["what"], copy["node"], copy["source"]) for copy in done["copied"]] == [("weights", "bare", "full")]
    assert done["copied"][0]["bytes"] > 0
    assert done["staging"][0]["missing"] == {"bare": "missing"}

    staged = cli("stage", lab.inventory).ok()
    assert re.search(r"image  \S+: bare from full, [\d.]+ [GM]B in [\d.]+ s, [\d.]+ [GM]B/s", staged.out)
    assert re.search(r"weights  \S+: nothing is missing", staged.out)
    assert "bare: image" in staged.err

    again = cli("stage", lab.inventory, "--verify").ok()
    assert re.search(r"image  \S+: nothing is missing", again.out)
    assert not any(ranks(lab).values())


@pytest.fixture
def lacking(lab):
    """``bare`` has neither image nor model, which has a file that takes a minute to copy."""
    full, bare = lab.spark("full"), lab.spark("bare")
    full.run(["sh", "-c", f"head -c {FILE_BYTES} /dev/urandom > {FILE}"])
    bare.run(["sh", "-c", f"rm -rf $(dirname {FILE}); docker image rm -f $(docker images -q)"], check=False)
    yield bare
    full.run(["rm", FILE])


def arrived(spark):
    """Bytes of the file on ``spark``."""
    found = spark.run(["sh", "-c", f"cd $(dirname {FILE}) && stat -c %s .merges.txt.*.partial merges.txt"], check=False)
    return max(map(int, found.stdout.split()), default=0)


def copying(lab, cli, lacking):
    """A copy of weights that has begun and takes about a minute."""
    lab.fault("full", "slow-link", "2mbit")
    stage = cli.start("stage", lab.inventory, "weights", "--json")
    assert wait_until(lambda: arrived(lacking) > FILE_BYTES // 10, limit_s=300)
    return stage


@pytest.mark.full
def test_a_copy_holds_the_lease_and_survives_a_short_outage(lab, cli, ranks, lacking):
    stage = copying(lab, cli, lacking)
    refused = cli("stage", lab.inventory, "weights", "--json")
    assert (refused.code, refused.error["kind"]) == (3, "LeaseHeld"), refused
    assert f"(pid {stage.pid}) is running stage on " in refused.error["message"]
    status = cli("status", lab.inventory, "--json").json
    assert (status["lease"], status["staging"]["operation"]) == (None, "stage")
    assert not any(ranks(lab).values())
    cli("down", lab.inventory).ok()

    for spark in lab.sparks:
        lab.fault(spark.name, "silence", "40")
    (copy,) = stage.wait().ok().json["copied"]
    assert (copy["node"], copy["source"]) == ("bare", "full")
    assert FILE_BYTES <= copy["bytes"] < 1.01 * FILE_BYTES + 1_000_000, "a file was copied twice"
    assert len({spark.run(["sha256sum", FILE]).stdout for spark in lab.sparks}) == 1
    assert lacking.run(["sh", "-c", "ls -A $(dirname $0)", FILE]).stdout.count("partial") == 0


@pytest.mark.full
def test_a_copy_ends_when_another_operator_takes_the_lease_and_stages_something_else(lab, cli, variant, lacking):
    lab.spark("full").run(
        ["sh", "-c", "cp -r $(dirname $0) /root/models/other; rm /root/models/other/merges.txt", FILE]
    )
    stage = copying(lab, cli, lacking)
    stage.kill(signal.SIGSTOP)
    other = variant(lab, playbook={"model": {"path": "/root/models/other"}})
    assert wait_until(lambda: cli("stage", other, "weights").code == 0, limit_s=300)  # the lease expires after 60 s
    size = arrived(lacking)
    stage.kill(signal.SIGCONT)
    failed = stage.wait()
    # its connections have ended as well; which is noticed first varies
    assert (failed.code, failed.error["kind"] in {"LeaseLost", "StageError"}) == (1, True), failed.error
    assert 0 < size == arrived(lacking) < FILE_BYTES
