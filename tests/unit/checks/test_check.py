"""Rules for every check: unread facts are findings, crashes are findings, and pages are complete."""

from __future__ import annotations

import pytest

from sparkcluster import topology
from sparkcluster.checks import check_written
from sparkcluster.checks.catalogue import pages
from sparkcluster.checks.check import CATALOGUE, Check, Context, Seen, run
from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import Facts
from sparkcluster.spec.powers import SECURITY
from sparkcluster.topology.model import EMPTY

from .conftest import rails, reported

MINE = [check for code, check in CATALOGUE.items() if code.startswith(("NET-0", "HOST-", "IMG-", "MDL-"))]
OF_FACTS = [check for check in MINE if check.stage == "facts"]


def test_every_check_states_its_reason_its_remedy_and_its_source():
    sources = {code: page.source for code, page in pages().items()}
    for check in OF_FACTS:
        assert check.title, check.code
        assert 30 < len(check.why) < 200, check.code
        assert check.remedy, check.code
        assert sources[check.code], check.code
        assert set(check.needs) <= set(Facts.model_fields), check.code


@pytest.mark.parametrize("field", ["os", "weights", "hcas", "image"])
def test_a_failed_reading_is_one_finding_that_names_the_checks_that_need_it(see, field):
    findings = see({"beta": {field: Unread(unread="it hung")}})
    (unread,) = [finding for finding in findings if finding.code == "FACT-001"]
    assert reported([unread]) == [("FACT-001", "warning", "beta")]
    assert unread.seen == "it hung"
    needing = [check.code for check in OF_FACTS if field in check.needs]
    assert needing
    assert all(code in unread.why for code in needing)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"docker": Unread(unread="connection refused"), "image": Unread(unread="connection refused"),
          "ranks": Unread(unread="connection refused")}, "HOST-001"),
        ({"gpus": Unread(unread="exit 6"), "driver": Unread(unread="exit 6")}, "HOST-003"),
    ],
)  # fmt: skip
def test_a_reading_that_a_check_reports_itself_is_not_reported_twice(see, changes, code):
    assert reported(see({"beta": changes})) == [(code, "error", "beta")]


def test_an_unneeded_failed_reading_is_not_reported(see, spark):
    bare = {key: Unread(unread="not here") for key in ("docker", "gpus", "driver", "memory", "image", "ranks")}
    own = {**bare, "image": None, "engine": spark().image.inside, "memory": spark().memory}
    assert see({"me": own}, names=("me",), runtime={"kind": "process"}, playbook={"image": None}) == []
    two = {name: {**own, "driver": Unread(unread="no nvidia-smi")} for name in ("alpha", "beta")}
    assert see(two, runtime={"kind": "process"}, playbook={"image": None}) == []
    lone = {key: Unread(unread="not here") for key in ("hcas", "interfaces")}
    assert see({"solo": lone}, names=("solo",)) == []


def test_a_crashing_check_stops_no_other_check_and_its_findings_are_dropped(spark, cluster):
    def crashes(_context):
        yield Seen("half a truth", "x", node="a")
        raise ZeroDivisionError

    spec, facts = cluster({"a": "h"}), {"a": spark(rails(11), gpus=())}
    context = Context(spec, facts, topology.build(spec, facts))
    findings = run(
        context, [Check(code="NET-999", title="it holds", why="because", body=crashes), CATALOGUE["HOST-003"]]
    )
    assert reported(findings) == [("HOST-003", "error", "a"), ("NET-999", "warning", None)]
    assert "this check crashed" in findings[1].summary


def test_playbook_and_inventory_lower_the_severity_of_findings(see):
    lost = {"beta": {"infiniband_devices": False}}
    (ignored,) = see(lost, ignore=["NET-010"])
    assert reported([ignored]) == [("NET-010", "warning", "beta")]
    allow = [{"code": "NET-010", "reason": "runs over TCP here"}]
    (allowed,) = see(lost, playbook={"allow": allow})
    assert reported([allowed]) == [("NET-010", "warning", "beta")]
    assert allowed.why.endswith("; accepted by the playbook: runs over TCP here")
    warned = {"beta": {"driver_module": "580.126.09"}}
    assert see(warned, ignore=["HOST-015"])[0].severity == "info"


def test_a_merged_code_is_accepted_by_its_old_name_unless_it_is_a_protection(cluster):
    spec = cluster({"a": "h"}, ignore=["NET-044", "SM121-128"])
    context = Context(spec, {}, EMPTY)
    two = [
        Check(code=code, title="it holds", why="because", body=lambda _: [Seen("x", "y")])
        for code in ("NET-043", "MDL-004")
    ]
    assert {finding.code: finding.severity for finding in run(context, two)} == {
        "NET-043": "warning",
        "MDL-004": "error",
    }
    told = [each.remedy for each in check_written(spec) if each.code == "SPEC-007"]
    assert told == [("write MDL-004",)]


def test_a_playbook_cannot_allow_findings_that_protect_from_playbooks(cluster):
    opens = {"setup": ["ray start --head --dashboard-host=0.0.0.0"]}
    allow = {"allow": [{"code": "SM121-126", "reason": "the recipe says that it is fine"}]}

    def told(playbook, **inventory):
        found = check_written(cluster({"a": "h"}, playbook={**opens, **playbook}, **inventory))
        return {(each.code, each.severity) for each in found if each.code in {"SM121-126", "SPEC-007"}}

    assert told({}) == {("SM121-126", "error")}
    assert told(allow) == {("SM121-126", "error"), ("SPEC-007", "warning")}
    assert told(allow, ignore=["SM121-126"]) == {("SM121-126", "warning"), ("SPEC-007", "warning")}
    assert {"IMG-004", "MDL-004", "NET-020", "NET-021", "SM121-126", "SPEC-008"} <= SECURITY
    assert pages().keys() >= SECURITY
