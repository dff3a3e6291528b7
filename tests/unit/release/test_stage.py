"""``stage``: contacted nodes, changes, and output."""

from __future__ import annotations

import contextlib
import json

import pytest

from sparkcluster.cli import stage as cli
from sparkcluster.cli.main import main
from sparkcluster.cli.stage_view import copied, planned
from sparkcluster.errors import FoundErrors, HostRefused
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import view_cluster
from sparkcluster.release import stage as module
from sparkcluster.release.stage import Options, stage
from sparkcluster.report import Report
from sparkcluster.staging.run import StageReport
from tests.unit.conftest import accepted

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


def run(hosts, cluster, **options):
    return stage(Fleet(hosts), cluster(TWO), Options(dry_run=True, **options), Report())


def test_a_dry_run_takes_no_lease_and_lists_what_each_node_lacks(hosts, cluster, capsys):
    done = run(hosts, cluster)
    planned(done)
    assert capsys.readouterr().out.splitlines() == [
        "image  vllm/vllm-openai:v0.18.0: nothing is missing",
        "weights  Qwen/Qwen3-8B: beta: missing",
        "ray  Ray 2.60.0: alpha: not in the image, beta: not in the image",
        "WHAT     NODE   FROM          SIZE     TIME     OVER",
        "weights  beta   alpha         16.0 GB  8 s      its cable (enp1s0f0np0, 200 Gb/s)",
        "ray      alpha  this machine  unknown  unknown  SSH, encrypted",
        "ray      beta   alpha         unknown  unknown  its cable (enp1s0f0np0, 200 Gb/s)",
    ]
    assert {program for host in hosts.values() for program, _ in host.requests} == {"probe"}
    document = json.loads(json.dumps(done.as_json()))
    assert [staging["what"] for staging in document["staging"]] == ["image", "weights", "ray"]
    assert document["copied"] == []


def test_nothing_begins_while_a_node_is_unreachable(hosts, cluster):
    def refuse(_request):
        raise HostRefused("beta does not listen", node="beta")

    hosts["beta"].program("probe", refuse)
    for dry_run in (True, False):
        with pytest.raises(FoundErrors) as caught:
            stage(Fleet(hosts), accepted(cluster(TWO)), Options(dry_run=dry_run), Report())
        assert caught.value.node == "beta"
    assert {program for host in hosts.values() for program, _ in host.requests} == {"probe"}


@pytest.mark.parametrize(
    ("flags", "inventory", "used"),
    [
        ([], {}, (False, None)),
        ([], {"encrypt": True, "limit_mb_s": 0.5}, (True, 500_000)),
        (["--no-encrypt", "--limit-rate", "2"], {"encrypt": True, "limit_mb_s": 0.5}, (False, 2_000_000)),
        (["--encrypt"], {"limit_mb_s": 0.5}, (True, 500_000)),
    ],
)
def test_the_inventorys_copy_settings_apply_unless_a_flag_overrides_them(
    hosts, cluster, monkeypatch, flags, inventory, used
):
    settings = []
    monkeypatch.setattr(module, "find", lambda run, *_: settings.append(run.settings) or [])
    spec = cluster(TWO, staging=inventory)
    monkeypatch.setattr(cli, "reporting", lambda _args: contextlib.nullcontext((Fleet(hosts), spec, Report())))
    assert main(["stage", "x.yaml", "--dry-run", "--json", *flags]) == 0
    if not flags:  # as up does
        view = view_cluster(Fleet(hosts), spec)
        module.copy(Fleet(hosts), view, Options(), Report(), acquire=None)
    assert {(each.encrypt, each.limit_bytes_s) for each in settings} == {used}


def test_a_warning_shown_during_the_copy_is_not_repeated(capsys):
    copied(StageReport((), warnings=("a and d share no cable",)))
    assert capsys.readouterr().out == ""
