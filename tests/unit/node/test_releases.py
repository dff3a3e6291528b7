"""A node keeps parts of a release for a rollback, for a limited time: the image by a tag, the secrets in a file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from sparkcluster.node import agent, common, releases

DOCKER = """#!/bin/sh
cd {directory}
[ ! -e broken ] || {{ cat broken >&2; exit 1; }}
case "$1 $2" in
"image ls") cat tags others;;
"image rm")
    shift 2
    for tag; do grep -v "^$tag " tags > rest; mv rest tags; done;;
"tag "*)
    grep -q "$2" images || {{ echo "Error: No such image: $2" >&2; exit 1; }}
    grep -v "^$3 " tags > rest; echo "$3 $2" >> rest; mv rest tags;;
*) echo "unknown command $*" >&2; exit 1;;
esac
"""
A, B, C, D, E = (f"sha256:{letter * 64}" for letter in "abcde")


class Node:
    """A node that holds the lease of ``atlas``, and its Docker, whose tags are the lines of the file ``tags``."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.cluster = Path(common.cluster_dir(str(self.state), "atlas"))
        self.releases = self.cluster / "releases"
        self.docker = folder / "bin"
        self.docker.mkdir()
        (self.docker / "docker").write_text(DOCKER.format(directory=self.docker))
        (self.docker / "docker").chmod(0o755)
        for name, content in {"tags": "", "others": "", "images": A + B + C + D + E}.items():
            (self.docker / name).write_text(content)

    def change(self, *steps):
        """The answer of the agent."""
        asked = {"state_dir": str(self.state), "cluster": "atlas", "epoch": 7, "steps": list(steps)}
        return agent.main(asked, None)

    def secrets(self, release, content):
        """The env file of a rank."""
        path = self.cluster / "ranks" / f"atlas-{release}-alpha" / "secrets.env"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return str(path)

    def record(self, number, image=None, secrets=None, *, release=None, **step):
        """The answer to the step that records release ``number``, with a rank's ``image`` and ``secrets``."""
        release = release or number
        env_file = None if secrets is None else self.secrets(release, secrets)
        rank = {"release": release, "image": image, "env_file": env_file}
        document = {"number": number}
        return self.change({"do": "record", "number": number, "record": document, "rank": rank, **step})

    @property
    def tags(self):
        """Image by number."""
        lines = (self.docker / "tags").read_text().split("\n")[:-1]
        return {int(line.split()[0].rpartition(":")[2]): line.split()[1] for line in lines}

    @property
    def kept(self):
        """Secrets by number."""
        return {int(path.stem): path.read_text() for path in sorted(self.releases.glob("*.env"))}

    @property
    def read(self):
        """The answer of the records program."""
        return releases.main({"state_dir": str(self.state), "cluster": "atlas"}, None)


@pytest.fixture
def node(tmp_path, monkeypatch):
    one = Node(tmp_path)
    monkeypatch.setenv("PATH", f"{one.docker}:{os.environ['PATH']}")
    lock = common.try_lock(str(one.cluster / "lease.lock"))
    assert lock is not None
    common.write_atomically(str(one.cluster / "lease.json"), b'{"epoch": 7, "operator": "ann", "granted": true}')
    with lock:
        yield one


def test_image_and_secrets_of_a_release_are_kept_for_this_user_only(node):
    assert node.record(7, A, "KEY=one\n") == {"results": [{}]}
    assert (node.docker / "tags").read_text() == f"sparkcluster/atlas:000007 {A}\n"
    assert node.kept == {7: "KEY=one\n"}
    assert stat.S_IMODE((node.releases / "000007.env").stat().st_mode) == 0o600
    assert json.loads((node.releases / "000007.json").read_text()) == {"number": 7}


def test_releases_of_the_three_newest_images_are_kept(node):
    for number, image in enumerate((A, B, B, C, D, B), 1):
        node.record(number, image, f"KEY={number}\n")
    assert node.tags == {2: B, 3: B, 4: C, 5: D, 6: B}
    assert list(node.kept) == [2, 3, 4, 5, 6]
    node.record(7, E, "KEY=7\n")
    assert node.tags == {2: B, 3: B, 5: D, 6: B, 7: E}, "B is a newer image than C"
    assert list(node.kept) == [2, 3, 5, 6, 7]
    assert len(node.read["records"]) == 7


