"""The logs of a failed launch outlive its ranks."""

from __future__ import annotations

import pytest

from sparkcluster.errors import LaunchError, Reason
from sparkcluster.runtime.failed_logs import keep, lines_of, read


def failed(logs, message="it ended", *, reason=None, **context):
    error = LaunchError(message, **context)
    error.logs, error.reason = logs, reason
    return error


def test_every_node_has_a_log_file_readable_by_the_user_only(tmp_path):
    place = tmp_path / "failed" / "pair"
    keep(place, [failed({"alpha": ("first", "last"), "beta": ()})])
    assert (place / "alpha.log").read_text() == "first\nlast\n"
    assert (place / "beta.log").read_text() == ""
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_saved_log_is_read_back_with_the_line_of_the_cause(tmp_path):
    error = failed(
        {"alpha": ("a\nb", "why"), "b/c": ("x",)}, "rank ended", reason=Reason("alpha", "why", 2), node="b/c", hint="h"
    )
    keep(tmp_path, [error])
    assert error.reason.place == f"{tmp_path}/alpha.log:2"
    found = read(tmp_path)
    assert (found.message, found.hint, found.node) == ("rank ended", "h", "b/c")
    assert found.reason == error.reason
    assert {node: lines_of(path) for node, path in found.logs.items()} == {"alpha": ["a�b", "why"], "b/c": ["x"]}
    assert found.described(found.at_s + 7200) == (
        f"the last launch that failed, 2 h ago: rank ended; {tmp_path}/alpha.log:2: why"
    )


@pytest.mark.parametrize("text", [None, "[]", '{"at_s": "x", "logs": []}'])
def test_a_damaged_or_missing_log_counts_as_none(tmp_path, text):
    if text is not None:
        (tmp_path / "failure.json").write_text(text)
    assert read(tmp_path) is None


def test_a_name_is_not_a_path_and_an_undecodable_character_not_an_error(tmp_path):
    keep(tmp_path / "in", [failed({"../a b": ("\udcff",)})])
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["..-a-b.log", "failure.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
