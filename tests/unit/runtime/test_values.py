"""Values of secrets: their sources, and refusals before any change."""

from __future__ import annotations

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.plan.release_record import RecordedGroup
from sparkcluster.runtime import secrets
from sparkcluster.spec.playbook import Verify


@pytest.fixture
def keyed(world):
    """A cluster with WANDB_KEY and an API key from a source that the test sets."""
    return lambda **key: world(playbook={"secrets": ["WANDB_KEY"]}, api={"key": key})


def test_every_secret_in_the_plan_gets_its_value(keyed, monkeypatch):
    cluster = keyed(env="MY_KEY")
    for name, value in {"WANDB_KEY": "hf_1", "MY_KEY": "k1", "OTHER": "x"}.items():
        monkeypatch.setenv(name, value)
    found = secrets.values(cluster.spec, cluster.plan())
    assert found["WANDB_KEY"] == "hf_1"
    assert found["VLLM_API_KEY"] == "k1"
    assert set(found) == {"WANDB_KEY", "VLLM_API_KEY", "RAY_AUTH_TOKEN"}


def test_ray_gets_a_new_token_for_every_launch(world):
    cluster = world()
    first, second = (secrets.values(cluster.spec, cluster.plan())["RAY_AUTH_TOKEN"] for _ in range(2))
    assert first != second
    assert len(first) == 64


@pytest.mark.parametrize("value", [None, "", "two\nlines", "\udcff\udcfe"])
def test_an_unusable_variable_is_refused_first_and_its_value_never_shown(keyed, monkeypatch, value):
    monkeypatch.setenv("MY_KEY", "k1")
    if value is None:
        monkeypatch.delenv("WANDB_KEY", raising=False)
    else:
        monkeypatch.setenv("WANDB_KEY", value)
    with pytest.raises(UsageError) as caught:
        secrets.check(keyed(env="MY_KEY").spec)
    assert "WANDB_KEY" in caught.value.message
    assert "export WANDB_KEY" in caught.value.hint
    assert caught.value.exit_code == 2
    assert not value or value not in caught.value.message


@pytest.mark.parametrize("content", [None, b" \n", b"\xff\xfe", "directory"])
def test_an_unusable_key_file_is_refused_first(keyed, monkeypatch, tmp_path, content):
    monkeypatch.setenv("WANDB_KEY", "hf_1")
    file = tmp_path / "key"
    if content == "directory":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        secrets.check(keyed(file=str(file)).spec)
    assert str(file) in caught.value.message
    assert "sparkcluster key INVENTORY" in caught.value.hint


@pytest.mark.parametrize(
    ("alice", "bob", "told"),
    [
        ("hers", "his", None),
        ("", "his", "ALICE_KEY is not set, but the inventory reads the key alice from it"),
        ("a\nb", "his", "ALICE_KEY is not one line of text, but the inventory reads the key alice from it"),
        ("hers", "", "FILE must contain the key bob as one line of text"),
    ],
)
def test_each_key_of_the_gateway_has_a_value(cluster, monkeypatch, tmp_path, alice, bob, told):
    monkeypatch.setenv("MY_KEY", "shared")
    monkeypatch.setenv("ALICE_KEY", alice)
    (tmp_path / "bob.key").write_text(f"{bob}\n")
    keys = {"alice": {"env": "ALICE_KEY"}, "bob": {"file": str(tmp_path / "bob.key")}}
    spec = cluster({"a": "10.0.0.1"}, api={"key": {"env": "MY_KEY"}}, gateway={"keys": keys})
    if told is None:
        secrets.check(spec)
        assert secrets.accepted_keys(spec) == {"shared": None, "hers": None, "his": None}
        return
    with pytest.raises(UsageError) as caught:
        secrets.check(spec)
    assert caught.value.message.replace(str(tmp_path / "bob.key"), "FILE") == told


def test_the_key_of_a_running_release_is_compared_under_its_engines_variable(world, monkeypatch):
    """The inventory already has another engine; the upgrade comes later."""
    spec = world(playbook={"engine": "sglang"}, api={"key": {"env": "MY_KEY"}}).spec
    hashes = secrets.keyed_hashes({"VLLM_API_KEY": "k1"})
    group = RecordedGroup("default", 1, "vllm", {}, Verify(), secrets=hashes)
    monkeypatch.setenv("MY_KEY", "k1")
    assert secrets.rotated(group, spec) == ()
    assert secrets.key_warning(group, spec) is None
    monkeypatch.setenv("MY_KEY", "k2")
    assert secrets.rotated(group, spec) == ("VLLM_API_KEY",)
    assert secrets.key_warning(group, spec)
