"""Reports about the memory of nodes around a start, and which nodes are queried."""

from __future__ import annotations

import pytest

from sparkcluster.facts.docker import Rank
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node.shared import LABEL_RANK_DIR
from sparkcluster.report import Report
from sparkcluster.runtime import Changer, memory

GIB = 2**30


class Notes(Report):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.doing: list[tuple[str, str]] = []

    def progress(self, node: str, text: str) -> None:
        self.doing.append((node, text))

    def note(self, text: str) -> None:
        self.notes.append(text)


def rank():
    return Rank(name="x", state="running", labels={LABEL_RANK_DIR: "/s/ranks/0"})


LEFT = {"name": "psm_1a2b", "size_bytes": 2 * GIB, "owner": "root"}


@pytest.fixture
def wait():
    """Waits for the memory of stopped ranks on nodes that print these lines; returns the report, and the nodes."""

    def run(stopped, **lines):
        hosts = {name: FakeHost(name).program("memory", said) for name, said in lines.items()}
        changer = Changer(Fleet(hosts), cluster="atlas", state_dir="~/s", epochs=dict.fromkeys(hosts, 1))
        report = Notes()
        memory.watch_return(changer, stopped, report)
        return report, hosts

    return run


def test_unreleased_memory_and_leftovers_in_dev_shm_are_reported(wait):
    found = {"missing_bytes": int(31.25 * GIB), "waited_s": 60, "shm": [LEFT, {**LEFT, "name": "a;$b"}]}
    report, hosts = wait(
        {"alpha": [rank()], "beta": [rank()], "gamma": []},
        alpha=[{"missing_bytes": 0}],
        beta=[found],
        gamma=[],
    )
    asked = {name: host.requests for name, host in hosts.items()}
    assert asked["beta"] == [("memory", {"rank_dirs": ["/s/ranks/0"], "limit_s": 60})], "no lease, and no change"
    assert (len(asked["alpha"]), asked["gamma"]) == (1, [])
    assert {node for node, _ in report.doing} == {"alpha", "beta"}
    warning, hint = report.notes
    assert warning == (
        "warning: beta: /dev/shm/psm_1a2b was not removed (2.15 GB, owner root); "
        "/dev/shm/a;$b was not removed (2.15 GB, owner root); "
        "33.6 GB not freed 60 s after its rank ended"
    )
    assert "sudo rm /dev/shm/psm_1a2b '/dev/shm/a;$b'; " in hint
    assert hint.endswith("reboot the node")


def test_files_alone_are_no_reason_to_reboot(wait):
    notes = wait({"a": [rank()]}, a=[{"missing_bytes": 0, "waited_s": 0, "shm": [LEFT]}])[0].notes
    assert notes[1] == "hint: on a: if sudo fuser -v /dev/shm/psm_1a2b shows no program: sudo rm /dev/shm/psm_1a2b"


@pytest.mark.parametrize(
    "lines",
    [
        [{"done": {"missing_bytes": "many"}}],
        [],
        [{"waits_s": 2}],
        [{"failed": "x"}, "x"],
        *[[{"done": {"shm": [{**LEFT, "name": name}]}}] for name in ("..", ".", "../etc/passwd", "a b", "", "x" * 256)],
    ],
)
def test_a_node_without_an_answer_is_not_judged(wait, lines):
    assert wait({"a": [rank()]}, a=lines)[0].notes == []
