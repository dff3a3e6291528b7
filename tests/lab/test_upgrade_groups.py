"""``upgrade`` and ``rollback`` group by group: a client that uses ready groups notices nothing."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tests.lab.switching import complete, images_of, left_behind

pytestmark = pytest.mark.full

UPGRADE_S = 600


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(4)


class Router:
    """Sends requests to the groups that ``status`` calls ready, as a load balancer would.

    A failed request is retried once on another group, if ``status`` no longer calls its group ready.

    Attributes:
        failed: unanswered requests: time, and the known states of the groups.
        moved: number of retries on another group.
    """

    def __init__(self, cli, inventory, model):
        self.cli, self.inventory, self.model = cli, inventory, model
        self.answered, self.moved, self.failed = [], 0, []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _ready(self):
        done = self.cli("status", self.inventory, "--json")
        return {group["name"]: group["endpoint"] for group in done.json["groups"] if group["ready"]}

    def _asked(self, url):
        with contextlib.suppress(OSError, ValueError):
            return complete(url, self.model) == 200
        return False

    def _run(self):
        while not self._over.is_set():
            ready = self._ready()
            if not ready:
                self.failed.append((time.monotonic(), "no group is ready"))
            for name, url in ready.items():
                sent = time.monotonic()
                if self._asked(url):
                    self.answered.append(name)
                    continue
                now = self._ready()
                others = [other for each, other in now.items() if each != name]
                if name in now or not any(map(self._asked, others)):
                    self.failed.append((sent, f"{name} failed, {sorted(now)} are ready"))
                self.moved += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@pytest.fixture
def replicas(lab, cli, variant):
    """The cluster serves as two groups of two; its inventory, and the endpoint of each."""
    names = [spark.name for spark in lab.sparks]
    inventory = variant(lab, groups=[{"name": "east", "nodes": names[:2]}, {"name": "west", "nodes": names[2:]}])
    up = cli("up", inventory, "--json", timeout=UPGRADE_S).ok().json
    return inventory, {group["name"]: group["endpoint"] for group in up["groups"]}


def settled(lab, cli, inventory):
    """The status of a cluster whose groups all serve, with no leftovers of a switch."""
    status = cli("status", inventory, "--json").ok().json
    assert (status["state"], status["lease"], status["staging"]) == ("serving", None, None)
    assert all(group["ready"] for group in status["groups"])
    assert left_behind(lab) == []
    return status


def test_clients_that_follow_readiness_see_no_failed_request_during_an_upgrade(lab, cli, make_cli, image, replicas):
    inventory, _ = replicas
    old = images_of(settled(lab, cli, inventory))

    def run(*words):
        with Router(make_cli(), inventory, "tiny") as router:
            done = cli(*words, "--json", timeout=UPGRADE_S)
        assert router.failed == [], done
        assert len(router.answered) > 3
        return done

    first = image(lab, "first")
    done = run("upgrade", inventory, "--image", first, "--min-speed", "0", "--yes").ok().json
    status = settled(lab, cli, inventory)
    new = images_of(status)
    assert len(new) == 1
    assert new.isdisjoint(old)
    assert status["release"] == done["release"]

    broken = image(lab, "garbage", env={"STUB_FAULT": "garbage"})
    failed = run("upgrade", inventory, "--image", broken, "--min-speed", "0", "--yes")
    assert failed.code == 4, failed
    assert images_of(settled(lab, cli, inventory)) == new

    run("rollback", inventory, "1").ok()
    assert images_of(settled(lab, cli, inventory)) == old
