"""``down``: what it removes, where, and what it says when it cannot."""

from __future__ import annotations

import pytest

from sparkcluster.errors import HostTimeout, LeaseHeld, StopError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.release.down import down, former_nodes
from sparkcluster.report import Report


class Spark(FakeHost):
    """A node with facts; its ranks go when they are stopped."""

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
            if step["do"] == "stop-containers":
                kept = [
                    rank
                    for rank in self.world.facts[self.name].model_dump()["ranks"]
                    if rank["name"] not in step["names"]
                ]
                self.world.change(self.name, ranks=kept)
        return {"results": [{} for _ in request["steps"]]}

    def steps(self):
        return [step["do"] for module, request in self.requests if module == "agent" for step in request["steps"]]


@pytest.fixture
def stop(world):
    """``stop(world)`` with the nodes in ``stop.sparks``, those outside of the inventory included."""

    def run(cluster, *away, sparks=None):
        stop.sparks = sparks or {name: Spark(name, cluster) for name in cluster.facts}
        for name in away:
            stop.sparks[name].away = True
        present = [node.label for node in cluster.spec.inventory.nodes]
        return down(
            Fleet({name: stop.sparks[name] for name in present}),
            cluster.spec,
            Report(),
            reach=lambda nodes: Fleet({node.label: stop.sparks[node.label] for node in nodes}),
        )

    stop = run
    return run


def test_every_rank_of_ours_goes_and_no_other(stop, world):
    cluster = world()
    cluster.run(cluster.plan(3), state="exited").run(cluster.plan(4))
    cluster.run(cluster.plan(5), "beta", **{"io.sparkcluster.cluster": "borea"})
    done = stop(cluster)
    assert {name: len(ranks) for name, ranks in done.items()} == {"alpha": 2, "beta": 2}
    assert cluster.facts["alpha"].ranks == ()
    assert [rank.name for rank in cluster.facts["beta"].ranks] == ["sparkcluster-atlas-5-beta"]
    assert stop.sparks["alpha"].steps() == ["stop-containers", "delete"]


def test_nothing_there_is_fine(stop, world):
    assert stop(world()) == {}
    assert "stop-containers" not in stop.sparks["alpha"].steps()


def test_an_up_at_work_is_not_disturbed_though_no_rank_is_there_yet(stop, world):
    cluster = world()
    sparks = {name: Spark(name, cluster) for name in cluster.facts}
    sparks["alpha"].program(
        "lease", [{"held": {"operator": "ann@desk (pid 7)", "operation": "stage", "since": None, "epoch": 4}}]
    )
    with pytest.raises(LeaseHeld, match=r"ann@desk \(pid 7\) is running stage on atlas") as caught:
        stop(cluster, sparks=sparks)
    assert caught.value.exit_code == 3
    assert all(spark.steps() == [] for spark in sparks.values())


def test_a_node_that_is_away_is_named_and_the_others_are_cleaned(stop, world):
    cluster = world()
    with pytest.raises(StopError, match="could not clean beta: beta did not answer within 10 s") as caught:
        stop(cluster.run(cluster.plan(3)), "beta")
    assert (caught.value.exit_code, caught.value.node) == (1, "beta")
    assert "sparkcluster down again" in caught.value.hint
    assert cluster.facts["alpha"].ranks == ()


def test_a_node_that_cannot_tell_its_ranks_is_not_taken_for_clean(stop, world):
    cluster = world()
    cluster.run(cluster.plan(3), "alpha").change("beta", ranks={"unread": "the Docker engine does not answer"})
    with pytest.raises(StopError, match="could not clean beta: the Docker engine does not answer"):
        stop(cluster)
    assert cluster.facts["alpha"].ranks == ()


def test_a_node_that_left_the_inventory_is_cleaned_by_the_last_record(stop, world):
    whole = world()
    whole.run(whole.plan(3)).record(whole.plan(3), 3)
    cluster = world("alpha")
    cluster.facts = whole.facts
    done = stop(cluster)
    assert {name: len(ranks) for name, ranks in done.items()} == {"alpha": 1, "beta": 1}
    assert cluster.facts["beta"].ranks == ()


def test_former_nodes_are_reached_as_they_were(world):
    whole = world(nodes={"beta": {"ssh": {"port": 2222, "user": "bob"}}})
    document = whole.document(whole.plan(3), 3)
    (node,) = former_nodes(world("alpha").spec, document)
    assert (node.label, node.host, node.ssh.port, node.ssh.user) == ("beta", "192.168.86.12", 2222, "bob")
    assert former_nodes(whole.spec, document) == []
    assert former_nodes(whole.spec, {}) == []
    document["nodes"] = {"fe80::1": {"host": "fe80::1"}}
    assert former_nodes(whole.spec, document)[0].label == "fe80::1"


def test_a_node_that_was_renamed_is_not_a_second_one(world):
    whole = world()
    document = whole.document(whole.plan(3), 3)
    document["nodes"]["left"] = document["nodes"].pop("alpha")
    assert former_nodes(whole.spec, document) == []
