"""``stage``: who is asked, what is changed, and what is told of it."""

from __future__ import annotations

import contextlib
import json
from functools import partial

import pytest

from sparkcluster.cli import stage as cli
from sparkcluster.cli.main import main
from sparkcluster.cli.stage import lines
from sparkcluster.errors import FoundErrors, HostLost, HostRefused, StageError
from sparkcluster.hosts.again import Patience
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import view_cluster
from sparkcluster.release import stage as module
from sparkcluster.release.stage import Options, copy_missing, stage
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.runtime.lease import Lease
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.run import StageReport
from sparkcluster.staging.transfers import Copied

TWO = {"alpha": "192.168.86.11", "beta": "192.168.86.12"}
WHOLE = {"path": "/w", "revision": "r1", "files": [{"name": "config.json", "size_bytes": 16_000_000_000}]}
INSIDE = {"python": "/usr/bin/python3", "python_version": "3.12.3", "platform": "manylinux_2_39_aarch64",
          "version": "0.18.0"}  # fmt: skip
IMAGE = {"reference": "vllm/vllm-openai:v0.18.0", "id": "sha256:1", "architecture": "arm64", "inside": INSIDE}


@pytest.fixture
def hosts(spark):
    """Two Sparks; beta lacks the weights, and no image has Ray."""
    made = {}
    for place, name in enumerate(TWO, 11):
        facts = spark({"enp1s0f0np0": f"10.1.0.{place}/24"}, image=IMAGE, weights=WHOLE if name == "alpha" else None)
        made[name] = FakeHost(name).program("probe", facts.model_dump(mode="json"))
    return made


def changer(fleet, **more):
    return Changer(fleet, cluster="atlas", state_dir="~/s", epochs=dict.fromkeys(fleet.hosts, 3), **more)


def run(hosts, cluster, **options):
    return stage(Fleet(hosts), cluster(TWO), Options(dry_run=True, **options), Report())


def test_a_dry_run_takes_no_lease_and_says_who_lacks_what(hosts, cluster):
    done = run(hosts, cluster)
    assert lines(done, dry_run=True) == [
        "  NODE   FROM          SIZE     TIME       OVER",
        "image  vllm/vllm-openai:v0.18.0: nothing is missing",
        "weights  Qwen/Qwen3-8B",
        "  beta   alpha         16.0 GB  about 8 s  its cable (enp1s0f0np0, 200 Gb/s)",
        "ray  Ray 2.60.0",
        "  alpha  this machine  unknown  unknown    SSH, encrypted",
        "    not in the image",
        "  beta   alpha         unknown  unknown    its cable (enp1s0f0np0, 200 Gb/s)",
        "    not in the image",
    ]
    assert {program for host in hosts.values() for program, _ in host.requests} == {"probe"}
    document = json.loads(json.dumps(done.as_json()))
    assert [staging["what"] for staging in document["staging"]] == ["image", "weights", "ray"]
    assert document["copied"] == []


def test_nothing_begins_while_a_node_cannot_be_reached(hosts, cluster):
    def refuse(_request):
        raise HostRefused("beta does not listen", node="beta")

    hosts["beta"].program("probe", refuse)
    for dry_run in (True, False):
        with pytest.raises(FoundErrors) as caught:
            stage(Fleet(hosts), cluster(TWO), Options(dry_run=dry_run), Report())
        assert caught.value.node == "beta"
    assert {program for host in hosts.values() for program, _ in host.requests} == {"probe"}


def test_every_copy_is_told_with_its_speed():
    weights = Staging("weights", "Qwen/Qwen3-8B", ("a",), (("b", "not there"), ("c", "not there")), (), 16_000_000_000)
    done = StageReport(
        (weights,), (Copied("weights", "b", "a", 16_000_000_000, 8.0), Copied("weights", "c", "download", 5, 0))
    )
    assert lines(done, dry_run=False) == [
        "weights  Qwen/Qwen3-8B: b from a, 16.0 GB in 8.0 s, 2.00 GB/s",
        "weights  Qwen/Qwen3-8B: c downloaded, 0.0 MB in 0.0 s",
    ]


