"""The drawing of a detected cabling."""

from __future__ import annotations

import pytest

from sparkcluster.cli import cabling_view
from sparkcluster.setup.cabling import cabling
from tests.unit import golden
from tests.unit.setup import wired

# By name: segments, and names of the nodes.
SHAPES = {
    "one": (wired.ONE, "ab"),
    "ring": (wired.RING, "abc"),
    "switch": (wired.SWITCH, "abcd"),
    "pairs-and-one": (wired.PAIRS, "abcde"),
    "loose": ([[("a", "p0")], *wired.ONE], "ab"),
    "one-sided": ([[("a", "p0")], [("b", "p1")]], "ab"),
}


def drawn(shape, width):
    segments, names = SHAPES[shape]
    documents = wired.documents(segments, names=names, addresses={"b": {"enp1s0f1np1": "192.168.177.12/24"}})
    if shape == "one":
        documents["a"]["neighbours"] = [{"interface": "enP2p1s0f1np1", "mac": wired.mac(1, "enp1s0f1np1")}]
        documents["b"]["neighbours"] = [{"interface": "enp1s0f1np1", "mac": wired.mac(0, "enP2p1s0f1np1")}]
    if shape == "one-sided":
        documents["a"]["neighbours"].append({"interface": "enp1s0f0np0", "mac": wired.mac(1, "enp1s0f1np1")})
    if shape == "loose":
        documents["a"]["neighbours"].append({"interface": "enp1s0f0np0", "mac": "aa:bb:cc:00:00:01"})
    surveys = wired.parsed(documents)
    found = cabling(surveys)
    return ["".join(parts) for parts in cabling_view.draw(surveys, found, width)]


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_cabling_is_drawn_as_in_its_file(shape, width):
    text = "\n".join(drawn(shape, width)) + "\n"
    golden.check_text(golden.ROOT / "cabling" / f"{shape}-{width}.txt", text)
    assert max(map(len, text.splitlines())) <= width
