"""What ``docker save`` writes passes the check of copies, and ``docker load`` takes what comes out of it."""

from __future__ import annotations

import json
import subprocess

import pytest

from sparkcluster.lab import images
from sparkcluster.node.docker import config_sum
from sparkcluster.node.image_archive import Archive

REFERENCE = "production:latest"


@pytest.fixture
def docker(make_lab):
    """``docker(*words)``: run docker on a Spark without an image; what it says."""
    lab = make_lab("sparks: [{image: absent}]\n")

    def run(*words, check=True, **streams):
        argv = lab.sparks[0].enter(["docker", *words])
        return subprocess.run(argv, check=check, **{"stdout": subprocess.PIPE, **streams}).stdout

    return run


@pytest.mark.full
def test_an_image_passes_the_check_of_copies_without_its_tags(docker, tmp_path):
    """Also with an archive that was cut off."""
    saved, checked, cut = (tmp_path / f"{name}.tar" for name in ("saved", "checked", "cut"))
    with images.archive("stub").open("rb") as archive:
        docker("load", "--quiet", stdin=archive)
    reference, image = docker("images", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}").decode().split()
    docker("tag", reference, REFERENCE)
    with saved.open("wb") as archive:
        docker("save", REFERENCE, reference, stdout=archive)
    (found,) = json.loads(docker("image", "inspect", reference))
    expected = {"config": image, "layers": found["RootFS"]["Layers"], "config_sum": config_sum(found["Config"])}
    with saved.open("rb") as sent, checked.open("wb") as passed:
        Archive(iter(lambda: sent.read(1 << 20), b""), passed.write).relay(expected)
    docker("image", "rm", REFERENCE, reference)
    content = checked.read_bytes()
    cut.write_bytes(content[: content.index(b"manifest.json")])
    with cut.open("rb") as archive:
        docker("load", "--quiet", stdin=archive, check=False)
    assert docker("image", "ls", "--quiet") == b""
    with checked.open("rb") as archive:
        assert docker("load", stdin=archive).decode().strip() == f"Loaded image ID: {image}"
    assert docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}") == b"<none>:<none>\n"
