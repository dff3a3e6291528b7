"""Questions of ``discover`` on a terminal, and Ctrl-C at each of them."""

from __future__ import annotations

import pytest

from tests.unit.on_terminal import OnTerminal

PROGRAM = """
import ipaddress, sys
from pathlib import Path
from sparkcluster.cli.main import guarded
from sparkcluster.setup import discover, mdns, networks, targets
from sparkcluster.setup.mdns import Browsed, Candidate
from tests.unit.discovery import Network, machine
network = Network()
discover.connect, discover.behind = network.connect, network.behind
networks.attached = lambda: (networks.Attached("eth0", ipaddress.ip_interface("192.168.1.5/24")),)
targets.RELEASE = Path("/no/dgx-release")
network.put("192.168.1.11", answer=machine(1, "192.168.1.11/24"))
network.put("192.168.1.9", answer=machine(9, "192.168.1.9/24"))
names = {"spark-0001": "192.168.1.11", "nas": "192.168.1.9", "pi": "192.168.1.8"}
found = tuple(Candidate(name + ".local", address) for name, address in names.items())
mdns.browse = lambda attached: Browsed(found)
sys.exit(guarded(["discover", *sys.argv[1:]]))
"""

WHICH, LOGIN, CHANGE = "log in to spark-0001.local (192.168.1.11)?", "login name on the Sparks", "change mine.yaml?"
MINE = "cluster: home\nnodes:\n  - {name: first, host: 192.168.1.11, ssh: {user: nvidia}}\nplaybook: gpt-oss-120b\n"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(("answer", "code"), [("", 0), ("n", 2)])
def test_discover_asks_before_it_logs_in_to_a_machine_named_like_a_spark(file, answer, code):
    """A neighbour's Spark may have the same kind of name."""
    with OnTerminal(PROGRAM, "-o", "mine.yaml") as terminal:
        terminal.until(WHICH)
        terminal.type(f"{answer}\r")
        if code == 0:
            terminal.until(LOGIN)
            terminal.type("bob\r")
        assert terminal.end() == code
    assert "not named like a Spark: nas.local, pi.local" in terminal.shown
    assert not file.exists() if code else "user: bob" in file.read_text()


def test_discover_shows_the_difference_and_asks_before_it_changes_an_inventory(file):
    file.write_text(MINE)
    with OnTerminal(PROGRAM, "--host", "192.168.1.9", "--user", "bob", "--into", "mine.yaml") as terminal:
        terminal.until("+  - host: 192.168.1.9")
        terminal.until(CHANGE)
        assert file.read_text() == MINE
        terminal.type("y\r")
        assert terminal.end() == 0
    assert file.read_text() != MINE


@pytest.mark.parametrize(
    ("words", "questions"),
    [([], [WHICH, LOGIN]), (["--into", "mine.yaml", "--user", "bob"], [WHICH])],
)
def test_ctrl_c_at_any_question_ends_the_command(file, words, questions):
    file.write_text(MINE)
    with OnTerminal(PROGRAM, *words) as terminal:
        for question in questions[:-1]:
            terminal.until(question)
            terminal.type("\r")
        terminal.until(questions[-1])
        terminal.type("\x03")
        assert terminal.end() == 130
    assert file.read_text() == MINE
    assert "Traceback" not in terminal.shown
