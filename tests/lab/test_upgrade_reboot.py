"""A node that reboots during an upgrade, and a disk that fills up. Stub engine."""

from __future__ import annotations

import re

import pytest

from tests.lab.switching import STATE, images_of, one_set, settled
from tests.lab.test_upgrade_kill import FLAGS, step

pytestmark = pytest.mark.full


def test_a_node_reboot_during_an_upgrade_leaves_one_serving_release(lab, cli, ranks, two_images):
    """Ranks lost in the reboot are reported and restarted, or the new release replaces them."""
    old, new, newer = two_images
    running = cli.start("upgrade", lab.inventory, "--image", newer, *FLAGS, "--json-lines")
    running.wait_for(step("start"))
    lab.fault("right", "reboot")
    done = running.wait()
    if done.code == 1:
        assert "upgrade --resume" in done.error["hint"].replace(str(lab.inventory) + " ", ""), done
        done = cli("upgrade", lab.inventory, "--resume", *FLAGS, "--json")
    assert done.code in {0, 4}, done
    # The rank never ran: its files may be truncated, and nothing reads them.
    lab.sparks[1].run(["find", f"{STATE}/clusters", "-path", "*/ranks/*", "-name", ".partial-*", "-delete"])
    status = settled(lab, cli, ranks)
    assert images_of(status) == ({new} if done.code == 0 else {old})
    one_set(ranks, lab)
    if done.code == 4:
        # A rank that lost its peer may exit before the node is detected as unreachable, and is then the cause.
        assert re.search("left|right", done.error["message"]), done


def test_a_disk_that_fills_up_during_an_upgrade_leaves_a_serving_release_or_an_error(lab, cli, ranks, image):
    cli("up", lab.inventory).ok()
    old = images_of(settled(lab, cli, ranks))
    newer = image(lab, "newer", sparks=1, layer_bytes=20_000_000)
    running = cli.start("upgrade", lab.inventory, "--image", newer, *FLAGS, "--json-lines")
    running.wait_for(step("stop"))
    lab.fault("right", "disk-full")
    done = running.wait()
    assert done.code in {0, 1, 4}, done
    lab.heal()
    if done.code == 1:
        # The files that start the old release could not be written.
        assert "sparkcluster rollback" in done.error["hint"], done
        cli("rollback", lab.inventory, "1", "--json").ok()
    if done.code:
        assert "right" in done.error["message"] or done.error["node"] == "right", done
    # If all files were already written, the new release serves.
    assert (images_of(settled(lab, cli, ranks)) == old) is (done.code != 0)
