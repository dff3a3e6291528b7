"""Root's files are changed by a container, without sudo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.node import agent, repair, storage

AS_ROOT = [
    "docker", "run", "--rm", "--pull", "never", "--network", "none", "--user", "0:0", "--read-only",
    "--security-opt", "no-new-privileges", "--cap-drop", "ALL", "--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE",
    "--cap-add", "FOWNER",
]  # fmt: skip
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def ran(monkeypatch):
    """Command lines; ``container`` and ``sudo`` say whether each works. A container's program runs here."""

    class Ran(list):
        container = sudo = True

    done = Ran()

    def run(argv, limit_s=120):
        done.append(argv)
        if argv[0] == "sudo" and not done.sudo:
            raise repair.Failed("sudo: a password is required")
        if argv[0] == "docker":
            if not done.container:
                raise repair.Failed("no space left on device")
            subprocess.run([sys.executable, *argv[argv.index("-c") :]], check=True)
        return ""

    monkeypatch.setattr(repair, "run", run)
    return done


@pytest.fixture
def denied(monkeypatch):
    """``rmtree`` may not remove what is in a directory."""
    real = repair.shutil.rmtree

    def rmtree(path):
        if Path(path).is_dir() and any(Path(path).iterdir()):
            raise PermissionError(13, "Permission denied", str(path))
        real(path)

    monkeypatch.setattr(repair.shutil, "rmtree", rmtree)


def test_a_directory_of_roots_is_emptied_in_a_container_that_sees_it_alone(tmp_path, ran, denied):
    tree = tmp_path / "caches" / "vllm"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").touch()
    (tree / "link").symlink_to(tmp_path)
    repair.remove_tree(str(tree), "sha256:1")
    assert not tree.exists()
    assert ran == [
        [*AS_ROOT, "--volume", f"{tree}:{tree}", "--entrypoint", "python3", "sha256:1", "-c", repair._EMPTY, str(tree)]
    ]


@pytest.mark.parametrize("image", [None, "sha256:1"])
def test_sudo_is_what_is_left_without_an_image_or_if_the_container_fails(tmp_path, ran, denied, image):
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    ran.container = ran.sudo = False
    with pytest.raises(repair.Failed, match=f"on that node: sudo rm -rf --one-file-system -- {tmp_path}/tree$"):
        repair.remove_tree(str(tmp_path / "tree"), image)
    assert ran[-1][:3] == ["sudo", "-n", "rm"]


@root_only
def test_what_is_roots_in_a_repository_becomes_the_users_and_nothing_else(tmp_path, ran, monkeypatch):
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
    request = {"do": "own", "hf_home": str(tmp_path), "repositories": ["a/m"], "image": "sha256:1"}
    agent.own({}, request)
    owners = {str(path.relative_to(tmp_path)): path.lstat().st_uid for path in tmp_path.rglob("*")}
    assert {name for name, uid in owners.items() if uid == 1000} == {
        "hub/models--a--m", "hub/models--a--m/blobs", "hub/models--a--m/blobs/x.incomplete", "hub/models--a--m/link",
        "hub/.locks/models--a--m",
    }  # fmt: skip
    assert owners["hub/models--a--m/theirs"] == 1234
    assert (folder / "blobs").lstat().st_gid == 1001
    folders = [f"{tmp_path}/hub/models--a--m", f"{tmp_path}/hub/.locks/models--a--m"]
    (command,) = ran
    assert [command[at + 1] for at, word in enumerate(command) if word == "--volume"] == [f"{x}:{x}" for x in folders]


def test_a_link_in_place_of_a_repository_is_not_followed_by_root(tmp_path, ran):
    """A container may have left it: root would give its target away."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "models--a--m").symlink_to("/etc")
    with pytest.raises(repair.Failed, match="is a link, and stays as it is"):
        agent.own({}, {"do": "own", "hf_home": str(tmp_path), "repositories": ["a/m"], "image": "sha256:1"})
    assert ran == []


def test_without_a_container_or_sudo_the_commands_are_said(tmp_path, ran):
    ran.sudo = False
    with pytest.raises(repair.Failed, match=r"on that node: sudo install --directory .* && sudo chown --recursive"):
        agent.own({}, {"do": "own", "hf_home": str(tmp_path), "repositories": ["a/m"], "image": None})


def test_the_probe_names_what_a_download_could_not_write(make_machine, monkeypatch):
    """Directories, and files that are written again; not blobs that are complete, nor other models."""
    machine = make_machine("founders-p1")
    cache = Path(machine.at("/hf/hub/models--a--m"))
    locked: set[str] = set()
    monkeypatch.setattr(storage.os, "access", lambda path, _mode: not locked & {str(path), Path(path).name})

    def seen():
        found = storage.weights(machine, {"id": "a/m", "revision": "main", "path": None}, "/hf").get("foreign")
        return found and found["path"]

    assert seen() is None
    (cache.parent / "models--b--m").mkdir(parents=True)
    locked.add("models--b--m")
    assert seen() is None
    locked.add("hub")
    assert seen() == "/hf/hub"
    (cache / "blobs").mkdir(parents=True)
    assert seen() == "/hf/hub", "the locks are missing"
    (cache.parent / ".locks" / "models--a--m").mkdir(parents=True)
    assert seen() is None
    (cache / "blobs" / "whole").touch()
    (cache / "blobs" / "part.incomplete").touch()
    locked |= {"whole", "part.incomplete"}
    assert seen() == "/hf/hub/models--a--m/blobs/part.incomplete"
    locked.add("blobs")
    assert seen() == "/hf/hub/models--a--m/blobs"
