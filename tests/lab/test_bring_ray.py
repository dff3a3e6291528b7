"""An image without Ray, on Sparks without Internet access: Ray comes from the controller.

The stub's Ray is placed in the controller's download cache.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import sparkcluster
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.plan.image import BROUGHT_RAY
from sparkcluster.staging import ray_archive
from tests.lab import builds

STUB_RAY = Path(sparkcluster.__file__).parent / "lab" / "engine" / "stub" / "site" / "ray"
STATE = "/root/.local/state/sparkcluster"


def engine_of(spark) -> EngineFacts:
    """Facts about the node's image, as cached by the first command."""
    return EngineFacts.model_validate_json(spark.run(["sh", "-c", f"cat {STATE}/images/*.json"]).stdout)


def cache_stub_ray(engine: EngineFacts, scratch: Path) -> None:
    """The stub's Ray and a package that no image has, as if they had been downloaded."""
    packages = scratch / "packages"
    shutil.copytree(STUB_RAY, packages / "ray", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "onlyhere.py").write_text("WHERE = __file__\n")
    for name, version, owned in (("ray", BROUGHT_RAY, "ray/__init__.py"), ("onlyhere", "1.0", "onlyhere.py")):
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{owned},,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    ray_archive.pack(engine, packages)


def launchers(lab, cli):
    plan = cli("plan", lab.inventory, "--json").json
    return {name: node["containers"][0]["launcher"] for name, node in plan["nodes"].items()}


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    lab = make_lab("sparks: [{name: left}, {name: right}]\n")
    builds.replace(lab, without=["ray"])
    return lab


@pytest.fixture
def lab(lab):
    yield lab
    for spark in lab.sparks:
        spark.run(["rm", "-rf", f"{STATE}/ray"])


@pytest.mark.full
def test_ray_is_staged_for_an_image_without_it(lab, cli, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    assert {launcher["ray_path"] for launcher in launchers(lab, cli).values()} == {"/sparkcluster/ray"}
    cache_stub_ray(engine_of(lab.sparks[0]), tmp_path)

    dry = cli("stage", lab.inventory, "image", "--dry-run").ok()
    assert re.search(
        rf"^ray  Ray {BROUGHT_RAY}: left: not in the image.*\n(.*\n)*ray +left +this machine ", dry.out, re.MULTILINE
    )
    up = cli("up", lab.inventory).ok()
    assert "release 1, " in up.out
    for spark in lab.sparks:
        logs = spark.run(["sh", "-c", "docker logs $(docker ps -q) 2>&1"]).stdout
        assert "phase=ray-path /sparkcluster/ray with onlyhere" in logs
        mounts = json.loads(spark.run(["sh", "-c", "docker inspect $(docker ps -q)"]).stdout)[0]["Mounts"]
        assert [mount["RW"] for mount in mounts if mount["Destination"] == "/sparkcluster/ray"] == [False]

    shutil.rmtree(tmp_path / "cache")
    again = cli("up", lab.inventory, "--json").ok().json
    assert (again["changed"], again["release"]) == (False, 1)
    assert f"ray  Ray {BROUGHT_RAY}: nothing is missing" in cli("stage", lab.inventory, "image").ok().out


@pytest.mark.full
def test_without_ray_the_native_backend_is_used_or_up_fails(lab, cli, ranks, variant, tmp_path, monkeypatch):
    """Downloads fail: no uv, and a pip without an index."""
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("UV_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UV_NO_CACHE", "1")
    up = cli("up", lab.inventory).ok()
    assert "cannot be fetched" in up.err
    assert "executor native" in up.err
    assert {launcher["executor"] for launcher in launchers(lab, cli).values()} == {"native"}
    assert cli("up", lab.inventory, "--json").ok().json["changed"] is False
    cli("down", lab.inventory).ok()

    insists = cli("up", variant(lab, playbook={"executor": "ray"}), "--json")
    assert insists.code == 1
    assert insists.error["kind"] == "StageError"
    assert "cannot be fetched" in insists.error["message"]
    assert "executor" in insists.error["hint"]
    assert not any(ranks(lab).values())
