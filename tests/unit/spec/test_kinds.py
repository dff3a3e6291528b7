"""A file of the wrong kind is reported with its actual kind and the command to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.cli.main import guarded

FILES = {
    "inventory.yaml": "cluster: pair\nplaybook: gpt-oss-20b\nnodes: [{host: 10.0.0.1}]\n",
    "other.yaml": "cluster: pair\nplaybook: inventory.yaml\nnodes: [{host: 10.0.0.1}]\n",
    "serve.yaml": "name: serve\nmodel: {id: owner/model}\nimage: vllm/vllm-openai:v0.20.0\n",
    "fast.yaml": "overlay: fast\nargs: {max-model-len: 1}\n",
    "compose.yaml": "services: {engine: {image: a/b}}\n",
}
LISTED = "give a playbook; sparkcluster playbooks lists them"


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("status serve.yaml", "serve.yaml is a playbook, not an inventory", "give an inventory, and --playbook serve.yaml"),
        ("up gpt-oss-20b", "gpt-oss-20b: no such file", "gpt-oss-20b is a playbook: give an inventory, and --playbook"),
        ("plan fast.yaml", "fast.yaml is an overlay, not an inventory", "give an inventory, and --playbook NAME+OVERLAY"),
        ("up inventory.yaml --playbook inventory.yaml", "inventory.yaml is an inventory, not a playbook", LISTED),
        ("up inventory.yaml --playbook fast.yaml", "fast.yaml is an overlay, not a playbook", "give PLAYBOOK+OVERLAY"),
        ("lint other.yaml", "other.yaml:2:11: playbook: inventory.yaml is an inventory, not a playbook", LISTED),
        ("lint compose.yaml", "compose.yaml is neither an inventory nor a playbook", "sparkcluster import compose.yaml"),
        ("status inventroy.yaml", "inventroy.yaml: no such file", "did you mean inventory.yaml?"),
        ("status away.yaml", "away.yaml: no such file", "sparkcluster discover -o away.yaml   writes an inventory"),
    ],
)  # fmt: skip
def test_a_wrong_kind_of_file_is_reported_with_the_command_to_type(
    line: str,
    error: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert guarded(line.split()) == 2
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {error}")
    assert second.strip().startswith(f"hint: {hint}")
