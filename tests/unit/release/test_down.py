"""``down``: what it removes, where, and its errors."""

from __future__ import annotations

import pytest

from sparkcluster.errors import HostSilent, HostTimeout, LeaseHeld, StopError, UsageError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.release.down import down, former_nodes, shown
from sparkcluster.release.stopping import stop_on_failures
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.runtime import lease as module


class Spark(FakeHost):
    """A node with facts; its ranks disappear when they are stopped."""

    def __init__(self, name, world):
        super().__init__(name)
        self.world = world
        self.away = False
        self.program("probe", lambda _: world.facts[name].model_dump(mode="json"))
        self.program("lease", [{"epoch": 4}, {"granted": 5}])
        self.program("agent", self.change)

    def run(self, argv, **kwargs):
        if self.away:
            raise HostTimeout(f"{self.name} did not answer within 10 s", node=self.name, hint=f"ping {self.name}")
        return super().run(argv, **kwargs)

    def change(self, request):
        assert request["epoch"] == 5
        for step in request["steps"]:
            if step["do"] == "stop":
                kept = [
                    rank
                    for rank in self.world.facts[self.name].model_dump()["ranks"]
                    if rank["name"] not in step["containers"]
                ]
                self.world.change(self.name, ranks=kept)
        return {"results": [{} for _ in request["steps"]]}

    def steps(self):
        return [step["do"] for module, request in self.requests if module == "agent" for step in request["steps"]]


class Notes(Report):
    def __init__(self):
        self.notes, self.waits = [], []

    def note(self, text):
        self.notes.append(text)

    def progress(self, node, text):
        self.waits += [text] if text.startswith("waiting up to 3600 s") else []


@pytest.fixture
def stop(world):
    """``stop(world)`` with the nodes in ``stop.sparks``, including nodes outside the inventory."""

    def run(cluster, *away, sparks=None, also=()):
        stop.sparks = sparks or {name: Spark(name, cluster) for name in cluster.facts}
        for name in away:
            stop.sparks[name].away = True
        present = [node.label for node in cluster.spec.inventory.nodes]
        stop.reached = []
        stop.report = Notes()

        def reach(nodes):
            stop.reached += nodes
            return Fleet({node.label: stop.sparks[node.label] for node in nodes})

        fleet = Fleet({name: stop.sparks[name] for name in present})
        removed, stop.left = down(fleet, cluster.spec, stop.report, reach=reach, also=also)
        return removed

    stop = run
    return run


def test_only_ranks_of_this_cluster_are_removed(stop, world):
    cluster = world()
    cluster.run(cluster.plan(3), state="exited").run(cluster.plan(4))
    cluster.run(cluster.plan(5), "beta", **{"io.sparkcluster.cluster": "borea"})
    done = stop(cluster)
    assert {name: len(ranks) for name, ranks in done.items()} == {"alpha": 2, "beta": 2}
    assert cluster.facts["alpha"].ranks == ()
    assert [rank.name for rank in cluster.facts["beta"].ranks] == ["sparkcluster-atlas-5-beta"]
    assert stop.sparks["alpha"].steps() == ["stop", "delete", "delete"]


def test_a_running_up_is_not_disturbed_although_no_rank_exists_yet(stop, world):
    cluster = world()
    sparks = {name: Spark(name, cluster) for name in cluster.facts}
    sparks["alpha"].program(
        "lease",
        [{"held": {"operator": "ann@desk (pid 7)", "operation": "stage", "since": None, "epoch": 4, "held": True}}],
    )
    with pytest.raises(LeaseHeld, match=r"ann@desk \(pid 7\) is running stage on atlas") as caught:
        stop(cluster, sparks=sparks)
    assert caught.value.exit_code == 3
    assert all(spark.steps() == [] for spark in sparks.values())


def test_nothing_is_stopped_while_another_model_starts_there(stop, world, monkeypatch):
    cluster = world()
    sparks = {name: Spark(name, cluster) for name in cluster.facts}
    held = {"operator": "ann", "operation": "up", "cluster": "embed", "since": None, "epoch": 4, "held": True}
    attempts = []

    def lease(request):
        if request["kind"] == "start":
            assert sparks["alpha"].steps() == []
            attempts.append(held)
        return [{"held": held}] if len(attempts) == 1 else [{"epoch": 4}, {"granted": 5}]

    sparks["alpha"].program("lease", lease)
    monkeypatch.setattr(module, "RETRY_S", 0)
    assert set(stop(cluster.run(cluster.plan(3)), sparks=sparks)) == {"alpha", "beta"}
    assert len(attempts) == 2
    assert stop.report.waits == ["waiting up to 3600 s: another start or stop is running: ann is running up on embed"]


