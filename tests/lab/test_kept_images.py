"""Nodes keep image and secrets of the last releases through a prune, and no longer than necessary. Stub engine."""

from __future__ import annotations

import json

import pytest
import yaml

KEY = "kEy-dIsTiNcTiVe-{}"
CHANGED = """
docker create --name changed "$1" > /dev/null
docker commit --change "ENV ROUND=$2" changed "$1" > /dev/null
docker rm changed > /dev/null
"""
"""Moves the tag of an image to another image, which differs in a variable."""


@pytest.fixture
def release(lab, cli, variant):
    """``release(number)``: the cluster serves a release with a new image and API key; returns the image by Spark.

    The previous name refers to the new image, as after a pull on one Spark, from which ``up`` copies it.
    """
    path = variant(lab, api={"key": {"env": "THE_KEY"}})
    reference = yaml.safe_load(lab.playbook.read_text())["image"]
    left, right = lab.sparks
    for spark in lab.sparks:
        spark.run(["docker", "tag", reference, "original:1"])
        spark.run(["docker", "create", "--name", "original", "original:1"])  # no prune removes its image

    def do(number):
        left.run(["sh", "-ec", CHANGED, "sh", reference, str(number)])
        right.run(["docker", "image", "rm", reference])
        up = cli("up", path, "--replace", "--yes", "--json", env={"THE_KEY": KEY.format(number)}).ok().json
        assert up["release"] == number
        return {spark.name: image_of(spark, "$(docker ps -q)") for spark in lab.sparks}

    do.path = path
    yield do
    for spark in lab.sparks:
        spark.run(["docker", "tag", image_of(spark, "original"), reference])
        spark.run(["docker", "image", "rm", "original:1"], check=False)


def image_of(spark, container):
    """The image of a container."""
    return spark.run(["sh", "-c", f"docker inspect --format '{{{{.Image}}}}' {container}"]).stdout.strip()


def tags(lab, spark):
    """Image by tag of the cluster on a Spark."""
    form = ["--no-trunc", "--format", "{{.Tag}} {{.ID}}", f"sparkcluster/{lab.name}"]
    return dict(line.split() for line in spark.run(["docker", "image", "ls", *form]).stdout.splitlines())


def kept(cli, path):
    """Whether each release is kept, and its missing parts."""
    found = cli("releases", path, "--json").ok().json["releases"]
    return {each["number"]: (each["kept"], each["lost"]) for each in found}


WHOLE = (True, {"image": [], "secrets": []})


@pytest.mark.full
def test_prune_keeps_the_images_of_releases_and_reports_lost_images(lab, cli, release):
    first, second = release(1), release(2)
    left, right = lab.sparks
    for spark in lab.sparks:
        unnamed = spark.run(["sh", "-ec", "docker create --name unnamed $1 > /dev/null; docker commit unnamed; docker rm unnamed > /dev/null",
                             "sh", second[spark.name]]).stdout.strip()  # fmt: skip
        spark.run(["docker", "image", "prune", "--force"])
        there = spark.run(["docker", "image", "ls", "-a", "-q", "--no-trunc"]).stdout
        assert unnamed not in there, "a prune that removes nothing proves nothing"
        assert tags(lab, spark) == {"000001": first[spark.name], "000002": second[spark.name]}
    assert kept(cli, release.path) == {1: WHOLE, 2: WHOLE}

    right.run(["docker", "image", "prune", "--all", "--force"])
    left.run(["rm", f"/root/.local/state/sparkcluster/clusters/{lab.name}/releases/000001.env"])
    assert kept(cli, release.path) == {1: (True, {"image": ["right"], "secrets": ["left"]}), 2: WHOLE}
    shown = cli("releases", release.path).ok().out
    assert "image lost on right; secrets lost on left" in shown


@pytest.mark.full
def test_a_rollback_copies_the_recorded_image_to_a_node_where_the_tag_has_another_image(lab, cli, release):
    first, second = release(1), release(2)
    left, right = lab.sparks
    left.run(["docker", "tag", second["left"], f"sparkcluster/{lab.name}:000001"])
    cli("rollback", release.path, "1", env={"THE_KEY": KEY.format(2)}).ok()
    assert {spark.name: image_of(spark, "$(docker ps -q)") for spark in (left, right)} == first


@pytest.mark.full
def test_secrets_are_kept_for_the_nodes_user_while_their_image_is_kept(lab, cli, release):
    images = {number: release(number) for number in (1, 2, 3)}
    left, right = lab.sparks
    directory = f"/root/.local/state/sparkcluster/clusters/{lab.name}/releases"
    listed = left.run(["sh", "-c", f"cd {directory} && stat -c '%n %a %U' *.env && stat -c '%a' ."]).stdout.split("\n")
    assert listed[:4] == ["000001.env 600 root", "000002.env 600 root", "000003.env 600 root", "700"]
    assert KEY.format(1) in left.run(["cat", f"{directory}/000001.env"]).stdout
    assert kept(cli, release.path) == dict.fromkeys((1, 2, 3), WHOLE)

    images[4] = release(4)
    for spark in lab.sparks:
        assert tags(lab, spark) == {f"{number:06d}": images[number][spark.name] for number in (2, 3, 4)}
        files = spark.run(["ls", directory]).stdout.split()
        assert [name for name in files if name.endswith(".env")] == ["000002.env", "000003.env", "000004.env"]
        assert images[1][spark.name] not in spark.run(["docker", "image", "ls", "-q", "--no-trunc"]).stdout
    assert kept(cli, release.path)[1] == (False, {"image": [], "secrets": []})

    cli("down", release.path, env={"THE_KEY": KEY.format(4)}).ok()
    assert kept(cli, release.path) == {1: (False, {"image": [], "secrets": []}), **dict.fromkeys((2, 3, 4), WHOLE)}
    document = json.loads(right.run(["cat", f"{directory}/000004.json"]).stdout)
    assert KEY.format(4) not in json.dumps(document)
