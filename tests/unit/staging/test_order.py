"""The documents between the controller and a worker."""

from __future__ import annotations

import pytest

from sparkcluster.answers import checked
from sparkcluster.errors import CommandFailed
from sparkcluster.staging.order import Said

TOKEN = "ab" * 16


@pytest.mark.parametrize(
    "answer",
    [
        {"ports": {"nowhere; rm": 70}},
        {"done": {"seconds": float("inf")}},
        {"sha256": {"-1": "0" * 64}},
        {"cert": "-----BEGIN CERTIFICATE-----\nhello, world\n"},
        {"token": "short"},
        {"left": [{"node": "b", "why": "no data"}] * 33},
    ],
)
def test_what_no_worker_says_is_the_error_of_that_node(answer):
    with pytest.raises(CommandFailed, match=r"^d sent a malformed answer to stage"):
        checked(Said, answer, node="d", step="stage")
