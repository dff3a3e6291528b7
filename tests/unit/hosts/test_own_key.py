"""The operator's public key: which one setup gives to a node, and the hint if it cannot be read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.hosts.own_key import create, public_key
from sparkcluster.hosts.resolve import SshTarget


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def keygen(file: Path, passphrase: str = "") -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "me", "-f", str(file)], check=True)
    return file.with_name(f"{file.name}.pub").read_text().strip()


def found(*files: Path) -> str | None:
    return public_key("a", SshTarget("192.0.2.1", "nvidia", identities=files))


@pytest.mark.parametrize("passphrase", ["", "secret"])
def test_a_key_file_gives_its_key(home, passphrase):
    line = keygen(home / "id", passphrase)
    assert found(home / "absent", home / "id").split()[:2] == line.split()[:2]


def test_a_key_is_created_if_no_file_exists(home):
    line = create()
    assert line == (home / ".ssh" / "id_ed25519.pub").read_text().strip()
    with pytest.raises(UsageError, match="exists but is not a usable private key"):
        create()
    assert found(home / ".ssh" / "id_ed25519").split()[:2] == line.split()[:2]
