"""Running containers, imported from Docker's answers; the documents are shortened recordings."""

from __future__ import annotations

import json

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.importer import convert

DIGEST = "sha256:" + "ab" * 32
ID = "sha256:" + "69" * 32
PATH = "PATH=/usr/local/cuda/bin:/usr/bin"
IMAGE = {
    "Id": ID,
    "RepoTags": ["vllm/vllm-openai:v0.31.0"],
    "RepoDigests": [f"vllm/vllm-openai@{DIGEST}"],
    "RootFS": {"Type": "layers", "Layers": []},
    "Config": {
        "User": "",
        "Env": [PATH],
        "Entrypoint": ["vllm", "serve"],
        "Volumes": None,
        "WorkingDir": "/vllm-workspace",
    },
}
LOCAL = {**IMAGE, "RepoTags": ["vllm-node:latest"], "RepoDigests": [f"vllm-node@{DIGEST}"]}
SERVE = [
    "/usr/bin/python3",
    "/usr/local/bin/vllm",
    "serve",
    "org/m",
    "-tp",
    "2",
    "--distributed-executor-backend",
    "ray",
]


def box(path="vllm", args=("serve", "org/m"), *, host=None, **config):
    """A running container; ``host`` are keys of its HostConfig, ``config`` of its Config."""
    return {
        "Name": "/vllm", "Path": path, "Args": list(args), "Image": ID, "State": {"Status": "running", "Running": True},
        "HostConfig": {"NetworkMode": "host", "IpcMode": "host", "SecurityOpt": ["label=disable"], "CapAdd": None,
                       "Devices": [], "Ulimits": None, "PortBindings": {}, "RestartPolicy": {"Name": "no"},
                       "Privileged": False, **(host or {})},
        "Mounts": [],
        "Config": {**IMAGE["Config"], "Image": "vllm/vllm-openai:v0.31.0", "Labels": {}, **config},
    }  # fmt: skip


def process(argv, environ=()):
    return {"Argv": list(argv), "Environ": list(environ)}


def made(*documents):
    """The playbook of ``documents``, and its notes as one text."""
    found = convert(json.dumps(documents, indent=4), "the text")
    return found.document, "\n".join(found.notes)


def refused(*documents):
    with pytest.raises(UsageError) as caught:
        made(*documents)
    return caught.value.message, caught.value.hint


def test_a_container_is_imported_like_its_docker_run():
    container = box(
        args=["serve", "org/m", "--port", "8001", "--max-model-len", "4096"],
        Env=[PATH, "VLLM_USE_DEEP_GEMM=0", "HEAD_IP=10.0.0.1", "NCCL_IB_HCA=rocep1s0f0", "VLLM_HOST_IP=10.0.0.1"],
        host={
            "Ulimits": [{"Name": "memlock", "Hard": -1, "Soft": -1}, {"Name": "nofile", "Hard": 65535, "Soft": 65535}],
            "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband"}],
            "RestartPolicy": {"Name": "unless-stopped"}, "Privileged": True, "CapAdd": ["CAP_SYS_NICE"],
            "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8005"}]},
        },
    )  # fmt: skip
    container["Mounts"] = [
        {"Type": "bind", "Source": "/opt/t", "Destination": "/templates", "Mode": "ro", "RW": False},
        {"Type": "volume", "Name": "hub", "Source": "/var/lib/docker/x", "Destination": "/hub", "RW": True},
    ]

    document, notes = made(container, IMAGE)

    assert document == {
        "name": "vllm", "model": {"id": "org/m"}, "image": f"vllm/vllm-openai:v0.31.0@{DIGEST}", "tensor_parallel": 1,
        "args": {"max-model-len": 4096}, "env": {"VLLM_USE_DEEP_GEMM": "0"},
        "mounts": [{"source": "/opt/t", "target": "/templates"}],
        "container": {"cap_add": ["SYS_NICE"], "ulimits": {"nofile": 65535}},
    }  # fmt: skip
    for named in ("--port 8001", "HEAD_IP", "NCCL_IB_HCA", "VLLM_HOST_IP", "--restart unless-stopped", "--privileged",
                  "--publish 8005:8000", "--volume hub:/hub"):  # fmt: skip
        assert named in notes
    assert notes.splitlines()[-1].startswith("to switch: docker stop vllm ")


