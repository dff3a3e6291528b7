"""Weights and an image on this machine and on no Spark: sent to one Spark, and copied from there to the other."""

from __future__ import annotations

import re
import subprocess

import pytest

from sparkcluster.lab.engine.tiny_llama import tiny_model_files

MODEL = "/root/models/tiny"


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab("sparks: [{name: a, model: absent}, {name: b, model: absent}]\n")


@pytest.fixture
def here(tmp_path):
    """The model in a directory of this machine."""
    for name, content in tiny_model_files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.full
def test_weights_of_this_machine_reach_both_nodes(lab, cli, here):
    dry = cli("stage", lab.inventory, "weights", "--from", here, "--dry-run").ok()
    assert re.search(r"^weights +a +this machine +[\d.]+ MB +unknown +SSH, encrypted$", dry.out, re.MULTILINE)
    assert re.search(r"^weights +b +a +[\d.]+ MB +[\d.]+ s ", dry.out, re.MULTILINE)
    done = cli("stage", lab.inventory, "weights", "--from", here, "--json").ok().json
    assert [(copy["node"], copy["source"]) for copy in done["copied"]] == [("a", "controller"), ("b", "a")]
    sums = [spark.run(["sh", "-c", f"cd {MODEL}; sha256sum $(find . -type f | sort)"]).stdout for spark in lab.sparks]
    assert sums[0] == sums[1]
    assert sums[0].count("\n") == len(tiny_model_files())
    assert "every byte verified on a, b" in cli("stage", lab.inventory, "weights", "--verify").ok().out


@pytest.mark.full
def test_an_image_archive_of_docker_save_reaches_both_nodes(lab, cli, tmp_path):
    a, b = lab.sparks
    reference = a.run(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]).stdout.split()[0]
    image = a.run(["docker", "image", "inspect", "--format", "{{.Id}}", reference]).stdout
    archive = tmp_path / "image.tar"
    save = a.enter(["docker", "save", reference])
    subprocess.run(["sh", "-c", 'exec "$@" > "$0"', str(archive), *save], check=True, timeout=300)
    for spark in lab.sparks:
        spark.run(["docker", "image", "rm", "-f", reference])
    done = cli("stage", lab.inventory, "image", "--from", archive, "--json").ok().json
    copied = [copy for copy in done["copied"] if copy["what"] == "image"]
    assert [(copy["node"], copy["source"]) for copy in copied] == [("a", "controller"), ("b", "a")]
    assert 0.99 * archive.stat().st_size < copied[0]["bytes"] <= archive.stat().st_size
    for spark in (a, b):
        assert spark.run(["docker", "image", "inspect", "--format", "{{.Id}}", reference]).stdout == image
        assert spark.run(["sh", "-c", "find / -xdev -name '*.tar' -path '*staging*'"]).stdout == ""


@pytest.mark.full
def test_playbook_files_are_mounted_in_the_containers(lab, variant, cli, ranks, here):
    inventory = variant(lab, playbook={"mounts": [{"source": "./parsers", "target": "/opt/parsers"}]})
    mine = inventory.parent / "parsers/mine.py"
    mine.parent.mkdir()
    mine.write_text("x = 1\n")
    cli("stage", inventory, "weights", "--from", here).ok()
    cli("up", inventory).ok()
    for spark in lab.sparks:
        ((_, name, _),) = ranks(lab)[spark.name]
        assert spark.run(["docker", "exec", name, "cat", "/opt/parsers/mine.py"]).stdout == "x = 1\n"
    mine.write_text("x = 2\n")
    changed = cli("stage", inventory, "weights", "--json").ok().json
    assert [(copy["what"], copy["node"], copy["bytes"]) for copy in changed["copied"]] == [
        ("files", "a", 6),
        ("files", "b", 6),
    ]
    cli("down", inventory).ok()