def test_an_unreachable_node_is_reported_and_the_others_are_cleaned(stop, world):
    cluster = world()
    with pytest.raises(StopError, match="down failed on beta: beta did not answer within 10 s") as caught:
        stop(cluster.run(cluster.plan(3)), "beta")
    assert (caught.value.exit_code, caught.value.node) == (1, "beta")
    assert "sparkcluster down INVENTORY   to retry" in caught.value.hint
    assert cluster.facts["alpha"].ranks == ()


def test_a_node_that_went_silent_gets_the_command_once():
    changer = Changer(Fleet({}), "atlas", "~/s", {}, operation="down")
    silent = changer.left(HostSilent("alpha did not answer for 60 s", node="alpha"))
    with pytest.raises(StopError) as caught:
        stop_on_failures({"alpha": silent}, "down")
    assert caught.value.hint == "sparkcluster down INVENTORY   to retry"


@pytest.fixture
def without_beta(world):
    """Release 3 runs on alpha and beta, and beta is no longer in the inventory; its host is also an alias."""
    whole = world()
    whole.run(whole.plan(3)).record(whole.plan(3), 3)
    cluster = world("alpha", ssh={"user": "ann"})
    cluster.facts = whole.facts
    return cluster


NAMED = "beta (192.168.86.12) is not in the inventory, but a record on alpha names it"


def test_each_node_that_fails_has_its_own_cause_and_hint(stop, world):
    cluster = world().change("beta", ranks={"unread": "permission denied: /var/run/docker.sock"})
    with pytest.raises(StopError) as caught:
        stop(cluster, "alpha")
    (other,) = caught.value.others
    again = "; then sparkcluster down INVENTORY   to retry"
    assert [(error.node, error.message, error.hint) for error in (caught.value, other)] == [
        ("alpha", "down failed on alpha: alpha did not answer within 10 s", f"ping alpha{again}"),
        (
            "beta",
            "down failed on beta: nvidia has no permission to use Docker on beta: permission denied: /var/run/docker.sock",
            f"on beta: sudo usermod -aG docker nvidia{again}",
        ),
    ]


def test_a_node_removed_from_the_inventory_is_reported_and_not_contacted(stop, without_beta):
    assert {name: len(ranks) for name, ranks in stop(without_beta).items()} == {"alpha": 1}
    assert (stop.reached, stop.sparks["beta"].requests) == ([], [])
    assert [(node.label, node.host, readers) for node, readers in stop.left.items()] == [
        ("beta", "192.168.86.12", ["alpha"])
    ]
    assert stop.report.notes == [
        f"warning: {NAMED}: not contacted; ranks of atlas may still run there",
        "hint: sparkcluster down INVENTORY --also 192.168.86.12   also stops them there",
    ]


def test_a_machine_on_the_command_line_is_reached_as_typed(stop, without_beta):
    typed = "192.168.86.12"
    without_beta.facts[typed] = without_beta.facts["beta"]
    done = stop(without_beta, also=[typed, typed])
    assert {name: len(ranks) for name, ranks in done.items()} == {"alpha": 1, typed: 1}
    assert [(node.host, node.ssh, node.connection) for node in stop.reached] == [(typed, None, "auto")]
    assert stop.left == {}


def test_the_command_to_retry_has_every_machine_of_the_command_line(stop, without_beta):
    typed = "192.168.86.12"
    without_beta.facts[typed] = without_beta.facts["beta"]
    with pytest.raises(StopError) as caught:
        stop(without_beta, typed, also=[typed])
    assert caught.value.hint.endswith(f"; then sparkcluster down INVENTORY --also {typed}   to retry")


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("alpha", "alpha is in the inventory"),
        ("192.168.86.11", "alpha is in the inventory"),
        ("-oProxyCommand=x", "neither an address nor a host name"),
    ],
)
def test_also_accepts_only_addresses_outside_the_inventory(stop, without_beta, host, message):
    with pytest.raises(UsageError, match=message) as caught:
        stop(without_beta, also=["192.168.86.12", host])
    assert caught.value.exit_code == 2
    assert all(spark.requests == [] for spark in stop.sparks.values())


def test_only_names_and_addresses_are_read_from_a_record(world):
    spec = world("alpha").spec
    hostile = {
        "ok": {"host": "192.0.2.7", "connection": "local", "ssh": {"jump": "x", "host_keys": "accept-new"}},
        "evil\x1b]52;c;eA==\x07": {"host": "192.0.2.8"},
        "option": {"host": "-oProxyCommand=x"},
        "shell": {"host": "192.0.2.9;reboot"},
        "line": {"host": "192.0.2.9\n"},
        "long": {"host": "a" * 300},
        "alpha": {"host": "192.0.2.10"},
    }
    ((node, readers),) = former_nodes(spec, {"alpha": {"nodes": hostile}}).items()
    assert (shown(node), readers) == ("ok (192.0.2.7)", ["alpha"])
    assert node.model_dump(exclude_unset=True) == {"host": "192.0.2.7", "name": "ok"}
