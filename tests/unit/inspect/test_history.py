"""What was deployed, as every node's records tell it."""

from __future__ import annotations

import pytest

from sparkcluster.inspect.history import whole

RECORD = {
    "number": 3,
    "plan_hash": "ab",
    "verified_at": 1.0,
    "operator": "ann@desk",
    "plan": {"model": "tiny", "image": None},
}


def test_a_record_as_it_is_written_is_listed():
    assert whole(RECORD)


@pytest.mark.parametrize("key", RECORD)
def test_a_record_that_lacks_something_is_passed_over(key):
    assert not whole({name: value for name, value in RECORD.items() if name != key})


def test_a_plan_that_is_none_is_passed_over():
    assert not whole({**RECORD, "plan": []})
