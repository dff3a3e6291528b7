"""The lab's images: made once, mounted into a real Docker engine at no cost, the same on every Spark.

The stub's image alone: the real engine's goes the same way, and answers in the end-to-end tests.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from sparkcluster.lab import images
from sparkcluster.lab.machine import run, wait_until
from sparkcluster.node.docker import config_sum
from sparkcluster.node.image_archive import Archive

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="virtual Sparks need root: sudo ./scripts/test"),
]


class Docker:
    """A Docker engine on a data root, and its client."""

    def __init__(self, host):
        self.host = host

    def __call__(self, *argv):
        return run(["docker", "--host", self.host, *argv]).stdout.strip()

    def inspect(self, reference):
        return json.loads(self("image", "inspect", reference))[0]


@contextlib.contextmanager
def engine_with(data_root, store, *, keep=False):
    """A Docker engine that is started after ``store`` was mounted; nothing of it is left afterwards."""
    place = Path(tempfile.mkdtemp(prefix="sclab-test-", dir="/run"))
    data_root.mkdir(exist_ok=True)
    argv = ["dockerd", f"--data-root={data_root}", f"--exec-root={place}/exec", f"--pidfile={place}/pid"]
    argv += [f"--host=unix://{place}/sock", "--storage-driver=overlay2"]
    argv += ["--exec-opt=native.cgroupdriver=cgroupfs"]
    argv += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"]
    try:
        images.mount_into(store, data_root)
        with (place / "log").open("wb") as log:
            daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        docker = Docker(f"unix://{place}/sock")

        def answers():
            version = ["docker", "--host", docker.host, "version"]
            return subprocess.run(version, capture_output=True, check=False).returncode == 0

        try:
            assert wait_until(answers, limit_s=30, step_s=0.1), (place / "log").read_text()
            yield docker
        finally:
            daemon.terminate()
            daemon.wait(30)
    finally:
        for mounted in reversed(mounts_below(data_root)):
            subprocess.run(["umount", mounted], check=True)
        shutil.rmtree(place)
        if not keep:
            shutil.rmtree(data_root)


def mounts_below(path):
    found = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in found if point == str(path) or point.startswith(f"{path}/")]


@pytest.fixture(scope="module")
def store():
    return images.prepare("stub")


def test_an_image_passes_the_check_of_copies_without_its_tags(store, tmp_path):
    """What ``docker save`` writes, and what ``docker load`` does with it: also with an archive that was cut off."""
    saved, checked = tmp_path / "saved.tar", tmp_path / "checked.tar"
    with engine_with(tmp_path / "docker", store, keep=True) as docker:
        docker("image", "rm", store.reference)
    with engine_with(tmp_path / "docker", store) as docker:
        docker("load", "--quiet", "--input", str(images.archive("stub")))  # docker save reads no layer of the store
        docker("tag", store.reference, "production:latest")
        docker("save", "--output", str(saved), "production:latest", store.reference)
        found = docker.inspect(store.reference)
        expected = {"config": store.image_id, "layers": found["RootFS"]["Layers"]}
        expected["config_sum"] = config_sum(found["Config"])
        with saved.open("rb") as sent, checked.open("wb") as passed:
            Archive(iter(lambda: sent.read(1 << 20), b""), passed.write).relay(expected)
        docker("image", "rm", "production:latest", store.reference)
        content = checked.read_bytes()
        cut = tmp_path / "cut.tar"
        cut.write_bytes(content[: content.index(b"manifest.json")])
        argv = ["docker", "--host", docker.host, "load", "--input", str(cut)]
        assert subprocess.run(argv, capture_output=True, check=False).returncode != 0
        assert docker("image", "ls", "--quiet") == ""

        assert docker("load", "--input", str(checked)) == f"Loaded image ID: {store.image_id}"
        assert docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}") == "<none>:<none>"
        assert docker.inspect(store.image_id)["RootFS"] == found["RootFS"]
