"""A node whose record lies about other machines is not followed. Real sshd, sockets, terminal and nodes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import pytest
import yaml

from sparkcluster.hosts import known_hosts
from sparkcluster.spec import consent
from sparkcluster.spec.load import load


class Listener:
    """A socket that counts connections."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.peers = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            self.peers.append(peer)
            peer.close()


@pytest.fixture
def listener():
    made = Listener()
    yield made
    made.socket.close()


@pytest.fixture
def site(tmp_path, listener):
    """``site(nodes)``: an inventory of this machine, whose record names ``nodes``; new SSH hosts connect to ``listener``."""
    state = tmp_path / "state"
    releases = state / "clusters" / "atlas" / "releases"
    releases.mkdir(parents=True)
    (state / "clusters" / "atlas").chmod(0o700)
    inventory = tmp_path / "inventory.yaml"
    playbook = {"name": "tiny", "model": {"id": "a/b"}, "executor": "native"}
    (tmp_path / "playbook.yaml").write_text(yaml.safe_dump(playbook))

    def make(nodes):
        record = {"number": 1, "plan_hash": "x", "nodes": nodes}
        (releases / "000001.json").write_text(json.dumps(record))
        document = {
            "cluster": "atlas",
            "nodes": [{"name": "here", "host": "localhost", "connection": "local"}],
            "ssh": {"port": listener.port, "connect_timeout_s": 5},
            "playbook": "playbook.yaml",
            "runtime": {"kind": "process"},
            "state_dir": str(state),
        }
        inventory.write_text(yaml.safe_dump(document))
        consent.remember(each.digest for each in consent.unaccepted(load(inventory)))
        return inventory

    return make


def test_down_contacts_no_machine_from_a_record_and_stores_no_key_of_its_choice(start_sshd, site, tmp_path, listener):
    evil = start_sshd("evil")
    mine = tmp_path / "authorized_keys"
    mine.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdm4r4nXtTXa6M5n2m4B2b8iUu1zR4l2o7pXQ9rX3aB me@desk\n")
    before = mine.read_bytes()
    chosen = {"known_hosts": str(mine), "host_keys": "accept-new", "identity": str(evil.identity)}
    nodes = {
        "evil": {"host": "127.0.0.1", "connection": "ssh", "ssh": {"port": evil.port, **chosen}},
        "behind": {"host": "127.0.0.2", "connection": "ssh", "ssh": {"jump": f"127.0.0.1:{listener.port}", **chosen}},
        "raw": {"host": "127.0.0.3", "connection": "ssh", "ssh": {"port": listener.port}},
        "here\x1b]52;c;eA==\x07": {"host": "127.0.0.4"},
    }
    done = subprocess.run(
        [sys.executable, "-m", "sparkcluster", "down", str(site(nodes)), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert mine.read_bytes() == before
    assert "Accepted" not in evil.log.read_text()
    assert listener.peers == []
    assert done.returncode == 0, done.stderr
    named = [(each["name"], each["host"], each["named_by"]) for each in json.loads(done.stdout)["not_contacted"]]
    assert named == [("evil", "127.0.0.1", ["here"]), ("behind", "127.0.0.2", ["here"]), ("raw", "127.0.0.3", ["here"])]
    assert f"sparkcluster down {tmp_path}/inventory.yaml --also 127.0.0.1 --also 127.0.0.2" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJdm4r4nXtTXa6M5n2m4B2b8iUu1zR4l2o7pXQ9rX3aB"


@pytest.mark.parametrize(
    "content",
    [
        None,
        f"a,[10.0.0.1]:22 ssh-ed25519 {KEY} comment",
        f"|1|c2FsdA==|aGFzaA== ssh-ed25519 {KEY}\n@revoked old ssh-ed25519 {KEY}\n",
    ],
)
def test_a_key_is_stored_in_a_new_file_or_next_to_other_host_keys(tmp_path, content):
    file = tmp_path / "below" / "known_hosts"
    if content is not None:
        file.parent.mkdir()
        file.write_text(content)
    assert known_hosts.store(file, "new", "ssh-ed25519", KEY) == "known"
    assert file.read_text().startswith(content or "")
    assert file.read_text().endswith(f"\nnew ssh-ed25519 {KEY}\n" if content else f"new ssh-ed25519 {KEY}\n")
