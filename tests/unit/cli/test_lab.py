"""The commands that ``lab up`` suggests, without a lab."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkcluster.cli.main import guarded
from sparkcluster.lab import core
from sparkcluster.lab.spec import plain, with_access


@pytest.mark.parametrize("login", ["key", "password"])
def test_a_bare_lab_shows_the_login_of_its_sparks(login, monkeypatch, capsys):
    made = SimpleNamespace(
        name="lab",
        directory=Path("/labs/lab"),
        inventory=Path("/labs/lab/inventory.yaml"),
        playbook=Path("/labs/lab/playbook.yaml"),
        identity=Path("/labs/lab/id_ed25519"),
        password="spark-1234",
        sparks=[],
        state=SimpleNamespace(spec=with_access(plain(2, bare=True), login, None)),
    )
    monkeypatch.setattr(core.Lab, "up", lambda *words, **options: made)
    monkeypatch.delenv("SUDO_USER", raising=False)
    assert guarded(["lab", "up", "--bare", "--login", login]) == 0
    out, err = capsys.readouterr()
    assert out == "/labs/lab\n"
    with_key = "next: sparkcluster discover --user spark -i /labs/lab/id_ed25519 -o mine.yaml\n"
    with_password = "next: sparkcluster discover --user spark -o mine.yaml   the password is spark-1234\n"
    assert err == {"key": with_key, "password": with_password}[login]
