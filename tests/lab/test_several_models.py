"""Three models on two Sparks: clients of one do not notice changes to another.

One model on both Sparks, one for chat and one for embeddings on the first: with the stub by default, with the real
engine by ``--full``.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import pytest
import yaml

import sparkcluster
from sparkcluster.lab.engine import smollm2
from tests.lab.switching import Client, complete, embed

SMOLLM2 = "/root/models/smollm2"
CONVERT = (
    "import sys; sys.path.append('/made'); from pathlib import Path; from sparkcluster.lab.engine import smollm2; "
)
CONVERT += "smollm2.convert(Path('/made/packages'), Path('/made/smollm2'))"
# Only the mean of a chat model's last layer distinguishes texts.
POOLING = {"runner": "pooling"}
REAL_POOLING = {**POOLING, "convert": "embed", "pooler-config": {"pooling_type": "MEAN"}}


@pytest.fixture(scope="module", params=["stub", pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.full])])
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def shared_lab(engine, request, make_lab):
    if engine == "stub":
        return request.getfixturevalue("mixed_sparks")
    lab = make_lab(2, engine=engine)
    write_smollm2(lab)
    return lab


def write_smollm2(lab):
    """Give the first Spark SmolLM2, converted in a container of its engine, which has torch."""
    first = lab.sparks[0]
    made = Path(f"/proc/{first.pid}/root/root/models")  # its disk, as seen by its first process
    smollm2.download(made / "packages")
    shutil.copytree(Path(sparkcluster.__file__).parent, made / "sparkcluster")
    image = yaml.safe_load(lab.playbook.read_text())["image"]
    argv = ["docker", "run", "--rm", "--network", "host", "--volume", "/root/models:/made", "--entrypoint", "python3"]
    first.run([*argv, image, "-c", CONVERT], timeout_s=400)


@pytest.fixture
def inventory(lab, engine, variant):
    real = engine == "vllm"
    # Threads that wait for each other in a loop use both cores and starve the other engines.
    every = {"verify": {"pause_s": 0}, "env": {"OMP_NUM_THREADS": "1"} if real else {}}
    weights = {"model": {"path": SMOLLM2}} if real else {}
    both = {**every, "served_name": "both"}
    chat = {**every, **weights, "served_name": "chat"}
    vectors = {**every, **weights, "served_name": "embed", "args": REAL_POOLING if real else POOLING}
    first = [lab.sparks[0].name]
    entries = [{"name": each["served_name"], "nodes": first, "playbook": each} for each in (chat, vectors)]
    return variant(lab, models=[{"playbook": both}, *entries])


@pytest.fixture
def containers(lab):
    """``containers()``: IDs of the running containers of every model, by name."""

    def ask():
        form = '{{.Label "io.sparkcluster.cluster"}} {{.ID}}'
        lines = [
            line for spark in lab.sparks for line in spark.run(["docker", "ps", "--format", form]).stdout.split("\n")
        ]
        found = {}
        for cluster, identity in (line.split() for line in lines if line):
            found.setdefault(cluster.removeprefix(lab.name).lstrip("-") or "both", set()).add(identity)
        return found

    return ask


@contextlib.contextmanager
def others_answer(clients, changed=None):
    """Within the block every request is answered, except those to the model ``changed``; at the end these are too."""
    yield
    done = time.monotonic()
    for name, client in clients.items():
        client.wait_for_answer(done, 120)
        if name == changed:
            client.failed.clear()
        assert client.failed == [], name


def test_requests_to_a_model_are_unaffected_by_changes_to_another(
    lab, cli, engine, inventory, containers, image, ranks
):
    limit_s, pause_s = (1500, 0.5) if engine == "vllm" else (120, 0.1)

    def run(*argv):
        return cli(argv[0], inventory, *argv[1:], "--json", timeout=limit_s).ok().json

    def states():
        found = cli("status", inventory, "--json")
        assert (found.code, found.json["cluster"]) == (1, lab.name)
        return {each["name"]: each["state"] for each in found.json["models"]}

    def the_others(found, changed):
        return {name: identities for name, identities in found.items() if name != changed}

    first = {each["name"]: each["groups"][0]["endpoint"] for each in run("up")["models"]}
    started = containers()
    assert {name: len(found) for name, found in started.items()} == {"both": 2, "chat": 1, "embed": 1}
    newer = image(lab, "newer")
    with contextlib.ExitStack() as stack:
        clients = {
            name: stack.enter_context(
                Client(url, name, embed if name == "embed" else complete, pause_s=pause_s, timeout_s=60)
            )
            for name, url in first.items()
        }
        with others_answer(clients, "chat"):
            done = run("upgrade", "--model", "chat", "--image", newer, "--min-speed", "0")
        assert (done["changed"], done["release"]) == (True, 2)
        with others_answer(clients, "chat"):
            done = run("rollback", "--model", "chat")
        assert (done["changed"], done["release"], done["restored"]) == (True, 3, 1)

        before = containers()
        assert the_others(before, "chat") == the_others(started, "chat")
        with others_answer(clients, "embed"):
            lab.sparks[0].run(["docker", "kill", *before["embed"]])
            assert states() == {"both": "serving", "chat": "serving", "embed": "degraded"}
            assert [each["changed"] for each in run("up")["models"]] == [False, False, True]
        after = containers()
        assert the_others(after, "embed") == the_others(before, "embed")

        del clients["chat"]
        with others_answer(clients):
            run("down", "--model", "chat")
        assert containers() == the_others(after, "chat")
    run("down")
    assert not any(ranks(lab).values())
