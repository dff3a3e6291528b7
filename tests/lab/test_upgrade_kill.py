"""``upgrade`` killed, paused or interrupted at any point, and finished by another command. Stub engine."""

from __future__ import annotations

import re
import shutil
import signal
import time

import pytest
import yaml

from tests.lab.switching import STATE, images_of, one_set, settled
from tests.lab.test_kill import step
from tests.lab.test_lease import lapsed

FLAGS = ("--min-speed", "0", "--yes")


@pytest.fixture
def elsewhere(tmp_path):
    """A copy of the inventory in a separate directory."""

    def write(lab):
        path = tmp_path / "elsewhere" / "inventory.yaml"
        path.parent.mkdir(exist_ok=True)
        return shutil.copy(lab.inventory, path)

    return write


def killed(cli, lab, reference, point, number=signal.SIGKILL, flag="--image", *, after_s=0.0):
    """An upgrade that got a signal at a step, or some time after it."""
    running = cli.start("upgrade", lab.inventory, flag, reference, *FLAGS, "--json-lines")
    running.wait_for(step(point))
    time.sleep(after_s)
    running.kill(number)
    return running


def ended(lab, cli, ranks, images, release=None):
    """The cluster has settled on one of ``images``, and a second check changes nothing; returns the image's ID."""
    status = settled(lab, cli, ranks)
    (found,) = images_of(status)
    assert found in images
    assert release is None or status["release"] == release
    return found


@pytest.mark.parametrize("point", ["start", pytest.param("record", marks=pytest.mark.full)])
def test_resume_finishes_a_killed_upgrade(lab, cli, make_cli, ranks, two_images, elsewhere, tmp_path, point):
    """By another operator, who has the inventory but not the playbook of the switch."""
    old, new, newer = two_images
    one_set(ranks, lab)
    playbook = tmp_path / "newer.yaml"
    playbook.write_text(yaml.safe_dump({**yaml.safe_load(lab.playbook.read_text()), "image": newer}))
    killed(cli, lab, playbook, point, flag="--playbook")
    playbook.unlink()
    other = make_cli()
    done = other("upgrade", elsewhere(lab), "--resume", "--json", "--yes")
    assert done.code in {0, 4}, done
    ended(lab, other, ranks, {old, new})


@pytest.mark.full
def test_up_finishes_a_killed_upgrade(lab, cli, make_cli, ranks, two_images):
    """Its playbook names the old image: if the new one serves, up reports it and changes nothing."""
    old, new, newer = two_images
    killed(cli, lab, newer, "start")
    other = make_cli()
    done = other("up", lab.inventory, "--json")
    found = ended(lab, other, ranks, {old, new})
    assert done.code == 0 or (found == new and done.error["kind"] == "OtherPlan"), done


@pytest.mark.full
def test_resume_finishes_an_upgrade_after_the_head_lost_all_state(lab, cli, make_cli, ranks, two_images, elsewhere):
    """The secrets of the previous release are lost with it: the current configuration starts with today's secrets."""
    old, new, newer = two_images
    killed(cli, lab, newer, "stop")
    lab.sparks[0].run(["rm", "-rf", f"{STATE}/clusters"])
    other = make_cli()
    done = other("upgrade", elsewhere(lab), "--resume", "--json")
    assert done.code == 1, (done.out, done.err)
    assert "lost the secrets of release 1" in done.error["message"]
    assert re.search("sparkcluster down .*, then sparkcluster up ", done.error["hint"])
    other("down", lab.inventory).ok()
    other("up", lab.inventory).ok()
    assert ended(lab, other, ranks, {old, new}) == old


@pytest.mark.full
def test_an_upgrade_killed_during_its_rollback_ends_with_the_old_release(lab, cli, make_cli, ranks, image, two_images):
    old = two_images[0]
    broken = image(lab, "garbage", env={"STUB_FAULT": "garbage"})
    running = cli.start("upgrade", lab.inventory, "--image", broken, *FLAGS, "--json-lines")
    running.wait_for(step("rollback"))
    time.sleep(3)
    running.kill()
    other = make_cli()
    done = other("upgrade", lab.inventory, "--resume", "--json")
    assert done.code in {0, 4}, done
    assert ended(lab, other, ranks, {old}) == old


@pytest.mark.full
def test_a_paused_upgrade_that_another_operator_finished_changes_nothing_when_resumed(
    lab, cli, make_cli, ranks, image, two_images
):
    old = two_images[0]
    slow = image(lab, "slow", env={"STUB_FAULT": "slow-start=40"})
    new = lab.sparks[0].run(["docker", "images", "-q", "--no-trunc", slow]).stdout.strip()
    running = cli.start("upgrade", lab.inventory, "--image", slow, *FLAGS, "--json-lines")
    running.wait_for("loading weights")
    running.kill(signal.SIGSTOP)
    other = make_cli()
    try:
        lapsed(lab)
        done = other("upgrade", lab.inventory, "--resume", "--json")
        assert done.code in {0, 4}, done
        before = one_set(ranks, lab)
    finally:
        running.kill(signal.SIGCONT)
    woken = running.wait()
    assert woken.code == 1, woken
    assert woken.error["kind"] in {"LeaseLost", "HostSilent"}, woken
    assert ranks(lab) == before
    ended(lab, other, ranks, {old, new})
