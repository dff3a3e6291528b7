"""A copy as the controller runs it, with workers that are scripted: who reaches whom, who fails, and when.

What the workers do to files and sockets is shown with real ones in test_relay.py.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading

import pytest

from sparkcluster.errors import CommandFailed, HostLost, LeaseLost, StageError
from sparkcluster.hosts.base import Result
from sparkcluster.staging import job as jobs
from sparkcluster.staging.again import Step
from sparkcluster.staging.begin import Files, Settings
from sparkcluster.staging.job import Job
from sparkcluster.topology.build import build
from tests.unit.staging.conftest import Shown

UNIT = 10**9
FILE = {"path": "m.safetensors", "size": 60 * UNIT, "mtime": 7, "sha256": "0" * 64, "links": []}


class Stream:
    """What follows a worker: lines of it, and orders to it."""

    def __init__(self, worker) -> None:
        self.worker = worker
        self.queue: queue.Queue = queue.Queue()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def lines(self, silence_s):
        while (said := self.queue.get(timeout=20)) is not None:
            if isinstance(said, Exception):
                raise said
            yield json.dumps(said).encode()

    def send(self, data):
        for line in data.splitlines():
            self.worker.ordered(json.loads(line))

    def finish(self):
        return Result(1, b"", b"no output")

    def close(self):
        self.queue.put(None)


class Worker:
    """A node and its worker. ``has`` of 60 units; it pulls one from the first source that is alive, in each tick."""

    def __init__(self, network, name, has) -> None:
        self.network, self.name, self.has, self.begun_with = network, name, has, has
        self.request: dict = {}
        self.orders: list[dict] = []
        self.sources: list[dict] = []
        self.left: list[dict] = []
        self.state = "new"  # alive, dead, stopped, done, ended
        self.stream: Stream | None = None
        self.begins = 0
        self.silent = False
        self.files: dict[str, bytes] = {}
        self.room = {"free": 900 * UNIT, "needed": (60 - has) * UNIT, "path": "/home"}

    @property
    def done(self):
        return {"bytes": (60 - self.begun_with) * UNIT, "seconds": 2.0}

    def renew(self, *, before=0):
        pass

    def stream_of(self, request):
        self.request, self.begins = request, self.begins + 1
        self.stream = Stream(self)
        if self.state == "new":
            self.state = "alive"
        self.ports = {each["address"]: 4000 + place for place, each in enumerate(request["listen"])}
        self.say(
            ports=self.ports, token=request["token"], cert=request["cert"],
            lacks={"files": int(self.begun_with < 60), "bytes": (60 - self.has) * UNIT},
            room=self.room, **({"done": self.done} if self.state == "done" else {}),
        )  # fmt: skip
        return self.stream

    def say(self, **said):
        if self.stream is not None and not self.silent:
            self.stream.queue.put(said)

    def ordered(self, order):
        self.orders.append(order)
        if self.state not in {"alive", "done"}:
            return
        if "look" in order:
            reached: dict = {}
            for each in order["look"]:
                other = self.network.answers(self.name, each["address"])
                if other is not None and other.request["token"] == each["token"]:
                    assert other.ports[each["address"]] == each["port"]
                    reached.setdefault(each["node"], []).append(each["address"])
            self.say(reached=reached, round=order["round"])
        if "from" in order:
            self.sources = order["from"]
        if order.get("end") or order.get("cancel"):
            self.state = "ended"
            self.stream.queue.put(None)

    def fail(self, text, kind):
        self.state = "dead"
        self.say(failed=text, kind=kind)
        self.stream.queue.put(None)

    def tick(self):
        if self.state == "stopped":
            self.say(bytes=self.has * UNIT, total=60 * UNIT)  # what follows it goes on
        if self.state != "alive":
            return
        if self.has == 60:
            self.state = "done"
            self.say(bytes=60 * UNIT, total=60 * UNIT, done=self.done)
            return
        for source in self.sources:
            node = self.network.workers[source["node"]]
            if not any(self.network.answers(self.name, way["address"]) is node for way in source["ways"]):
                gone = {"node": node.name, "why": f"no data from {node.name} for 5 s", "offset": self.has * UNIT}
                if not any(each["node"] == node.name for each in self.left):
                    self.left.append(gone)
                continue
            if node.has > self.has:
                self.has += 1
            self.say(bytes=self.has * UNIT, total=60 * UNIT, **{"from": node.name}, left=list(self.left))
            return
        self.say(bytes=self.has * UNIT, total=60 * UNIT, left=list(self.left))


class Network:
    """Which node answers at an address, from another node; and what happens at which byte."""

    def __init__(self, facts, has) -> None:
        self.workers = {name: Worker(self, name, has.get(name, 0)) for name in facts}
        self.hosts = self.workers
        self.facts = facts
        self.cut: set[str] = set()  # nodes whose cables are cut
        self.cables = [set(facts)]  # nodes that are on one cable or switch
        self.managed = True
        self.at: list = []  # (condition, action)
        self.over = threading.Event()

    def __getitem__(self, name):
        return self.workers[name]

    def answers(self, near, address):
        """The worker that answers ``near`` at ``address``, by any cable between them."""
        for name, facts in self.facts.items():
            interface = facts.interface_of(address)
            if name == near or interface is None or self.workers[name].state not in {"alive", "done"}:
                continue
            rail = interface.name.startswith("enp")
            cabled = any({name, near} <= cable for cable in self.cables) and not {name, near} & self.cut
            if (cabled and rail) or (self.managed and not rail):
                return self.workers[name]
        return None

    def run(self):
        while not self.over.is_set():
            for worker in self.workers.values():
                worker.tick()
            for condition, action in list(self.at):
                if condition():
                    self.at.remove((condition, action))
                    action()
            self.over.wait(0.001)


@pytest.fixture
def copy(spark, cluster, monkeypatch):
    """Runs a copy of 60 GB among nodes; a function of the network sets what happens."""
    for name, value in (("_AGAIN_S", 0.02), ("_STUCK_S", 0.3), ("_GONE_S", 4.0), ("_LOOK_S", 2.0), ("_END_S", 1.0)):
        monkeypatch.setattr(jobs, name, value)
    made = []

    def start(host, module, request):
        assert module == "relay"
        return host.stream_of(request)

    monkeypatch.setattr("sparkcluster.staging.follower.stream", start)

    def make(names="abcd", has=None, set_up=lambda _: None, *, addresses=None, files=(FILE,), groups=None, **settings):
        facts = {
            name: spark(
                {"enp1s0f0np0": f"{(addresses or {}).get(name, f'10.1.0.{place}')}/24"},
                management=f"192.168.86.{place}/24",
            )
            for place, name in enumerate(names, 11)
        }
        network = Network(facts, has or {"a": 60})
        set_up(network)
        spec = cluster({name: name for name in names}, **({"groups": groups} if groups else {}))
        network.said = Shown()
        step = Step("stage weights", lambda _: {"state_dir": "/s", "cluster": "atlas", "epoch": 7}, lambda: False,
                    patience_s=1.0)  # fmt: skip

        def bring(step, host, key, content):
            host.files[key] = content

        requests = {name: {"what": "files", "root": f"/home/{name}/m"} for name in names}
        network.job = Job(
            step, network, facts, build(spec, facts), Files("weights", requests, files),
            bring=bring, settings=Settings(**settings), report=network.said,
        )  # fmt: skip
        threading.Thread(target=network.run, daemon=True).start()
        made.append(network)
        return network

    yield make
    for network in made:
        network.over.set()


def test_a_chain_brings_it_to_all_and_the_workers_are_told_to_end(copy):
    network = copy()
    arrived = network.job.run()
    assert {name: (each.source, each.bytes) for name, each in arrived.items()} == {
        "b": ("a", 60 * UNIT), "c": ("b", 60 * UNIT), "d": ("c", 60 * UNIT),
    }  # fmt: skip
    assert {worker.state for worker in network.workers.values()} == {"ended"}
    assert network.said.notes == network.job.loud == []
    last = {each.node: each for each in network.said.transfers}
    assert {(each.node, each.source, each.medium, each.encrypted, each.state) for each in last.values()} == {
        ("b", "a", "rail", False, "complete"),
        ("c", "b", "rail", False, "complete"),
        ("d", "c", "rail", False, "complete"),
    }


def test_each_worker_has_a_token_of_its_own_the_list_and_no_other_nodes_key(copy):
    network = copy("ab", limit_bytes_s=5)
    network.job.run()
    requests = [worker.request for worker in network.workers.values()]
    assert len({request["token"] for request in requests}) == 2
    assert len({request["private_key"] for request in requests}) == 2
    assert {request["limit_bytes_s"] for request in requests} == {5}
    assert all("PRIVATE" not in json.dumps(worker.orders) for worker in network.workers.values())
    (content,) = network["b"].files.values()
    assert json.loads(content) == {name: FILE[name] for name in FILE}
    assert requests[0]["key"] in network["a"].files
    assert (requests[0]["epoch"], requests[0]["node"]) == (7, "a")


def plain(worker):
    """Addresses that ``worker`` was to pull from in clear."""
    return {
        way["address"]
        for order in worker.orders for source in order.get("from", ()) for way in source["ways"] if "cert" not in way
    }  # fmt: skip


def test_everything_goes_under_tls_on_demand(copy):
    network = copy("abc", encrypt=True)
    network.job.run()
    assert all(each["tls"] for each in network["a"].request["listen"])
    assert not any(plain(worker) for worker in network.workers.values())
    assert network["b"].sources[0]["ways"][0]["cert"] == network["a"].request["cert"]
    assert all(each.encrypted for each in network.said.transfers)


PAIRS = {"a": "10.1.0.11", "b": "10.1.0.12", "c": "10.1.0.11", "d": "10.1.0.12"}
GROUPS = [{"name": "one", "nodes": ["a", "b"]}, {"name": "two", "nodes": ["c", "d"]}]


def pairs(network):
    network.cables = [{"a", "b"}, {"c", "d"}]


def test_pairs_that_share_a_subnet_number_get_it_over_their_own_cable_and_one_of_them_over_management(copy):
    """Until today the second pair was told to dial an address that on its own cable is the other node of the pair."""
    network = copy(set_up=pairs, addresses=PAIRS, groups=GROUPS)
    arrived = network.job.run()
    assert set(arrived) == {"b", "c", "d"}
    (loud,) = network.job.loud
    far = arrived["c"].source == "d"
    near, other = ("d", "c") if far else ("c", "d")
    assert loud == (
        f"a and {near} share no cable: {near} gets weights from a over the management network (enP7s7, 10 Gb/s), "
        "encrypted; 60.0 GB, about 2 min"
    )
    assert f"warning: {loud}" in network.said.notes
    assert arrived[other].source == near
    assert arrived["b"].source == "a"
    first = network[near].sources[0]
    assert (first["node"], first["ways"][0]["address"]) == ("a", "192.168.86.11")
    assert "cert" in first["ways"][0]
    shown = {each.node: (each.medium, each.encrypted) for each in network.said.transfers}
    assert shown == {"b": ("rail", False), near: ("wire", True), other: ("rail", False)}


def test_nothing_ever_goes_in_clear_beside_the_interconnect(copy):
    """Until today a copy over the management network was one like any other, and nothing was said."""

    def set_up(network):
        network.cables = []

    network = copy("abc", set_up=set_up)
    arrived = network.job.run()
    assert set(arrived) == {"b", "c"}
    assert len(network.job.loud) == 2
    assert not any(plain(worker) for worker in network.workers.values())


def test_a_node_whose_only_cable_goes_out_is_waited_for_and_then_given_up(copy, monkeypatch):
    monkeypatch.setattr(jobs, "_ALONE_S", 0.5)

    def set_up(network):
        network.managed = False
        network.at.append((lambda: network["b"].has > 20, lambda: network.cut.add("b")))

    network = copy("abc", set_up=set_up)
    with pytest.raises(StageError, match="b reaches no node that has the weights") as caught:
        network.job.run()
    assert not caught.value.others
    assert set(network.job.arrived) == {"c"}
    assert "b was left out: no answer over its cables" in network.said.notes


def test_a_node_that_reaches_nobody_is_an_error_and_the_others_get_it(copy):
    def set_up(network):
        network.cables, network.managed = [{"a", "b"}], False

    network = copy("abc", set_up=set_up)
    with pytest.raises(StageError, match="c reaches no node that has the weights") as caught:
        network.job.run()
    assert caught.value.node == "c"
    assert set(network.job.arrived) == {"b"}


@pytest.mark.parametrize("how", ["kill", "stop", "cable"])
def test_a_node_that_fails_in_the_middle_is_gone_past_and_named(copy, how):
    def set_up(network):
        b = network["b"]
        actions = {
            "kill": lambda: b.fail("its process on this node was ended", "lost"),
            "stop": lambda: setattr(b, "state", "stopped"),
            "cable": lambda: network.cut.add("b"),
        }
        network.at.append((lambda: b.has > 20, actions[how]))

    network = copy(set_up=set_up)
    if how == "cable":
        arrived = network.job.run()
        assert arrived["c"].source != "b"
        assert arrived["b"].bytes == 60 * UNIT
        (loud,) = network.job.loud  # it goes on over management, and people are told
        assert loud.startswith(f"{arrived['b'].source} and b share no cable: b gets weights from ")
        return
    with pytest.raises(StageError) as caught:
        network.job.run()
    assert caught.value.node == "b"
    assert set(network.job.arrived) == {"c", "d"}
    assert network["c"].has == network["d"].has == 60
    reason = "killed" if how == "kill" else "no answer"
    assert f"b was left out: {reason}" in network.said.notes
    assert network.job.arrived["c"].source != "b"
    assert ("b", "left out") in {(each.node, each.state) for each in network.said.transfers}


def test_a_disk_that_fills_up_ends_that_node_alone(copy):
    def set_up(network):
        network.at.append((lambda: network["b"].has > 20, lambda: network["b"].fail("no space left", "disk")))

    network = copy(set_up=set_up)
    with pytest.raises(StageError, match="stage weights on b: the disk is full: no space left"):
        network.job.run()
    assert "b was left out: its disk is full" in network.said.notes
    assert set(network.job.arrived) == {"c", "d"}


def test_all_disks_that_are_too_small_are_named_before_the_first_byte(copy):
    small = {"free": 41 * UNIT, "needed": 634 * UNIT // 10, "path": "/home/u/my models"}

    def set_up(network):
        for name in "bd":
            network[name].room = small

    network = copy(set_up=set_up)
    with pytest.raises(StageError) as caught:
        network.job.run()
    errors = [caught.value, *caught.value.others]
    assert [(each.node, each.message) for each in errors] == [
        (name, f"{name} has 41.0 GB free at /home/u/my models and needs 63.4 GB for weights: 22.4 GB are missing")
        for name in "bd"
    ]
    assert errors[0].hint == "du -sh '/home/u/my models'/*   on b"
    assert all(worker.has == worker.begun_with for worker in network.workers.values())
    assert {worker.state for worker in network.workers.values()} == {"ended"}
    assert all("cancel" in worker.orders[-1] for worker in network.workers.values())


def test_a_source_that_fails_where_another_node_has_it_fails_nobody(copy):
    def set_up(network):
        network.at.append((lambda: network["b"].has > 20, lambda: network["a"].fail("ended", "lost")))

    network = copy(has={"a": 60, "d": 60}, set_up=set_up)
    assert set(network.job.run()) == {"b", "c"}
    assert "a was left out: killed" in network.said.notes


def test_a_source_that_fails_where_nobody_else_has_it_is_the_cause(copy):
    def set_up(network):
        network.at.append((lambda: network["b"].has > 20, lambda: network["a"].fail("it is gone", "source")))

    network = copy("ab", set_up=set_up)
    with pytest.raises(StageError, match="stage weights on a: it is gone") as caught:
        network.job.run()
    assert [each.node for each in caught.value.others] == ["b"]


def test_a_source_that_cannot_begin_is_the_error(copy):
    def set_up(network):
        network["a"].stream_of = lambda request: contextlib.nullcontext(Failing("/w does not exist", "source"))

    network = copy("ab", set_up=set_up)
    with pytest.raises(StageError, match="stage weights on a: /w does not exist"):
        network.job.run()


class Failing:
    def __init__(self, text, kind):
        self.said = {"failed": text, "kind": kind}

    def lines(self, silence_s):
        yield json.dumps(self.said).encode()

    def send(self, data): ...

    def close(self): ...


def test_pieces_on_several_nodes_that_are_not_all_connected_reach_all(copy):
    """Along a line, b and c would ask each other for what d alone has, until somebody asks elsewhere."""

    def set_up(network):
        network.cables, network.managed = [{"a", "b"}, {"b", "c"}, {"c", "d"}], False

    network = copy(has={"d": 60, "a": 30, "b": 20}, set_up=set_up)
    assert set(network.job.run()) == {"a", "b", "c"}


def test_a_worker_that_is_complete_and_no_longer_followed_is_a_source_for_the_others_still(copy):
    def set_up(network):
        a, b = network["a"], network["b"]
        network.at.append((lambda: b.has > 10, lambda: a.stream.queue.put(None)))
        network.at.append((lambda: b.has > 20, lambda: b.fail("ended", "lost")))

    network = copy("abc", set_up=set_up)
    with pytest.raises(StageError) as caught:
        network.job.run()
    assert caught.value.node == "b"
    assert network.job.arrived["c"].source != "b"


def test_a_silent_connection_stops_nothing_and_the_orders_come_again(copy):
    def set_up(network):
        c = network["c"]
        network.at.append((lambda: c.has > 20, lambda: c.stream.queue.put(HostLost("broke", node="c"))))

    network = copy(set_up=set_up)
    network.job.run()
    assert network["c"].begins == 2
    assert "from" in network["c"].orders[-2]  # before the end


def test_a_node_that_is_silent_for_longer_than_a_dead_one_gets_goes_on(copy, monkeypatch):
    """Its worker answers nothing either, since nothing reaches it, and all others have ended."""
    monkeypatch.setattr(jobs, "_GONE_S", 0.4)
    monkeypatch.setattr(jobs, "_HEARD_S", 0.2)

    def set_up(network):
        c = network["c"]
        asked, real = [], c.ordered

        def ordered(order):
            if c.silent:
                asked.append(order)
            else:
                real(order)

        def fall_silent():
            c.silent = True
            c.state = "stopped"  # its bytes come late, too
            threading.Timer(1.5, wake).start()

        def wake():
            c.silent, c.state = False, "alive"
            for order in asked:
                real(order)

        c.ordered = ordered
        network.at.append((lambda: c.has > 20, fall_silent))

    network = copy("abc", set_up=set_up)
    assert set(network.job.run()) == {"b", "c"}


def test_a_lease_that_another_operator_took_ends_it(copy):
    def set_up(network):
        c = network["c"]
        network.at.append((lambda: c.has > 20, lambda: c.say(refused="epoch 7 is over: the lease went to eve")))

    network = copy(set_up=set_up)
    with pytest.raises(LeaseLost, match="c refuses the change: epoch 7 is over: the lease went to eve"):
        network.job.run()


def test_a_lost_lease_among_other_failures_is_what_is_raised(copy):
    """Callers treat a lost lease apart; the other node's failure is reported with it."""

    def set_up(network):
        b, c = network["b"], network["c"]
        network.at.append((lambda: b.has > 10, lambda: b.fail("no space left", "disk")))
        network.at.append((lambda: c.has > 30, lambda: c.say(refused="epoch 7 is over")))

    network = copy(set_up=set_up)
    with pytest.raises(LeaseLost) as caught:
        network.job.run()
    assert [(each.node, type(each)) for each in caught.value.others] == [("b", StageError)]


