"""``upgrade`` and ``rollback`` on two Sparks: a running release is replaced by a working one, or kept. Stub engine."""

from __future__ import annotations

import re
import tarfile
import time

import pytest
import yaml

from tests.lab.switching import STATE, Client, complete, images_of, one_set, settled


@pytest.fixture
def upgrade(cli):
    """``upgrade(inventory, image, *flags)`` does not compare speed: the stub's is noise."""

    def run(inventory, image, *more, env=None):
        words = ("--image", image) if image else ()
        return cli("upgrade", inventory, *words, "--min-speed", "0", "--json", *more, env=env)

    return run


def releases(cli, inventory):
    return cli("releases", inventory, "--json").ok().json["releases"]


def ids(found):
    """The containers of every Spark."""
    return {node: [identity for identity, _, _ in containers] for node, containers in found.items()}


def test_upgrade_switches_to_a_working_image_and_rolls_back_from_a_broken_one(lab, cli, image, ranks, upgrade):
    first = cli("up", lab.inventory, "--json").ok().json
    old = images_of(cli("status", lab.inventory, "--json").ok().json)
    newer = image(lab, "newer")
    before = one_set(ranks, lab)
    with Client(first["groups"][0]["endpoint"], first["model"]) as client:
        client.wait_for_answer(0)
        running = cli.start(
            *("upgrade", lab.inventory, "--image", newer, "--min-speed", "0", "--json-lines", "--yes"),
        )
        running.wait_for('"event": "step", "name": "check"')
        checked = time.monotonic()
        done = running.wait().ok().json
        client.wait_for_answer(time.monotonic())
        assert [failure for failure in client.failed if failure[0] < checked] == [], "while it is prepared"
    assert {key: done[key] for key in ("cluster", "state", "changed", "release", "from", "model")} == {
        "cluster": lab.name,
        "state": "serving",
        "changed": True,
        "release": 2,
        "from": 1,
        "model": "tiny",
    }
    assert 0 < done["downtime_s"] <= done["seconds"]
    assert done["groups"] == first["groups"]
    status = settled(lab, cli, ranks)
    assert status["release"] == 2
    new = images_of(status)
    assert new.isdisjoint(old)
    assert ids(ranks(lab)) != ids(before)
    listed = [(each["number"], each["image"], each["running"]) for each in releases(cli, lab.inventory)]
    assert listed == [(2, newer, True), (1, yaml.safe_load(lab.playbook.read_text())["image"], False)]

    written = lab.inventory.read_text()
    assert cli("status", lab.inventory, "--json").ok().json["groups"][0]["warning"].startswith("differs from")
    refused = cli("up", lab.inventory, "--json")
    keep = f"sparkcluster upgrade {lab.inventory} --image {newer} --save   "
    assert refused.error["hint"].startswith(keep), refused
    now = ranks(lab)
    assert upgrade(lab.inventory, newer, "--save").ok().json["saved"] is True
    assert f"image: {newer}" in lab.inventory.read_text()
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False
    lab.inventory.write_text(written)

    again = upgrade(lab.inventory, newer).ok().json
    assert (again["changed"], again["release"], again["state"]) == (False, 2, "serving")
    missing = upgrade(lab.inventory, "sparkcluster-lab/nobody-has-it:1")
    assert missing.code == 1, missing
    assert "sparkcluster-lab/nobody-has-it:1" in str(missing.json), missing
    assert ranks(lab) == now

    broken = image(lab, "garbage", **env("garbage"))
    failed = upgrade(lab.inventory, broken)
    assert (failed.code, failed.error["kind"]) == (4, "RolledBack"), failed
    assert re.search(r"garbage.*release 2 serves again, as release 3$", failed.error["message"]), failed
    status = cli("status", lab.inventory, "--json").ok().json
    assert (status["release"], images_of(status)) == (3, new)
    assert broken not in [each["image"] for each in releases(cli, lab.inventory)]

    restarted = cli("restart", lab.inventory, "--json").ok().json
    assert (restarted["state"], restarted["release"], restarted["restored"]) == ("serving", 4, 3)
    assert images_of(cli("status", lab.inventory, "--json").ok().json) == new
    back = cli("rollback", lab.inventory, "--json").ok().json
    assert (back["state"], back["changed"], back["release"], back["from"]) == ("serving", True, 5, 4)
    status = settled(lab, cli, ranks)
    assert (status["release"], images_of(status)) == (5, old)


def env(fault):
    return {"env": {"STUB_FAULT": fault}}


@pytest.mark.full
def test_upgrade_rolls_back_from_a_slower_image(lab, cli, image, ranks):
    cli("up", lab.inventory).ok()
    old = images_of(settled(lab, cli, ranks))
    done = cli("upgrade", lab.inventory, "--image", image(lab, "slow", **env("slow=10")), "--json")
    assert (done.code, done.error["kind"]) == (4, "RolledBack"), done
    assert "slower" in done.error["message"]
    assert images_of(settled(lab, cli, ranks)) == old


@pytest.mark.full
def test_without_a_rollback_target_a_broken_image_is_left_to_the_user(lab, cli, image, ranks, upgrade):
    cli("up", lab.inventory).ok()
    old = images_of(settled(lab, cli, ranks))
    done = upgrade(lab.inventory, image(lab, "garbage", **env("garbage")), "--no-rollback")
    assert done.code == 1, done
    assert "garbage" in done.error["message"]
    one_set(ranks, lab)
    path = re.search(r"bundle: (\S+/bundle\.tar\.gz);", done.error["hint"])[1]
    with tarfile.open(path) as archive:
        assert {name.split("/", 1)[1].partition("/")[0] for name in archive.getnames()} >= {"logs", "doctor.json"}
    cli("rollback", lab.inventory, "--json").ok()
    assert images_of(settled(lab, cli, ranks)) == old


@pytest.mark.full
def test_a_restored_release_uses_the_current_key(lab, cli, variant, image, ranks, upgrade):
    """After a failed upgrade and after a rollback: a rotated key is not restored."""
    inventory = variant(lab, api={"key": {"env": "THE_KEY"}})
    first, second, third = ({"THE_KEY": f"kEy-{number}-value"} for number in ("first", "second", "third"))
    up = cli("up", inventory, "--json", env=first).ok().json
    url = up["groups"][0]["endpoint"]

    def accepted():
        return [complete(url, up["model"], each["THE_KEY"]) for each in (first, second, third)]

    assert accepted() == [200, 401, 401]
    upgrade(inventory, image(lab, "newer"), env=second).ok()
    assert accepted() == [401, 200, 401]
    broken = upgrade(inventory, image(lab, "garbage", **env("garbage")), env=third)
    assert broken.code == 4, broken
    assert accepted() == [401, 401, 200]
    cli("rollback", inventory, "1", "--json", env=second).ok()
    assert accepted() == [401, 200, 401]
    for spark in lab.sparks:
        modes = spark.run(["sh", "-c", f"stat -c %a {STATE}/clusters/{lab.name}/releases/*.env"]).stdout.split()
        assert set(modes) == {"600"}
