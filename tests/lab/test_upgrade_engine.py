"""``upgrade`` and ``rollback`` of the real engine on two virtual Sparks, tensor parallel: vLLM, Ray, SSH, Docker."""

from __future__ import annotations

import pytest

from tests.lab.switching import images_of, settled

pytestmark = [pytest.mark.engine, pytest.mark.full]

# Archives of Docker before 25 name no layers, so that all of an image travels.
SPARKS = """
sparks:
- {name: left, system: debian-13}
- {name: right, system: debian-13}
"""
LAYER_BYTES = 20_000_000
UPGRADE_S = 600


@pytest.fixture(scope="module")
def shared_lab(make_mixed_lab):
    return make_mixed_lab(SPARKS, engine="vllm")


def test_an_image_with_one_changed_layer_is_switched_to_and_back(lab, cli, image, ranks, capsys):
    """The answers of a seeded model at temperature 0 are the same before, after, and after the way back."""

    def answer():
        asked = cli("ask", lab.inventory, "What is a DGX Spark?", "--max-tokens", "16", "--json", timeout=120)
        return asked.ok().json["content"]

    first = cli("up", lab.inventory, "--json", timeout=UPGRADE_S).ok().json
    old, before = images_of(settled(lab, cli, ranks)), answer()
    newer = image(lab, "newer", sparks=1, layer_bytes=LAYER_BYTES)

    dry = cli("upgrade", lab.inventory, "--image", newer, "--dry-run", "--json", timeout=120).ok().json
    assert dry["expected_downtime_s"] > 0

    # The speed of two shared cores is noise.
    words = ("--image", newer, "--min-speed", "0.1", "--json")
    done = cli("upgrade", lab.inventory, *words, timeout=UPGRADE_S).ok().json
    assert LAYER_BYTES <= done["moved_bytes"] < 1.2 * LAYER_BYTES
    assert 0 < done["downtime_s"] < done["seconds"]
    speed = done["speed"]["default"]
    assert speed["before"] > 0
    assert speed["after"] > 0
    new = images_of(settled(lab, cli, ranks))
    assert new.isdisjoint(old)
    assert answer() == before

    back = cli("rollback", lab.inventory, "--json", timeout=UPGRADE_S).ok().json
    assert images_of(settled(lab, cli, ranks)) == old
    assert answer() == before
    assert (first["release"], done["release"], back["release"]) == (1, 2, 3)
    with capsys.disabled():
        print(
            f"\nupgrade: {done['moved_bytes']} bytes moved, down {done['downtime_s']} s of {done['seconds']} s; "
            f"rollback: down {back['downtime_s']} s of {back['seconds']} s"
        )
