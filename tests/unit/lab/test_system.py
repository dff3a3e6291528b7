"""What the root of a Spark with another release or another Docker consists of."""

from pathlib import Path

from sparkcluster.lab import rootfs, system
from sparkcluster.lab.spec import SparkSpec


def test_a_newer_docker_lies_over_the_root_of_its_distribution(monkeypatch):
    monkeypatch.setattr(system, "root", lambda name, **_: Path("/roots") / name)
    monkeypatch.setattr(system, "newer_docker", lambda: Path("/docker"))
    for store, expected in (("containerd", ["/roots/debian-13"]), ("containerd-28", ["/docker", "/roots/debian-13"])):
        spec = SparkSpec(docker=store, system="debian-13")
        assert [str(layer) for layer in system.layers(spec)] == expected


def test_the_newer_docker_is_downloaded_by_an_apt_with_lists_of_its_own(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(system, "run", lambda argv, **_: commands.append(argv))
    (tmp_path / "docker.io_28.5.2_amd64.deb").touch()
    system._unpack(rootfs.Source("http://deb.debian.org/debian", "forky", ("main",), "/key.gpg"), tmp_path)
    assert (tmp_path / "list").read_text() == "deb [signed-by=/key.gpg] http://deb.debian.org/debian forky main\n"
    update, download, unpack = commands
    assert update[-2:] == ["--error-on=any", "update"]
    assert download[-5:] == ["download", "docker.io", "docker-cli", "containerd", "runc"]
    assert f"-oDir::State={tmp_path}" in download
    assert unpack == ["dpkg-deb", "-x", str(tmp_path / "docker.io_28.5.2_amd64.deb"), str(tmp_path / "root")]
