"""``logs`` on the command line: refused flags, and output on the terminal."""

from __future__ import annotations

import pytest

from sparkcluster.cli import common
from sparkcluster.cli import logs as command
from sparkcluster.cli.main import guarded
from sparkcluster.errors import LaunchError, Reason
from sparkcluster.runtime import failed_logs


@pytest.fixture
def failed(world, monkeypatch, tmp_path):
    """The spec of a cluster whose last launch failed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    site = world()
    error = LaunchError("the rank on alpha ended", node="alpha", hint="set less; then sparkcluster up INVENTORY")
    error.logs = {"alpha": ("one", "why \x1b[2J", "three"), "beta": ()}
    error.reason = Reason("alpha", "why \x1b[2J", 2)
    failed_logs.keep(failed_logs.directory(site.spec.inventory.cluster), [error])
    for module in (common, command):
        monkeypatch.setattr(module, "load_spec", lambda _: site.spec)
    return failed_logs.directory(site.spec.inventory.cluster)


def test_the_saved_log_is_printed_with_the_line_of_the_cause(failed, capsys):
    assert guarded(["logs", "my(pair).yaml", "--failed"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == ["alpha | one", "alpha | why �[2J", "alpha | three"]
    assert told.err.splitlines()[1:] == [
        f"{failed}/alpha.log:2: why �[2J",
        "hint: set less; then sparkcluster up 'my(pair).yaml'",
    ]
