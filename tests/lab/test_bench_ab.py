"""``bench --ab`` on two Sparks: B serves while it is measured, then the previous release serves. Stub engine."""

from __future__ import annotations

import signal

import pytest

from sparkcluster.bench import ab, record
from sparkcluster.bench.measure import Job
from sparkcluster.cli.common import fleet_of
from sparkcluster.errors import RolledBack
from sparkcluster.report import Report
from sparkcluster.spec.load import load
from tests.lab.switching import settled

CHANGE = "args.max-num-seqs=3"


class Notes(Report):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def bench(lab, monkeypatch, tmp_path):
    """``bench(change, …)``: an A/B with the given measurements, one for each run; returns its records and notes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*measuring, change=CHANGE):
        spec, steps, notes = load(lab.inventory), iter(measuring), Notes()

        def measure(fleet, spec, job, report, *, change="", seed=None):
            next(steps)()
            found = record.Record(
                cluster=lab.name, model="tiny", playbook="p", profile="quick", runs=1, kind="chat", group="default",
                nodes=[], ended="complete", change=change,
            )  # fmt: skip
            record.save(found)
            return found

        monkeypatch.setattr(ab, "measure", measure)
        with fleet_of(spec.inventory) as fleet:
            return ab.run(fleet, spec, Job(yes=True), notes, change=change), notes.notes

    return run


def test_b_serves_while_it_is_measured_and_afterwards_up_and_rollback_ignore_it(lab, cli, ranks, bench):
    def served(*, b):
        assert ("--max-num-seqs 3" in lab.sparks[0].run(["ps", "-eo", "args"]).stdout) is b
        assert cli("status", lab.inventory, "--json").ok().json["state"] == "serving"

    cli("up", lab.inventory).ok()
    before = ranks(lab)
    found, notes = bench(*(lambda b=b: served(b=b) for b in (False, True, False)))
    assert ranks(lab) != before, "not restarted"
    status = settled(lab, cli, ranks)
    assert (status["release"], status["groups"][0].get("warning")) == (3, None)
    releases = cli("releases", lab.inventory, "--json").ok().json["releases"]
    assert [(each["number"], each["operation"], each["restores"], each["running"]) for each in releases] == [
        (3, "bench", 1, True), (2, "bench", 0, False), (1, "up", 0, False),
    ]  # fmt: skip
    listed = cli("releases", lab.inventory).ok().out
    assert ("bench, restored 1" in listed, "bench: args.max-num-seqs" in listed) == (True, True), listed
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False
    back = cli("rollback", lab.inventory, "--json")
    assert (back.code, back.error["kind"]) == (2, "UsageError"), back
    assert "no rollback target" in back.error["message"]

    assert [each.change for each in found] == ["", CHANGE, ""]
    assert found[0].answers
    assert found[0].answers == found[2].answers
    assert "of downtime" in notes[0]


@pytest.mark.full
def test_the_previous_release_is_restored_if_b_fails_or_the_measurement_is_interrupted(lab, cli, ranks, bench, image):
    cli("up", lab.inventory).ok()
    with pytest.raises(RolledBack, match="release 1 serves again"):
        bench(lambda: None, change=f"image={image(lab, 'garbage', env={'STUB_FAULT': 'garbage'})}")
    with pytest.raises(KeyboardInterrupt):
        bench(lambda: None, lambda: signal.raise_signal(signal.SIGINT))
    status = settled(lab, cli, ranks)
    assert status["groups"][0].get("warning") is None
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False
