"""The steps that start and stop one rank."""

from __future__ import annotations

import json

import pytest

from sparkcluster.facts.docker import Rank
from sparkcluster.plan.model import ContainerPlan, NodePlan
from sparkcluster.runtime import start_steps, stop_steps

DIRECTORY = "/home/ann/s/clusters/atlas/ranks/x"


@pytest.fixture
def node():
    def make(image="sha256:1", members=("10.0.0.1",), **container):
        rank = ContainerPlan(
            name="x",
            image=image,
            argv=("docker", "run", "x"),
            launcher={"rank": 0, "members": list(members)},
            rank_dir=DIRECTORY,
            directories=(DIRECTORY, "/cache"),
            env_file=f"{DIRECTORY}/secrets.env",
            labels={"io.sparkcluster.plan": "p1"},
            roots={"/data/x": "/data"},
            **container,
        )
        return NodePlan("alpha", "g", "head", 0, {"A": "1"}, ("WANDB_KEY", "VLLM_API_KEY"), (rank,))

    return make


def test_a_container_starts_after_its_files_are_in_place(node):
    steps = start_steps(
        node(), entry="print()", secrets={"WANDB_KEY": "t=1", "VLLM_API_KEY": "k"}, hashes={"salt": "5a"}
    )
    assert [step["do"] for step in steps] == ["mkdir", "mkdir", "put", "put", "put", "start-container"]
    files = {step["path"]: (step["content"], step["mode"]) for step in steps if step["do"] == "put"}
    assert json.loads(files[f"{DIRECTORY}/launcher.json"][0]) == {
        "rank": 0,
        "members": ["10.0.0.1"],
        "secrets": {"salt": "5a"},
    }
    assert files[f"{DIRECTORY}/entry.py"][0] == "print()"
    assert files[f"{DIRECTORY}/secrets.env"] == ("WANDB_KEY=t=1\nVLLM_API_KEY=k\n", 0o600)
    assert steps[-1] == {"do": "start-container", "name": "x", "argv": ["docker", "run", "x"]} | {
        "rank_dir": DIRECTORY,
        "roots": {"/data/x": "/data"},
    }


def test_for_ranks_on_several_nodes_the_socket_library_is_built_before_the_start(node):
    steps = start_steps(
        node(members=("10.0.0.1", "10.0.0.2")), entry="", secrets={"WANDB_KEY": "", "VLLM_API_KEY": ""}, hashes={}
    )
    names = [step["do"] for step in steps]
    assert names.index("build-library") < names.index("start-container")
    assert {"do": "build-library", "path": f"{DIRECTORY}/bind.so"} in steps


def test_values_of_secrets_appear_only_in_their_file(node):
    for image in ("sha256:1", None):
        steps = start_steps(
            node(image), entry="", secrets={"WANDB_KEY": "s3cr3t-1", "VLLM_API_KEY": "s3cr3t-2"}, hashes={}
        )
        with_secrets = [step for step in steps if "s3cr3t" in json.dumps(step)]
        assert [(step["do"], step["mode"]) for step in with_secrets] == [("put", 0o600)]


def test_ranks_are_stopped_by_their_container_or_process_manager():
    ranks = [
        Rank(name="x", state="running", labels={"io.sparkcluster.runtime": "docker"}),
        Rank(
            name="y",
            state="exited",
            labels={"io.sparkcluster.runtime": "process", "io.sparkcluster.rank_dir": DIRECTORY},
        ),
        Rank(name="z", state="dead"),
    ]
    assert stop_steps(ranks) == [
        {"do": "stop", "containers": ["x", "z"], "processes": [DIRECTORY], "grace_s": 30},
    ]
    assert stop_steps([]) == []


def drains(label, state="running"):
    return Rank(name="x", state=state, labels={"io.sparkcluster.drain_s": label})


@pytest.mark.parametrize(
    ("rank", "limit_s"),
    [
        (drains("60"), 90),
        (drains("9" * 9), 630),
        (drains("9" * 4000), 30),
        (drains("60", "exited"), 30),
    ],
)
def test_a_rank_gets_time_for_its_requests_and_no_node_can_demand_a_long_wait(rank, limit_s):
    (step,) = stop_steps([rank])
    assert step["grace_s"] == limit_s
    (failed,) = stop_steps([rank], drain=False)
    assert failed["grace_s"] == 30
