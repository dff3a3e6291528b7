"""Files of root are changed by a container, without sudo."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from sparkcluster.node import docker, programs, repair, storage

AS_ROOT = [
    "docker", "run", "--rm", "--pull", "never", "--network", "none", "--user", "0:0", "--read-only",
    "--security-opt", "no-new-privileges", "--log-driver", "none", "--cap-drop", "ALL", "--cap-add", "CHOWN",
    "--cap-add", "DAC_OVERRIDE", "--cap-add", "FOWNER",
]  # fmt: skip
# ``docker`` as a program: its arguments go to ``told``; a container's program runs here.
PROGRAM = """#!{python}
import json, os, subprocess, sys
folder, name = os.path.split(sys.argv[0])
argv = [name, *sys.argv[1:]]
with open(folder + "/told", "a") as file:
    file.write(json.dumps(argv) + "\\n")
if os.path.exists(folder + "/fails"):
    sys.exit("no space left on device")
if argv[1] == "run":
    for volume in [argv[at + 1].split(":")[0] for at, word in enumerate(argv) if word == "--volume"]:
        os.makedirs(volume, exist_ok=True)
    subprocess.run([sys.executable, *argv[argv.index("-c") :]], check=True)
    if os.path.exists(folder + "/after"):
        subprocess.run([folder + "/after"], check=True)
"""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Arguments of ``docker``; ``fail`` makes it fail, ``after`` is the effect of an image."""

    class Ran:
        folder = tmp_path / "bin"

        @property
        def told(self):
            return [json.loads(line) for line in (self.folder / "told").read_text().splitlines()]

        def fail(self):
            (self.folder / "fails").touch()

        def after(self, script):
            (self.folder / "after").write_text(f"#!/bin/sh\n{script}\n")
            (self.folder / "after").chmod(0o755)

    Ran.folder.mkdir()
    (Ran.folder / "docker").write_text(PROGRAM.replace("{python}", sys.executable))
    (Ran.folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Ran.folder}:{os.environ['PATH']}")
    return Ran()


@pytest.fixture
def denied(monkeypatch, ran):
    """``rmtree`` cannot remove another user's files before a container has run."""
    real = repair.shutil.rmtree

    def rmtree(path):
        if not (ran.folder / "told").exists():
            raise PermissionError(13, "Permission denied", str(path))
        real(path)

    monkeypatch.setattr(repair.shutil, "rmtree", rmtree)


def test_a_directory_of_another_user_is_taken_over_in_a_container_that_sees_only_it(tmp_path, ran, denied):
    tree = tmp_path / "caches" / "vllm"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").touch()
    (tree / "link").symlink_to(tmp_path)
    repair.remove_tree(str(tree), "sha256:1")
    assert not tree.exists()
    (command,) = ran.told
    assert command[5] == "--name"
    assert [*command[:5], *command[7:]] == [
        *AS_ROOT, "--volume", f"{tree}:{tree}", "--entrypoint", "python3", "sha256:1", "-c", repair._OWN, "all", str(os.getuid()), str(os.getgid()), str(tree),
    ]  # fmt: skip


@pytest.mark.parametrize("image", [None, "sha256:1"])
def test_without_a_container_the_message_has_the_command(tmp_path, ran, denied, image):
    (tmp_path / "it's" / "deep").mkdir(parents=True)
    ran.fail()
    with pytest.raises(repair.Failed, match="on that node: sudo rm -rf --one-file-system -- ") as failed:
        repair.remove_tree(str(tmp_path / "it's"), image)
    assert shlex.split(str(failed.value).rpartition(": ")[2])[-1] == str(tmp_path / "it's")


@root_only
def test_files_of_root_in_a_repository_become_the_users_and_no_others(tmp_path, ran, monkeypatch):
    folder = tmp_path / "hub" / "models--a--m"
    (folder / "blobs").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.touch()
    (folder / "blobs" / "x.incomplete").touch()
    (folder / "link").symlink_to(outside)
    (folder / "theirs").touch()
    os.chown(folder / "theirs", 1234, 1234)
    monkeypatch.setattr(repair.os, "getuid", lambda: 1000)
    monkeypatch.setattr(repair.os, "getgid", lambda: 1001)
    (tmp_path / "hub" / ".locks" / "models--a--m").mkdir(parents=True)  # as Docker makes a volume that is missing
    request = {"do": "own", "hf_home": str(tmp_path), "repository": "a/m", "image": "sha256:1"}
    repair.own({}, request)
    owners = {str(path.relative_to(tmp_path)): path.lstat().st_uid for path in tmp_path.rglob("*")}
    assert {name for name, uid in owners.items() if uid == 1000} == {
        "hub/models--a--m", "hub/models--a--m/blobs", "hub/models--a--m/blobs/x.incomplete", "hub/models--a--m/link",
        "hub/.locks/models--a--m",
    }  # fmt: skip
    assert owners["hub/models--a--m/theirs"] == 1234
    assert (folder / "blobs").lstat().st_gid == 1001
    folders = [f"{tmp_path}/hub/models--a--m", f"{tmp_path}/hub/.locks/models--a--m"]
    (command,) = ran.told
    assert [command[at + 1] for at, word in enumerate(command) if word == "--volume"] == [f"{x}:{x}" for x in folders]


@pytest.mark.parametrize("link", ["hub/models--a--m", "hub/.locks/models--a--m", "hub/.locks", "hub"])
def test_root_follows_no_link_in_place_of_a_repository_or_a_parent_directory(tmp_path, ran, link):
    """A container may have left it: root would change the owner of its target."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "models--a--m").mkdir(parents=True)
    place = tmp_path / "hf" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    with pytest.raises(repair.Failed, match="is a symbolic link or below one; not changed"):
        repair.own({}, {"do": "own", "hf_home": str(tmp_path / "hf"), "repository": "a/m", "image": "sha256:1"})
    assert not (ran.folder / "told").exists()


def test_a_container_that_times_out_is_removed(tmp_path, ran):
    """Docker's client is killed; that alone would leave the container."""
    ran.after("exec sleep 60")
    with pytest.raises(repair.Failed, match="docker run timed out after 1 s"):
        programs.run_once("own", "sha256:1", "", docker.as_root(), limit_s=1)
    *run, remove = ran.told
    assert remove[:4] == ["docker", "rm", "--force", "--volumes"]
    assert remove[4].startswith("sparkcluster-own-")
    assert all(remove[4] in each for each in run)


def test_no_container_has_a_capability_to_read_files_of_the_node():
    """CVE-2015-3627: open_by_handle_at."""
    assert "DAC_READ_SEARCH" not in docker.as_root(repair._CAPABILITIES)
    assert "--cap-add" not in docker.as_root()


@pytest.mark.parametrize("above", ["data", "/"])
def test_a_missing_cache_directory_is_named_and_not_its_parent(make_machine, monkeypatch, above):
    """Not "/": sudo chown -R on that would destroy the node."""
    machine = make_machine("founders-p1")
    folder = Path(machine.at("/" if above == "/" else "/data"))
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(storage.os, "access", lambda path, _mode: not folder.samefile(path))
    found = storage.weights(machine, {"id": "a/m", "revision": "main", "path": None}, "/data/hf")["foreign"]
    assert found == {"path": "/data/hf", "uid": folder.lstat().st_uid, "missing": True}
