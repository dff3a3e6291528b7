"""Logs of ranks, read and followed while nodes disconnect and return, and saved logs of a failure."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from sparkcluster.errors import CommandFailed, LaunchError, Reason, UsageError
from sparkcluster.facts.collect import Collected
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import logs
from sparkcluster.inspect.cluster import View
from sparkcluster.runtime import failed_logs
from sparkcluster.runtime.watching import Event, RankReport
from tests.unit import watch_events

NOW = 1_764_130_000.0


@pytest.fixture
def followed(world, monkeypatch):
    """``followed(*events, **options)``: the lines shown for these events of nodes with running ranks; and the requests."""

    def run(*events, ahead=None, names="alpha beta", go_on=False, **options):
        site = world(names)
        site.run(site.plan(3))
        facts = {
            name: each.model_copy(update={"clock_offset_s": (ahead or {}).get(name, 0.0)})
            for name, each in site.facts.items()
        }
        monkeypatch.setattr(logs, "see", lambda *_: View(site.spec, Collected(facts, {}), facts))
        left, requested = iter(events), {}

        class Scripted:
            def __init__(self, _fleet, requests, **_):
                requested.update(requests)

            def __enter__(self):
                return self

            def __exit__(self, *_): ...
            def next(self, _timeout_s):
                return next(left)

        monkeypatch.setattr(logs, "Watching", Scripted)
        shown = []
        fleet = Fleet({name: FakeHost(name) for name in facts})
        logs.follow(fleet, site.spec, shown.append, node=None, tail=5, go_on=go_on, **options)
        return shown, requested

    return run


def over(node):
    """Its logs were read to their end."""
    return Event(node, over=True)


OVER = [over("alpha"), over("beta")]


def test_logs_of_all_nodes_are_merged_by_time_with_any_clock_offset(followed):
    shown, _ = followed(
        watch_events.lines("alpha", "r", ("first", "third"), times=(NOW, NOW + 2)),
        watch_events.lines("beta", "r", ("second",), times=(NOW + 61,)),
        *OVER,
        ahead={"beta": 60.0},
    )
    assert [(line.node, line.text, line.at_s) for line in shown] == [
        ("alpha", "first", NOW),
        ("beta", "second", NOW + 1),
        ("alpha", "third", NOW + 2),
    ]


def test_since_is_converted_to_the_clock_of_each_node(followed):
    _, requested = followed(*OVER, ahead={"beta": 60.0}, since_s=NOW)
    assert {node: request["since"] for node, request in requested.items()} == {"alpha": NOW, "beta": NOW + 60}


def test_only_matching_lines_are_shown_and_colours_do_not_split_a_match(followed):
    shown, _ = followed(
        watch_events.lines("alpha", "r", ("\x1b[36m(Worker)\x1b[0m ERR\x1b[31mOR x", "INFO error", "ERROR y")),
        watch_events.gone("beta", CommandFailed("watch ended", node="beta")),
        over("alpha"),
        pattern=re.compile("ERROR [xy]$"),
    )
    assert [line.text for line in shown] == [
        "(Worker) ERROR x",
        "ERROR y",
        "[sparkcluster] watch ended",
    ]


def test_following_ends_when_no_rank_runs(followed):
    """And not before: a slow node has no states at first, and last lines arrive with the next report."""
    shown, requested = followed(
        watch_events.tick("alpha", {}),
        watch_events.tick("alpha", {"r": RankReport(state="running")}),
        watch_events.tick("alpha", {"r": RankReport(state="exited", exit_code=1)}),
        watch_events.lines("alpha", "r", ("last",)),
        watch_events.tick("alpha", {"r": RankReport(state="exited", exit_code=1)}),
        watch_events.gone("beta", CommandFailed("no report from beta", node="beta")),
        go_on=True,
    )
    assert [line.text for line in shown] == ["last", "[sparkcluster] no report from beta"]
    assert all(request["follow"] for request in requested.values())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172_800)],
)
def test_a_relative_time(text, seconds):
    assert logs.moment(text, NOW) == NOW - seconds


def test_an_absolute_time():
    assert logs.moment("2025-11-26T04:06:00Z", NOW) == 1_764_129_960.0
    assert logs.moment("2025-11-26T05:06:00.5+01:00", NOW) == 1_764_129_960.5
    local = dt.datetime(2025, 11, 25).astimezone().timestamp()
    assert logs.moment("2025-11-25", NOW) == local


@pytest.mark.parametrize("text", ["", "10", "m", "10x", "-5m", "yesterday", "2025-13-01"])
def test_an_invalid_time(text):
    with pytest.raises(ValueError):
        logs.moment(text, NOW)


# ------------------------------------------------------------------------------------------- failed


@pytest.fixture
def failed(world, monkeypatch, tmp_path):
    """A failed launch of the cluster: the head's log has the cause for beta."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    site = world()
    error = LaunchError("the rank on beta failed", node="beta", hint="use less")
    error.logs = {"alpha": ("loading", "Worker 1 failed"), "beta": ("joined",)}
    error.reason = Reason("alpha", "Worker 1 failed", 2)
    failed_logs.keep(failed_logs.directory(site.spec.inventory.cluster), [error])
    return site.spec


def test_the_log_with_the_cause_is_shown_unless_another_is_requested(failed):
    found, node, lines = logs.last_failed(failed, None)
    assert (node, lines) == ("alpha", ["loading", "Worker 1 failed"])
    assert found.reason.number == 2
    assert logs.last_failed(failed, "beta")[1:] == ("beta", ["joined"])
    with pytest.raises(UsageError, match="gamma"):
        logs.last_failed(failed, "gamma")
