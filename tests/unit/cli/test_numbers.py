"""Numbers and texts that make no sense are wrong usage, whatever they are for."""

from __future__ import annotations

import pytest

from sparkcluster.cli.main import guarded


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ask", "x.yaml", "hi", "--max-tokens", "0"], "--max-tokens: must be 1 or more, is 0"),
        (["ask", "x.yaml", "hi", "--max-tokens", "many"], "--max-tokens: "),
        (["ask", "x.yaml", " "], "PROMPT is empty"),
        (["logs", "x.yaml", "-n", "-5"], "must be 0 or more, is -5"),
        (["up", "x.yaml", "--timeout", "-1"], "--timeout: must be a number of seconds above 0"),
        (["up", "x.yaml", "--timeout", "nan"], "--timeout: must be a number of seconds above 0"),
    ],
)
def test_they_are_exit_2_with_a_hint(capsys, words, said):
    assert guarded(words) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "hint: " in told.err
    assert told.out == ""
