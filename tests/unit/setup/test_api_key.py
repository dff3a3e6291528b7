"""An API key is created once, rotated on request, readable only by its owner, and never printed; the inventory keeps its text."""

from __future__ import annotations

import json
import re
import stat

import pytest

from sparkcluster.cli import main as frame
from sparkcluster.errors import UsageError
from sparkcluster.setup.inventory_file import GONE, with_values
from sparkcluster.spec import consent
from sparkcluster.spec.load import load

HEAD = "# mine\ncluster: desk\nnodes:\n  - host: 192.168.1.11   # the left one\nplaybook: gpt-oss-120b\n"
FILE = "~/.config/sparkcluster/desk.key"
NAMED = {("api", "key", "file"): FILE, ("api", "key", "env"): GONE}

# The inventory's API section, before and after a key is in FILE.
EDITS = {
    "nothing": (HEAD, f"{HEAD}\napi:\n  key:\n    file: {FILE}\n"),
    "a section": (
        f"{HEAD}api:\n  host: management   # LAN\n  # key:\n  #   env: K\nignore: []\n",
        f"{HEAD}api:\n  host: management   # LAN\n  key:\n    file: {FILE}\n  # key:\n  #   env: K\nignore: []\n",
    ),
    "a variable": (
        f"{HEAD}api:\n  key:   # required\n    env: KEY   # export KEY=… first\n  port: 9000\n",
        f"{HEAD}api:\n  key:   # required\n    file: {FILE}\n  port: 9000\n",
    ),
    "windows": (
        f"{HEAD}api:\n  port: 9000\n".replace("\n", "\r\n"),
        f"{HEAD}api:\n  port: 9000\n  key:\n    file: {FILE}\n".replace("\n", "\r\n"),
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_the_file_is_written_into_the_inventory_and_every_other_byte_is_unchanged(case):
    before, after = EDITS[case]
    assert with_values(before, "desk.yaml", NAMED) == after


@pytest.mark.parametrize(
    "api",
    ["api:\n", "api: &a {port: 9000}\nenv: *a\n", "api: {port: 9000, key: {env: KEY}}\n"],
)
def test_an_unclear_inventory_is_unchanged_and_the_lines_to_write_are_shown(api):
    with pytest.raises(UsageError) as caught:
        with_values(f"{HEAD}{api}", "desk.yaml", NAMED)
    assert f"api:\n  key:\n    file: {FILE}" in caught.value.message


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    """``desk(api, *words)``: what ``key`` prints for an inventory with this text after HEAD."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "home").mkdir()

    def run(api, *words, code=0):
        if api is not None:
            (tmp_path / "desk.yaml").write_text(HEAD + api)
        assert frame.guarded(["key", "desk.yaml", *words]) == code
        return capsys.readouterr()

    run.file = tmp_path / "home/.config/sparkcluster/desk.key"
    run.inventory = tmp_path / "desk.yaml"
    return run


LOCAL = "api:\n  host: management\n"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_created_and_named_and_kept_by_a_second_run(desk):
    first = desk(LOCAL)
    key = desk.file.read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{48}", key)
    assert mode(desk.file) == 0o600
    assert load(desk.inventory, starts=False).inventory.api.key.file == FILE
    text = desk.inventory.read_text()
    again = desk(None)
    assert (desk.file.read_text().strip(), desk.inventory.read_text()) == (key, text)
    assert "created a key in" in first.out
    assert f"kept the key in {FILE}; --rotate makes a new one\n" in again.out
    assert "sparkcluster restart desk.yaml" in first.err
    assert "restart" not in again.err
    header = f'-H "Authorization: Bearer $(cat {FILE})"'
    assert header in first.out
    assert header in again.out
    assert key not in "".join([*first, *again])


def test_a_key_is_rotated_only_on_request_and_the_old_one_is_removed(desk):
    desk(LOCAL)
    key = desk.file.read_text()
    said = desk(None, "--rotate")
    assert desk.file.read_text() != key
    assert mode(desk.file) == 0o600
    assert "created a new key in" in said.out
    assert "next: sparkcluster restart desk.yaml" in said.err


def test_a_key_readable_by_others_is_kept_and_its_mode_fixed(desk):
    desk(LOCAL)
    desk.file.chmod(0o644)
    key = desk.file.read_text()
    desk(None)
    assert (desk.file.read_text(), mode(desk.file)) == (key, 0o600)


def test_a_key_in_a_variable_is_unchanged_unless_a_file_is_specified_which_then_gets_it(desk, monkeypatch, tmp_path):
    monkeypatch.setenv("SPARKCLUSTER_KEY", "abc123")
    text = "api:\n  key:\n    env: SPARKCLUSTER_KEY\n"
    said = desk(text, code=2).err
    assert "from the variable SPARKCLUSTER_KEY" in said
    assert f"sparkcluster key desk.yaml --file {FILE}" in said
    assert desk.inventory.read_text() == HEAD + text
    out = desk(text, "--file", "here.key").out
    assert (tmp_path / "here.key").read_text() == "abc123\n"
    assert load(desk.inventory, starts=False).inventory.api.key.file == str(tmp_path / "here.key")
    assert "-    env: SPARKCLUSTER_KEY" in out
    assert "abc123" not in out
    assert consent.unaccepted(load(desk.inventory)) == []


def test_a_path_that_the_shell_expanded_is_written_relative_to_the_home(desk, tmp_path):
    desk(LOCAL, "--file", str(tmp_path / "home/desk.key"))
    assert load(desk.inventory, starts=False).inventory.api.key.file == "~/desk.key"
    assert (tmp_path / "home/desk.key").is_file()


def test_a_secret_that_is_not_declared_as_the_key_is_not_used_as_one(desk, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    desk("api:\n  key:\n    env: HF_TOKEN\n", "--file", FILE)
    assert re.fullmatch(r"[0-9a-f]{48}\n", desk.file.read_text())


PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("content", "mode", "typed"),
    [(PRIVATE, 0o600, True), ("one line\n", 0o600, True), ("word\n", 0o644, True), ("hf_token\n", 0o600, False)],
)
def test_a_file_that_is_not_an_api_key_is_not_replaced(desk, tmp_path, content, mode, typed):
    other = tmp_path / "home/other"
    other.write_text(content)
    other.chmod(mode)
    said = desk("api: {key: {file: ~/other}}\n", "--rotate", *(["--file", "~/other"] if typed else []), code=2).err
    assert other.read_text() == content
    assert "sparkcluster key desk.yaml --file" in said


def test_a_file_named_only_by_the_inventory_is_not_created_or_changed(desk, tmp_path):
    other = tmp_path / "home/other"
    other.write_text("word")
    other.chmod(0o644)
    for name in ("other", "none"):
        assert f"key desk.yaml --file '~/{name}'" in desk(f"api: {{key: {{file: ~/{name}}}}}\n", code=2).err.replace(
            f"~/{name}", f"'~/{name}'"
        )
    assert (other.read_text(), mode(other)) == ("word", 0o644)
    assert not (tmp_path / "home/none").exists()


def test_a_key_created_elsewhere_is_rotated_on_request(desk, tmp_path):
    desk(LOCAL, "--file", "~/desk.key")
    made = (tmp_path / "home/desk.key").read_text()
    desk(None, "--rotate")
    assert (tmp_path / "home/desk.key").read_text() != made


def test_an_impossible_request_changes_nothing(desk, tmp_path):
    for api, words in (
        ("api:\n", ()),
        (LOCAL, ("--file", str(tmp_path / "home"))),
        (LOCAL, ("--file", str(tmp_path / "a-slip/spark.key"))),
        ("api: {hots: x}\n", ()),
    ):
        desk(api, *words, code=2)
        assert desk.inventory.read_text() == HEAD + api
        assert not desk.file.exists()
        assert not (tmp_path / "a-slip").exists()


SEVERAL = """cluster: desk
nodes:
  - {name: left, host: 192.168.1.11}
  - {name: right, host: 192.168.1.12}
models:
  - {playbook: qwen3-embedding-4b, nodes: [right], port: 9100%s}
  - {playbook: gpt-oss-120b, nodes: [left]}
%sapi:
  host: management
"""


@pytest.mark.parametrize(
    ("on_demand", "gateway", "address"),
    [
        ("", "", "192.168.1.12:9100"),
        ("", "gateway: {port: 8100}\n", "192.168.1.12:8100"),
        (", on_demand: {}", "gateway: {}\n", "192.168.1.11:8000"),
    ],
)
def test_with_several_models_the_first_one_or_the_gateway_is_asked(desk, on_demand, gateway, address):
    desk.inventory.write_text(SEVERAL % (on_demand, gateway))
    first, again = json.loads(desk(None, "--json").out), json.loads(desk(None, "--json").out)
    assert first["key"] == "created"
    assert first["curl"].endswith(f" http://{address}/v1/models")
    assert again == {**first, "key": "kept", "changed": False, "difference": []}


def test_without_an_address_to_show_nothing_is_made(desk, monkeypatch):
    def refuse(target):
        raise UsageError("ssh_config cannot be used")

    monkeypatch.setattr("sparkcluster.inspect.connect.ssh_target", refuse)
    desk(LOCAL, code=2)
    assert desk.inventory.read_text() == HEAD + LOCAL
    assert not desk.file.exists()


def test_the_document_has_the_change_and_no_key(desk):
    found = json.loads(desk(LOCAL, "--json").out)
    assert (found["file"], found["key"], found["changed"]) == (FILE, "created", True)
    assert found["curl"].startswith("curl -H")
    assert desk.file.read_text().strip() not in json.dumps(found)
    assert json.loads(desk(None, "--json").out) == {**found, "key": "kept", "changed": False, "difference": []}
