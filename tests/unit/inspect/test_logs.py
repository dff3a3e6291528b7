"""Logs of ranks that are followed while their nodes come and go."""

from __future__ import annotations

from sparkcluster.errors import AuthFailed, CommandFailed
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import logs
from sparkcluster.launch.watching import Gone, Lines, LoginFailed
from sparkcluster.probing.collect import Collected


def test_a_login_that_fails_while_logs_are_followed_is_said(world, monkeypatch):
    site = world("alpha")
    site.run(site.plan(3))
    monkeypatch.setattr(logs, "collect_facts", lambda *_: Collected(site.facts, {}))
    events = iter(
        [
            LoginFailed("alpha", AuthFailed("alpha accepts no key", node="alpha")),
            Lines("alpha", "r", ("loading",)),
            Gone("alpha", CommandFailed("watch ended", node="alpha")),
        ]
    )

    class Scripted:
        def __init__(self, *_, **__): ...
        def __enter__(self):
            return self

        def __exit__(self, *_): ...
        def next(self, _timeout_s):
            return next(events)

    monkeypatch.setattr(logs, "Watching", Scripted)
    shown = []
    fleet = Fleet({"alpha": FakeHost("alpha")})
    logs.follow(fleet, site.spec, lambda node, lines: shown.append(lines[0]), node=None, tail=1, go_on=True)
    assert shown == ["[sparkcluster] alpha accepts no key: trying again", "loading", "[sparkcluster] watch ended"]
