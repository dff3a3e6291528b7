"""The clock offset of a node, from one round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.facts.collect import clock


def test_a_fast_clock_has_a_positive_offset() -> None:
    assert clock(100.0, 100.2, 160.1, 0.0) == pytest.approx((60.0, 0.1))


def test_a_probe_longer_than_the_round_trip_does_not_narrow_the_error() -> None:
    assert clock(100.0, 100.2, 100.1, 7.0) == pytest.approx((0.0, 0.1))
    assert clock(100.0, 100.2, 100.1, -1.0) == pytest.approx((0.0, 0.1))


@given(
    ahead_s=st.floats(-1e6, 1e6),
    there_s=st.floats(0, 5),
    probe_s=st.floats(0, 5),
    back_s=st.floats(0, 5),
)
def test_the_true_offset_is_within_the_error(ahead_s: float, there_s: float, probe_s: float, back_s: float) -> None:
    """At any point of the round trip."""
    sent_s = 1_000.0
    told_s = sent_s + there_s + ahead_s
    offset_s, error_s = clock(sent_s, sent_s + there_s + probe_s + back_s, told_s, probe_s)
    assert abs(offset_s - ahead_s) <= error_s + 1e-6
