"""The cells of a profile, the cells that fit, and the end of a row in a sweep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkcluster.bench.profiles import TABLES, Cell, cells, expected_s, knee, skip
from sparkcluster.bench.record import Measured


def row(depth: int, *decode: float) -> list[Any]:
    return [
        SimpleNamespace(depth=depth, concurrency=2**at, figures={"decode": [each]}) for at, each in enumerate(decode)
    ]


def test_the_guide_has_the_pairs_of_the_published_table():
    assert cells("guide", None, None) == [
        Cell(58, 2), Cell(1834, 32), Cell(7234, 32), Cell(1834, 108), Cell(7234, 124)
    ]  # fmt: skip
    for cell in cells("guide", None, None):
        text = TABLES["published"][f"{cell.prompt}/{cell.answer}"]
        prefill, _, ttft_s = (float(each.replace(",", "")) for each in text.split(" / "))
        assert cell.prompt / ttft_s == pytest.approx(prefill, 0.02)


def test_the_arena_profile_has_every_pair_once_in_the_published_order():
    found = cells("arena", 131072, None)
    assert {(cell.prompt, cell.answer) for cell in found} == {(2048, 128)}
    assert all(cell.caching is (cell.depth > 0) for cell in found)
    pairs = [(cell.depth, cell.concurrency) for cell in found]
    assert (pairs[0], pairs[1], pairs[-1]) == ((8192, 5), (4096, 5), (100000, 10))
    assert sorted(pairs) == [
        (depth, at_once) for depth in (0, 4096, 8192, 16384, 32768, 65535, 100000) for at_once in (1, 2, 5, 10)
    ]


def test_a_sweep_covers_the_full_context_and_the_concurrency_of_the_engine():
    found = cells("sweep", 32768, 6)
    assert [(cell.depth, cell.concurrency) for cell in found] == [
        (depth, at_once) for depth in (0, 4096, 16384) for at_once in (1, 2, 4)
    ]
    assert {cell.concurrency for cell in cells("sweep", 4096, 1000)} == {1, 2, 4, 8, 16, 32, 64}


@pytest.mark.parametrize("profile", [*TABLES["cells"], "sweep"])
def test_a_cell_that_does_not_fit_is_skipped(profile: str):
    assert all(cell.depth + cell.prompt + cell.answer <= 6272 for cell in cells(profile, 6272, 1))
    assert not cells(profile, 32, 1)
    assert cells(profile, None, None)


def test_a_row_stops_after_two_steps_with_almost_no_gain():
    measured = row(0, 20, 38, 39, 50) + row(4096, 20, 20.5, 21)
    assert not skip(Cell(2048, 128, 0, 16), measured)
    assert skip(Cell(2048, 128, 4096, 8), measured)
    assert not skip(Cell(2048, 128, 16384, 1), measured)
    assert skip(Cell(2048, 128, 0, 32), [*measured, SimpleNamespace(depth=0, concurrency=16, figures={})])


def test_the_knee_is_the_last_concurrency_with_a_worthwhile_gain():
    assert knee(row(0, 20, 38, 60, 61, 62) + row(4096, 20, 20.5, 21)) == {0: 4, 4096: 1}


def test_the_estimated_duration_of_cells_includes_their_warm_up():
    first = Measured(2048, 128, 0, 1, figures={"prefill": [900, 1000, 1010], "decode": [20]})
    assert expected_s([Cell(2000, 100)], 3, first) == 4 * (2 + 5)
    assert expected_s([Cell(2000, 100, 4000, 2)], 1, first) == 2 * (12 + 5)


def test_rows_of_an_embedding_model_vary_the_number_of_texts():
    measured = [
        SimpleNamespace(depth=0, concurrency=2**at, figures={"texts": [each]})
        for at, each in enumerate((10, 18, 18, 17))
    ]
    assert knee(measured) == {0: 2}
    assert skip(Cell(2048, 128, 0, 16), measured)
