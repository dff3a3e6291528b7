"""A node that reboots in the middle of an upgrade, and a disk that fills up. Stub engine."""

from __future__ import annotations

import pytest

from tests.lab.switching import images_of, one_set, settled
from tests.lab.test_upgrade_kill import AFTER, BEFORE, FLAGS, UPGRADE_S, comes_to

pytestmark = pytest.mark.full


@pytest.fixture
def two_images(lab, cli, image):
    """The cluster serves; ids of its image and of a build that it can be switched to, and the reference of that."""
    cli("up", lab.inventory).ok()
    newer = image(lab, "newer")
    (old,) = images_of(cli("status", lab.inventory, "--json").ok().json)
    new = lab.sparks[0].run(["docker", "images", "-q", "--no-trunc", newer]).stdout.strip()
    assert old != new
    return old, new, newer


@pytest.mark.parametrize("node", ["left", "right"])
@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_node_that_reboots_leaves_one_release_that_serves(lab, cli, ranks, two_images, point, node):
    """What it takes with it is seen, named, and brought back, or the new release takes its place."""
    old, new, newer = two_images
    running = cli.start("upgrade", lab.inventory, "--image", newer, *FLAGS, "--json-lines")
    running.wait_for(comes_to(point), timeout=120)
    lab.fault(node, "reboot")
    done = running.wait(UPGRADE_S)
    print(point, node, done)
    assert done.code in {0, 4}, done
    status = settled(lab, cli, ranks)
    assert images_of(status) == ({new} if done.code == 0 else {old})
    one_set(ranks, lab)
    if done.code == 4:
        assert node in done.error["message"], done
