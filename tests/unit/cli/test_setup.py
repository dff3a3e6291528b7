"""``sparkcluster setup`` as its user meets it; the nodes are scripted."""

from __future__ import annotations

from typing import Any

from sparkcluster.cli import setup
from sparkcluster.cli.main import guarded
from sparkcluster.hosts.base import Result
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from tests.unit.setup import wired

INVENTORY = (
    "cluster: atlas\nnodes: [{name: a, host: 10.77.0.11}, {name: b, host: 10.77.0.12}]\nplaybook: gpt-oss-120b\n"
)


def test_a_node_whose_only_change_is_blocked_ends_what_is_done_on_others_without_an_error(
    tmp_path, monkeypatch, capsys
):
    """Ranks run on ``b``, so Docker is not restarted there; on ``a`` the step is done."""
    documents = wired.documents(wired.ONE)
    for document in documents.values():
        document |= {"docker": "28.1.1", "runtimes": ["runc"]}
    documents["b"]["ranks"] = ["atlas-rank1"]
    hosts = {name: FakeHost(name).program("survey", document) for name, document in documents.items()}

    def script(*_: Any) -> Result:
        documents["a"]["runtimes"] = ["nvidia", "runc"]
        return Result(0, b"sparkcluster: root\nnvidia-runtime: done\n", b"")

    hosts["a"].on("sh", answer=script)
    monkeypatch.setattr(setup, "connect_fleet", lambda *_: Fleet(hosts))
    path = tmp_path / "atlas.yaml"
    path.write_text(INVENTORY)
    assert guarded(["setup", str(path), "--only", "nvidia-runtime", "--yes"]) == 1
    out, err = capsys.readouterr()
    assert "a: done: nvidia-runtime\n" in out
    assert "b: cannot be done: ranks run on it: atlas-rank1\n" in out
    assert "internal error" not in out + err
    assert not any(argv[0] == "sh" for argv, _ in hosts["b"].calls)
