"""The state of a lab on disk, also in the format of another version."""

import json
from pathlib import Path

from sparkcluster.lab import inventory, spec
from sparkcluster.lab.state import State
from sparkcluster.spec import consent, powers
from sparkcluster.spec.load import load


def write(directory: Path) -> dict:
    """Write a lab's state to ``directory``; returns the values in its file."""
    directory.mkdir()
    State("0" * 32, "lab", directory, 3, "stub", spec.plain(2)).write()
    return json.loads((directory / "state.json").read_text())


def test_the_state_belongs_to_the_directory_of_the_file(tmp_path):
    values = write(tmp_path / "lab")
    assert "directory" not in values
    for recorded in ({}, {"directory": "/elsewhere"}):
        (tmp_path / "lab/state.json").write_text(json.dumps({**values, **recorded}))
        state = State.read(tmp_path / "lab")
        assert state is not None
        assert (state.directory, state.index, state.spec) == (tmp_path / "lab", 3, spec.plain(2))


def test_the_inventory_of_a_lab_needs_no_consent_on_the_machine_that_made_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    state = State("0" * 32, "lab", tmp_path, 3, "none", spec.plain(2))
    (tmp_path / "id_ed25519").write_text("")
    for node in state.nodes:
        node.directory.mkdir(parents=True)
        (node.directory / "host_key.pub").write_text("ssh-ed25519 AAAA x")
    inventory.write(state)
    made = load(tmp_path / "inventory.yaml")
    assert [each.kind for each in powers.of_inventory(made)] == ["identity", "known_hosts", "ignore"]
    assert consent.unaccepted(made) == []
