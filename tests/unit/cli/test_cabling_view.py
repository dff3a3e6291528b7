"""The drawing of a cabling before anything is set up, and with the addresses that setup would give."""

from __future__ import annotations

import pytest

from sparkcluster.cli import cabling_view, drawing
from sparkcluster.setup.cabling import cabling
from sparkcluster.setup.rails import proposal
from tests.unit import golden
from tests.unit.setup import wired

# By name: segments, further nodes, and whether addresses are proposed.
SHAPES = {
    "one": (wired.ONE, "ab", True),
    "ring": (wired.RING, "abc", False),
    "switch": (wired.SWITCH, "abcd", True),
    "pairs-and-one": (wired.PAIRS, "abcde", False),
    "loose": ([[("a", "p0")], *wired.ONE], "ab", False),
    "one-sided": ([[("a", "p0")], [("b", "p1")]], "ab", False),
}


def drawn(shape, width):
    segments, names, proposed = SHAPES[shape]
    documents = wired.documents(segments, names=names, addresses={"b": {"enp1s0f1np1": "192.168.177.12/24"}})
    if shape == "one":
        documents["a"]["neighbours"] = [{"interface": "enP2p1s0f1np1", "mac": wired.mac(1, "enp1s0f1np1")}]
        documents["b"]["neighbours"] = [{"interface": "enp1s0f1np1", "mac": wired.mac(0, "enP2p1s0f1np1")}]
    if shape == "one-sided":
        documents["a"]["neighbours"].append({"interface": "enp1s0f0np0", "mac": wired.mac(1, "enp1s0f1np1")})
    if shape == "loose":
        documents["a"]["neighbours"].append({"interface": "enp1s0f0np0", "mac": "aa:bb:cc:00:00:01", "name": "leaf-1"})
    surveys = wired.parsed(documents)
    found = cabling(surveys)
    return cabling_view.draw(surveys, found, proposal(found, surveys, names) if proposed else None, width=width)


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_drawn_as_its_file_says(shape, width):
    text = "\n".join(drawn(shape, width)) + "\n"
    golden.check_text(golden.ROOT / "cabling" / f"{shape}-{width}.txt", text)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("shape", SHAPES)
def test_ascii_holds_the_same_lines(shape):
    lines = drawn(shape, 80)
    plain = drawing.plain(lines)
    assert all(line.isascii() and "?" not in line for line in plain)
    assert [len(line) for line in plain] == [len(line) for line in lines]


def test_both_ends_of_a_cable_hang_on_one_column():
    lines = drawn("one", 80)
    assert [line[1] for line in lines if "╡" in line] == ["╔", "╠", "╠", "╚"]


def test_what_would_change_is_marked():
    lines = drawn("one", 80)
    assert sum(" new " in line for line in lines) == 3
    assert not any(" new " in line for line in lines if "192.168.177.12" in line)


def test_one_alone_is_drawn_too():
    surveys = wired.sparks([], names="a")
    assert cabling_view.draw(surveys, cabling(surveys))[0] == "not connected"
    assert "no cable" in "\n".join(cabling_view.draw(surveys, cabling(surveys)))