def test_an_interrupt_cancels_the_workers(copy, monkeypatch):
    network = copy()
    real = Shown.transfer

    def transfer(self, found):
        real(self, found)
        if found.bytes > 10 * UNIT:
            raise KeyboardInterrupt

    monkeypatch.setattr(Shown, "transfer", transfer)
    with pytest.raises(KeyboardInterrupt):
        network.job.run()
    assert all("cancel" in worker.orders[-1] for worker in network.workers.values())
    assert network["d"].has < 60


def test_what_is_malformed_is_the_error_of_that_node(copy):
    def set_up(network):
        network.at.append((lambda: network["c"].has > 20, lambda: network["c"].say(bytes=-1)))

    network = copy(set_up=set_up)
    with pytest.raises(StageError, match="c sent a malformed answer to stage weights") as caught:
        network.job.run()
    assert isinstance(caught.value.__cause__, CommandFailed)
    assert set(network.job.arrived) == {"b", "d"}


def test_a_hash_that_a_source_has_found_reaches_all_others_and_no_receivers_word_does(copy):
    unknown = {**FILE, "sha256": None}

    def set_up(network):
        a, b = network["a"], network["b"]
        good, bad = {"0": "1" * 64, "9": "2" * 64, "1": "3" * 64}, {"0": "4" * 64}
        network.at.append((lambda: b.has > 10, lambda: b.say(sha256=bad)))
        network.at.append((lambda: b.has > 20, lambda: a.say(sha256=good)))
        network.at.append((lambda: b.has > 30, lambda: a.say(sha256=bad)))

    network = copy(files=(unknown, {**FILE, "size": 0}), set_up=set_up)
    network.job.run()
    for name in "bcd":
        assert [order["sha256"] for order in network[name].orders if "sha256" in order] == [{"0": "1" * 64}]