def test_files_without_a_record_are_removed(node, monkeypatch):
    for number in (1, 2, 3):
        node.record(number, A, f"KEY={number}\n")
    (node.releases / "000001.json").unlink()
    (node.releases / ".partial-x").write_text("KEY=killed\n")
    monkeypatch.setattr(releases, "KEEP", 2)
    node.record(4, A, "KEY=4\n")
    assert (list(node.tags), list(node.kept)) == ([3, 4], [3, 4])
    assert not list(node.releases.glob(".partial-*"))


def test_images_with_other_names_are_not_removed(node):
    others = ["sparkcluster/atlas:latest", "sparkcluster/atlas:07", "other/atlas:000001", "sparkcluster/atlas-2:000001"]
    others += ["sparkcluster/atlas:<none>", "registry/sparkcluster/atlas:000001"]
    (node.docker / "others").write_text("".join(f"{name} {E}\n" for name in others))
    for number, image in enumerate((A, B, C, D), 1):
        node.record(number, image)
    assert list(node.tags) == [2, 3, 4]
    assert node.read["images"] == {"000002": B, "000003": C, "000004": D}


def test_a_release_is_not_recorded_if_its_image_cannot_be_kept(node):
    assert node.record(7, "sha256:gone")["failed"] == {"step": "record", "message": "Error: No such image: sha256:gone"}
    assert not (node.releases / "000007.json").exists()


def test_only_files_with_secrets_are_kept_as_secrets(node, tmp_path):
    key = tmp_path / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    key.write_text("private")
    ranks = node.cluster / "ranks"
    ranks.mkdir()
    (ranks / "x").symlink_to(key.parent)
    for path in (key, ranks / "x" / key.name):
        rank = {"release": 7, "image": None, "env_file": str(path)}
        assert node.change({"do": "record", "number": 7, "record": {}, "rank": rank})["failed"]["step"] == "record"
    assert node.kept == {}


@pytest.mark.parametrize(
    ("kept", "names", "values", "written"),
    [
        ("KEY=one\nRAY=r=1\n", ["KEY", "RAY"], {"KEY": "two"}, "KEY=two\nRAY=r=1\n"),  # the key of today
        (None, ["KEY"], {"KEY": "two"}, "KEY=two\n"),  # and nothing else
        ("KEY=one\nRAY=r\n", ["RAY"], {}, "RAY=r\n"),  # there is no secret now
        ("RAY=r\n", ["KEY", "RAY"], {}, "the secrets of release 7 are missing"),
        (None, ["KEY", "RAY"], {"KEY": "two"}, "the secrets of release 7 are missing"),
    ],
)
def test_a_restarted_rank_gets_the_secrets_of_its_plan(node, kept, names, values, written):
    node.record(7, A, kept)
    path = node.cluster / "ranks/x/secrets.env"
    answer = node.change({"do": "restore-secrets", "number": 7, "path": str(path), "names": names, "values": values})
    if "failed" in answer:
        assert answer["failed"]["message"].startswith(written)
        assert not path.exists()
    else:
        assert path.read_text() == written


KEY = {"number": 7, "names": ["KEY"], "values": {}}


def test_secrets_are_restored_only_to_their_place_and_not_through_links(node, tmp_path):
    node.record(7, A, "KEY=one\n")
    other = tmp_path / "authorized_keys"
    other.write_text("ours")
    answer = node.change({"do": "restore-secrets", "path": str(other), **KEY})
    assert answer["failed"]["message"] == f"{other} is outside of {node.state}"
    (node.cluster / "out").symlink_to(tmp_path)
    answer = node.change({"do": "restore-secrets", "path": str(node.cluster / "out" / "authorized_keys"), **KEY})
    assert answer["failed"]["message"] == f"{other} is outside of {node.state}"
    (node.cluster / "link").symlink_to(other)
    node.change({"do": "restore-secrets", "path": str(node.cluster / "link"), **KEY})
    assert other.read_text() == "ours"
    assert (node.cluster / "link").read_text() == "KEY=one\n"


def test_an_unreadable_list_of_images_is_not_treated_as_empty(node, monkeypatch):
    node.record(7, A)
    request = {"state_dir": str(node.state), "cluster": "atlas"}
    assert releases.main({**request, "runtime": "process"}, None)["images"] is None
    (node.docker / "broken").write_text("permission denied while trying to connect to the Docker daemon socket")
    assert node.read["images"] is None
    monkeypatch.setenv("PATH", str(node.docker / "none"))
    assert (node.read["images"], len(node.read["records"])) == (None, 1)