def test_of_two_processes_in_a_container_the_engines_command_and_variables_are_used():
    container = box("sleep", ["infinity"], Image="vllm-node", Entrypoint=None)
    processes = [
        process(["sleep", "infinity"]),
        process(["/usr/bin/python3", "/usr/local/bin/ray", "start", "--head"]),
        process(["bash", "-c", "vllm serve $MODEL"]),
        process(SERVE, [PATH, "VLLM_HOST_IP=10.0.0.1", "VLLM_LOGGING_LEVEL=DEBUG", "PWD=/", "SHLVL=1"]),
        process(["ray::RayWorkerWrapper"]),
    ]

    document, notes = made(container, LOCAL, {"Processes": processes})

    assert document["model"] == {"id": "org/m"}
    assert (document["tensor_parallel"], document["executor"], document["image"]) == (2, "ray", "vllm-node")
    assert document["env"] == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert "docker diff vllm" in notes
    assert "has no registry digest" in notes


def test_wrappers_and_nested_shells_are_followed():
    container = box(
        "/opt/nvidia/nvidia_entrypoint.sh", ["bash", "-c", "pip install x && vllm serve org/m"],
        Entrypoint=["/opt/nvidia/nvidia_entrypoint.sh"],
    )  # fmt: skip

    assert made(container, IMAGE)[0]["setup"] == ["pip install x"]


@pytest.mark.parametrize(
    "text", ["vllm serve org/m", "hf download x --token $HF_TOKEN && vllm serve org/m --api-key $MY_API_KEY"]
)
def test_a_secret_is_named_and_never_written(text):
    env = ["HF_TOKEN=hf_abcdefghijkl", "MY_API_KEY=verysecret", "HTTPS_PROXY=http://me:verysecret@proxy:80"]
    try:
        found = convert(json.dumps([box("bash", ["-c", text], Entrypoint=None, Env=env), IMAGE]), "the text")
    except UsageError as error:
        said = f"{error.message} {error.hint}"
    else:
        said = f"{found.text} {found.notes}"
        assert found.document["secrets"] == ["MY_API_KEY"]
        assert "HTTPS_PROXY" in said
    assert "verysecret" not in said
    assert "hf_abc" not in said


@pytest.mark.parametrize(
    ("documents", "problem", "hint"),
    [
        ([box()], "the text lacks the image of vllm", "docker inspect vllm vllm/vllm-openai:v0.31.0 | sparkcluster import -"),
        ([IMAGE], "the text lacks a container", "docker inspect NAME IMAGE | sparkcluster import -"),
        ([{"a": 1}], "the text lacks a container", "docker inspect NAME IMAGE | sparkcluster import -"),
        ([box("sleep", ["infinity"]), IMAGE], "vllm (running) does not run vLLM, but `sleep infinity`", "--container vllm"),
        ([{**box("sleep", ["9"]), "State": {"Status": "exited"}}, IMAGE, {"Processes": []}], "vllm (exited)", "start the"),
        ([box("ollama", ["serve"]), IMAGE], "vllm starts Ollama, but sparkcluster imports only vLLM", None),
        ([box("sleep", ["9"]), IMAGE, {"Processes": [process(["/x/raylet", "-a"])]}], "vllm is a Ray worker", "head"),
        ([box(args=["serve", "org/m", "--node-rank", "1"]), IMAGE], "not the first rank", "head"),
        ([box(Labels={"io.sparkcluster.cluster": "atlas"}), IMAGE], "vllm was started by sparkcluster", "playbook"),
    ],
)  # fmt: skip
def test_an_import_that_is_impossible_is_refused_with_the_command_to_type(documents, problem, hint):
    message, said = refused(*documents)

    assert problem in message
    assert hint is None or hint in said


def test_a_moved_tag_gets_no_digest():
    assert made({**box(), "Image": "sha256:" + "00" * 32}, IMAGE)[0]["image"] == "vllm/vllm-openai:v0.31.0"


def test_a_container_started_by_id_gets_the_name_of_its_image():
    assert made(box(Image=ID), IMAGE)[0]["image"] == f"vllm/vllm-openai:v0.31.0@{DIGEST}"