def test_a_file_that_arrives_corrupt_is_told_with_both_nodes(copy):
    wrong = {"file": 0, "from": "a", "sha256": "9" * 64}

    def set_up(network):
        network.at.append((lambda: network["b"].has > 20, lambda: network["b"].say(wrong=[wrong])))
        network.at.append((lambda: network["b"].has > 30, lambda: network["b"].say(wrong=[wrong])))

    network = copy(set_up=set_up)
    network.job.run()
    text = "m.safetensors arrived at b with another SHA-256 than a has; received again"
    assert network.said.notes == [text]


def test_what_a_node_says_over_and_over_takes_neither_memory_nor_the_screen(copy):
    """A cable that comes and goes, or a node that wants to do harm."""

    def flood():
        for number in range(500):
            gone = [{"node": "a", "why": f"no data {number} {place}", "offset": number} for place in range(32)]
            network["b"].say(left=gone, kept=[f"/x/{number}/{place}" for place in range(32)], bytes=number)

    def set_up(network):
        network.at.append((lambda: network["b"].has > 20, flood))

    network = copy("ab", set_up=set_up)
    network.job.run()
    shown = [note for note in network.said.notes if note.startswith("b: no data") or "/x/" in note]
    assert len(shown) == 2 * 99
    assert network.said.notes.count("b sent too many messages of this kind: further ones are not shown") == 2
    assert sum(map(len, network.job._noted.values())) == 2 * 100


def test_a_worker_that_is_found_at_work_has_its_own_token(copy):
    """Of an operator who is gone: what it listens with counts, not what we would have it listen with."""
    network = copy("abc")
    a = network["a"]
    real = a.stream_of

    def adopted(request):
        return real({**request, "token": "e" * 32})

    a.stream_of = adopted
    network.job.run()
    assert network["b"].sources[0]["ways"][0]["token"] == "e" * 32


def test_seven_receivers_have_seven_sources(copy):
    network = copy("abcdefgh")
    arrived = network.job.run()
    assert sorted(each.source for each in arrived.values()) == list("abcdefg")
