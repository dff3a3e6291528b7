"""``discover``, ``setup`` and ``key``: any output of a machine, its script or a file is an error of that one.

With ``--json`` stdout is one document.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.cli import main as frame
from sparkcluster.hosts.base import Closing, Result
from sparkcluster.hosts.connect import Address
from sparkcluster.hosts.fake import FakeStream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.setup.networks import Attached
from tests.unit.discovery import mac, machine
from tests.unit.setup import wired

from . import fleet, spoil
from .conftest import cases
from .test_answers import CRASHED

FAR = "fe80::2%enp1s0f1np1"
HEARD = {number: (("enp1s0f1np1", mac(other, 1), f"fe80::{other}"),) for number, other in ((1, 2), (2, 1))}
ENTRY = {"at": 1.7e9, "operator": "ann@desk", "before": "absent", "after": "0" * 64, "root": True}
JOURNAL = [
    {**ENTRY, "number": 1, "step": "sysctl", "kind": "file", "target": "/etc/sysctl.d/90-sparkcluster.conf"},
    {**ENTRY, "number": 2, "step": "netplan", "kind": "link", "target": "enp1s0f1np1", "after": "9000 1 10.0.0.1/24"},
]
SAID = (
    b"sysctl: vm.swappiness = 1", b"sysctl: done", b"limits: failed: no space", b"netplan: confirm: ", b"left /etc/x: changed",
    b"docker-group: done", b"netplan: left enp1s0f1np1: it has another address", b"hf-cache: \x1b[2J\xff", b"", b"x" * 70_000,
)  # fmt: skip


class Machine(fleet.Host, Closing):
    """A node; ``script`` are the lines of a script that is run there."""

    def __init__(
        self, name: str, answer: Callable[[str, str, dict[str, Any]], list[bytes]], script: bytes = b""
    ) -> None:
        super().__init__(name, answer)
        self.script = script

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> Any:
        return FakeStream(Result(len(self.script) % 2, self.script, b""), self.name)

    def separate_connection(self) -> Machine:
        return self


class Attack:
    """Runs one command; ``hostile`` is the index of the machine whose answer or script is corrupted."""

    def __init__(self, attacked: Any, seed: int) -> None:
        self.attacked, self.chance = attacked, Random(seed)
        self.seed = seed

    def host(self, name: str, document: dict[str, Any], *, hostile: bool) -> Machine:
        chance = self.chance

        def answer(name: str, program: str, request: dict[str, Any]) -> list[bytes]:
            return [spoil.line(chance, document) if hostile else json.dumps(document).encode()]

        lines = [chance.choice(SAID) for _ in range(chance.randrange(6))] if hostile else [b"sysctl: done"]
        refused = hostile and chance.random() < 0.1
        return Machine(name, answer, b"\n".join([*([] if refused else [b"sparkcluster: root"]), *lines]))

    def run(self, *words: str) -> tuple[int, str]:
        """Run the command ``words``, half of the time with ``--json``; returns its exit code and stdout."""
        as_json = self.chance.random() < 0.5
        out, err = io.StringIO(), io.StringIO()
        self.attacked.internal.clear()
        self.attacked.patched.chdir(self.attacked.inventory.parent)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = frame.guarded([*words, *["--json"] * as_json])
        if self.attacked.internal:
            raise AssertionError(f"internal error, seed {self.seed}") from self.attacked.internal[0]
        output = out.getvalue() + err.getvalue()
        assert code in {0, 1, 2}, output
        assert not CRASHED.search(output), output
        if as_json:
            json.loads(out.getvalue())
        return code, out.getvalue()


def discovering(attack: Attack, patched: pytest.MonkeyPatch, hostile: str) -> None:
    """Make ``discover`` find two Sparks, the second over the cable of the first."""
    documents = {
        "192.168.1.11": machine(1, "192.168.1.11/24", heard=HEARD[1]),
        FAR: machine(2, "192.168.1.12/24", heard=HEARD[2]),
        "192.168.1.13": machine(3, "192.168.1.13/24"),
    }
    documents["192.168.1.12"] = documents[FAR]

    def host(name: str, address: Address) -> Machine:
        return attack.host(name, documents.get(address.host, {}), hostile=address.host == hostile)

    def connect(nodes: dict[str, Address], prompts: Any) -> Fleet:
        return Fleet({name: host(name, address) for name, address in nodes.items()})

    patched.setattr("sparkcluster.setup.discover.connect", connect)
    patched.setattr("sparkcluster.setup.discover.behind", lambda jump, name, address, prompts: host(name, address))
    network = Attached("eth0", ipaddress.ip_interface("192.168.1.5/24"))
    patched.setattr("sparkcluster.setup.networks.attached", lambda: (network,))
    patched.setattr("sparkcluster.setup.targets.is_here", lambda target: False)


DISCOVER = ["discover", "--host", "192.168.1.11", "--host", "192.168.1.13", "--user", "nvidia"]


@cases(30, 600)
@given(seed=st.integers(0, 2**48), hostile=st.sampled_from(["192.168.1.11", FAR, "192.168.1.12"]))
def test_discover_survives_any_machine_and_finds_the_others(attacked: Any, seed: int, hostile: str) -> None:
    attack = Attack(attacked, seed)
    discovering(attack, attacked.patched, hostile)
    _, found = attack.run(*DISCOVER)
    assert "192.168.1.13" in found
    assert hostile == "192.168.1.11" or "192.168.1.11" in found


def test_discover_finds_both_ends_of_a_cable(attacked: Any) -> None:
    """Otherwise the test above would not reach the code it tests."""
    attack = Attack(attacked, 0)
    discovering(attack, attacked.patched, "")
    code, found = attack.run(*DISCOVER)
    assert (code, found.count("192.168.1.12")) == (0, found.count("192.168.1.11"))


@pytest.mark.parametrize("flags", ["--yes", "--dry-run -v", "--show", "--undo --yes"])
@cases(15, 400)
@given(seed=st.integers(0, 2**48))
def test_setup_survives_any_answer_and_any_script(attacked: Any, flags: str, seed: int) -> None:
    attack = Attack(attacked, seed)
    documents = {name: {**each, "journal": JOURNAL} for name, each in wired.documents(wired.ONE).items()}

    def connect(inventory: Any, prompts: Any) -> Fleet:
        names = [node.label for node in inventory.nodes]
        hostile = attack.chance.choice(names)
        return Fleet(
            {name: attack.host(name, documents["ab"[at]], hostile=name == hostile) for at, name in enumerate(names)}
        )

    attacked.patched.setattr("sparkcluster.cli.common.fleet_of", connect)
    attacked.patched.setattr("sparkcluster.setup.run.CONFIRM_S", 0.01)
    attack.run("setup", str(attacked.inventory), *flags.split())


@cases(60, 1500)
@given(seed=st.integers(0, 2**48))
def test_key_survives_any_file(attacked: Any, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    attack = Attack(attacked, seed)
    chance, folder = attack.chance, tmp_path_factory.getbasetemp()
    inventory, key = folder / "atlas.yaml", folder / "api.key"
    inventory.write_text(f"{fleet.INVENTORY}\napi: {{key: {{file: {key}}}}}\n".replace("small.yaml", "gpt-oss-20b"))
    before = chance.choice(
        (*spoil.RAW, b"secret\n", b"\xff" * 40, "ключ".encode(), b"-----BEGIN OPENSSH PRIVATE KEY-----\n")
    )
    key.write_bytes(before)
    key.chmod(chance.choice((0o600, 0o644)))
    attack.run("key", str(inventory), *chance.choice(([], ["--rotate"], ["--file", str(key)])))
    assert key.read_bytes() == before or len(key.read_bytes()) == 49
