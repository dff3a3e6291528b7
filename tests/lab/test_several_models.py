"""Three models on two Sparks: who asks one of them does not notice what is done to another.

A small model over both Sparks, one for chat and one for embeddings on the first; with the stub on every commit, and with
the real engine by ``--full``.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.lab.switching import Client, complete, embed

POOLING = {"runner": "pooling"}


@pytest.fixture(scope="module", params=["stub", pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.full])])
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def shared_lab(engine, request, make_lab):
    return request.getfixturevalue("unlike") if engine == "stub" else make_lab(2, engine=engine)


@pytest.fixture
def inventory(lab, variant):
    first = [lab.sparks[0].name]
    return variant(
        lab,
        models=[
            {"name": "both", "playbook": {"served_name": "both"}},
            {"name": "chat", "nodes": first, "playbook": {"served_name": "chat"}},
            {"name": "embed", "nodes": first, "playbook": {"served_name": "embed", "args": POOLING}},
        ],
    )


@pytest.fixture
def containers(lab):
    """``containers()``: ids of the running containers of every model, by its name."""

    def ask():
        form = '{{.Label "io.sparkcluster.cluster"}} {{.ID}}'
        lines = [line for spark in lab.sparks for line in spark.run(["docker", "ps", "--format", form]).stdout.split("\n")]
        found = {}
        for cluster, identity in (line.split() for line in lines if line):
            found.setdefault(cluster.removeprefix(f"{lab.name}-"), set()).add(identity)
        return found

    return ask


@contextlib.contextmanager
def others_answer(clients, changed=None):
    """Every request is answered in the meantime, but for those to the model ``changed``; in the end its are as well."""
    yield
    done = time.monotonic()
    for name, client in clients.items():
        client.wait_for_answer(done)
        if name == changed:
            client.failed.clear()
        assert client.failed == [], name


def test_the_others_answer_whatever_is_done_to_one(lab, cli, inventory, containers, image, ranks):
    def status():
        found = cli("status", inventory, "--json")
        assert found.code == any(each["state"] != "serving" for each in found.json["models"])
        return {each["name"]: each for each in found.json["models"]}

    def states():
        return {name: each["state"] for name, each in status().items()}

    serving = dict.fromkeys(("both", "chat", "embed"), "serving")
    cli("up", inventory).ok()
    first = status()
    assert {name: each["state"] for name, each in first.items()} == serving
    started = containers()
    assert {name: len(found) for name, found in started.items()} == {"both": 2, "chat": 1, "embed": 1}

    newer = image(lab, "newer")
    with contextlib.ExitStack() as stack:
        clients = {
            name: stack.enter_context(Client(each["endpoint"], name, embed if name == "embed" else complete, pause_s=0.1))
            for name, each in first.items()
        }
        with others_answer(clients, "chat"):
            cli("upgrade", inventory, "--model", "chat", "--image", newer, "--min-speed", "0").ok()
        upgraded = containers()
        assert upgraded == {**started, "chat": upgraded["chat"]} != started
        with others_answer(clients, "chat"):
            cli("rollback", inventory, "--model", "chat").ok()
        assert states() == serving

        before = containers()
        with others_answer(clients, "embed"):
            lab.sparks[0].run(["docker", "kill", *before["embed"]])
            assert states() == {**serving, "embed": "degraded"}
            cli("up", inventory).ok()
        after = containers()
        assert after == {**before, "embed": after["embed"]} != before
        with others_answer(clients):
            again = cli("up", inventory, "--json").ok().json
        assert [each["changed"] for each in again["models"]] == [False, False, False]
        assert (again["changed"], containers()) == (False, after)

        del clients["chat"]
        with others_answer(clients):
            cli("down", inventory, "--model", "chat").ok()
        assert states() == {**serving, "chat": "down"}
        with others_answer(clients):
            cli("up", inventory).ok()
        assert {name: found for name, found in containers().items() if name != "chat"} == {
            name: found for name, found in after.items() if name != "chat"
        }
    cli("down", inventory).ok()
    assert not any(ranks(lab).values())
