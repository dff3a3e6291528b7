"""Node-side code for vLLM: the list of variables that Ray must not copy to other nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkcluster.engines.vllm import node


def test_the_carry_over_file_lists_variables_that_stay_on_their_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(node.tempfile, "tempdir", str(temporary))
    env = {"HOME": str(tmp_path / "home")}
    private = tmp_path / "private"
    path = Path(node.keep_variables(env, ["NCCL_IB_HCA", "VLLM_HOST_IP", "SPARKCLUSTER_RANK"], str(private)))
    assert path == private / "ray_non_carry_over_env_vars.json"
    assert env["VLLM_CONFIG_ROOT"] == str(private)
    assert json.loads(path.read_text()) == ["NCCL_IB_HCA", "SPARKCLUSTER_RANK", "VLLM_CONFIG_ROOT", "VLLM_HOST_IP"]
    assert not list(temporary.iterdir())  # a rank that is a plain process would leave it behind permanently


@pytest.mark.parametrize("set_by_user", [True, False])
def test_a_users_carry_over_file_is_kept(tmp_path: Path, set_by_user: bool) -> None:
    """In VLLM_CONFIG_ROOT, or in vLLM's default directory."""
    root = tmp_path / "theirs" if set_by_user else tmp_path / ".config" / "vllm"
    root.mkdir(parents=True)
    (root / "ray_non_carry_over_env_vars.json").write_text('["MINE"]')
    env = {"HOME": str(tmp_path)}
    if set_by_user:
        env["VLLM_CONFIG_ROOT"] = str(root)
    path = node.keep_variables(env, ["OURS"], str(tmp_path / "private"))
    assert {"MINE", "OURS"} <= set(json.loads(Path(path).read_text()))
    assert (env["VLLM_CONFIG_ROOT"] == str(root)) is set_by_user


@pytest.mark.parametrize("broken", ["{", '{"a": 1}', '[1, "KEPT"]'])
def test_an_invalid_carry_over_file_does_not_fail_the_launch(tmp_path: Path, broken: str) -> None:
    (tmp_path / "ray_non_carry_over_env_vars.json").write_text(broken)
    env = {"HOME": "/nowhere", "VLLM_CONFIG_ROOT": str(tmp_path)}
    names = json.loads(Path(node.keep_variables(env, ["OURS"], str(tmp_path))).read_text())
    assert all(isinstance(name, str) for name in names)
    assert "OURS" in names
    assert ("KEPT" in names) is ("KEPT" in broken)