@pytest.mark.parametrize(("errors", "said"), [(2, None), (99, StageError)])
def test_a_node_that_is_silent_when_the_copies_have_ended_is_asked_again(hosts, cluster, monkeypatch, errors, said):
    fleet, spec = Fleet(hosts), cluster(TWO)
    view, answer = view_cluster(fleet, spec), hosts["beta"]._programs["probe"]
    left = [HostLost("connection to beta broke", node="beta")] * errors

    def probe(request):
        if left:
            raise left.pop()
        return answer(request)

    hosts["beta"].program("probe", probe)
    monkeypatch.setattr(
        module, "stage_all", lambda *_, **__: StageReport((), (Copied("weights", "beta", "alpha", 1, 1.0),))
    )
    monkeypatch.setattr(module.first_staged, "compare", lambda *_: None)
    monkeypatch.setattr(Patience, "pause_s", lambda _: 0.05)
    report, told = Report(), []
    monkeypatch.setattr(report, "progress", lambda node, text: told.append((node, text)))
    task = partial(copy_missing, changer(fleet, patience_s=0.5), view, Options(what=("weights",)), report)
    if said is None:
        assert task()[1].collected.errors == {}
        assert hosts["beta"].renewed == errors
    else:
        with pytest.raises(said):
            task()
    assert told == [("beta", "connection to beta broke: connecting again; its facts are collected again")]


def test_a_silence_while_a_start_copies_takes_both_leases_again(hosts, cluster, monkeypatch):
    """That of the start is used again only once everything is there."""
    held, lacks = [], Staging("weights", "m", ("alpha",), (("beta", "missing"),), (), 1)

    def stage_all(staging, *_, dry_run, **__):
        if not dry_run:
            staging.hold("beta")
        return StageReport((lacks,))

    monkeypatch.setattr(module, "stage_all", stage_all)
    monkeypatch.setattr(module.first_staged, "compare", lambda *_: None)
    monkeypatch.setattr(Lease, "acquire", lambda lease, _names: lease)
    monkeypatch.setattr(Lease, "hold", lambda lease, node: held.append((lease._kind, node)))
    starting = changer(Fleet(hosts), hold=lambda node: held.append(("cluster", node)))
    view = view_cluster(starting.fleet, cluster(TWO), bring_ray=False)
    monkeypatch.setattr(module, "_complete_view", lambda *_: view)
    module.copy_for_start(starting, module.staging_lease(starting.fleet, view.spec, "up"), view, Report())
    assert held == [("staging", "beta"), ("cluster", "beta")]


@pytest.mark.parametrize(
    ("flags", "inventory", "used"),
    [
        ([], {}, (False, None)),
        ([], {"encrypt": True, "limit_mb_s": 0.5}, (True, 500_000)),
        (["--no-encrypt", "--limit-rate", "2"], {"encrypt": True, "limit_mb_s": 0.5}, (False, 2_000_000)),
        (["--encrypt"], {"limit_mb_s": 0.5}, (True, 500_000)),
    ],
)
def test_what_the_inventory_says_of_copies_counts_unless_a_flag_says_otherwise(
    hosts, cluster, monkeypatch, flags, inventory, used
):
    settings = []
    monkeypatch.setattr(module, "stage_all", lambda *_, **more: settings.append(more["settings"]) or StageReport(()))
    spec = cluster(TWO, staging=inventory)
    monkeypatch.setattr(cli, "reporting", lambda _args: contextlib.nullcontext((Fleet(hosts), spec, Report())))
    assert main(["stage", "x.yaml", "--dry-run", "--json", *flags]) == 0
    if not flags:  # as up does
        view = view_cluster(Fleet(hosts), spec, bring_ray=False)
        monkeypatch.setattr(module.first_staged, "compare", lambda *_: None)
        starting = changer(Fleet(hosts))
        module.copy_for_start(starting, module.staging_lease(starting.fleet, spec, "up"), view, Report())
    assert {(each.encrypt, each.limit_bytes_s) for each in settings} == {used}
