"""Docker, GPU, driver, memory, disks, logind: each fault on one node, and near misses."""

from __future__ import annotations

import pytest

from sparkcluster import checks
from sparkcluster.facts.base import Unread
from sparkcluster.facts.docker import Layers
from sparkcluster.facts.model import Disk, Gpu
from sparkcluster.facts.network import Listener
from sparkcluster.facts.weights import WeightFile, Weights
from sparkcluster.topology.model import EMPTY
from tests.unit.fit.llama import LLAMA_8B

from .conftest import rails, reported, running_rank

BOTH = pytest.mark.parametrize("name", ["alpha", "beta"])
GB = 10**9


def gpu(**changes):
    return (Gpu.model_validate({"name": "NVIDIA GB10", "compute_capability": "12.1", **changes}),)


@pytest.fixture
def docker(spark):
    def make(**changes):
        return spark().docker.model_copy(update=changes)

    return make


@pytest.fixture
def memory(spark):
    def make(**changes):
        return spark().memory.model_copy(update=changes)

    return make


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("permission denied: /var/run/docker.sock", "sudo usermod -aG docker nvidia"),
        ("no such file: /var/run/docker.sock", "sudo systemctl enable --now docker"),
        ("connection refused: /var/run/docker.sock", "sudo systemctl restart docker"),
    ],
)
def test_an_unusable_docker_is_reported_once_although_image_and_ranks_fail_with_it(see, said, remedy):
    unread = Unread(unread=said)
    (finding,) = see({"beta": {"docker": unread, "image": unread, "ranks": unread}})
    assert reported([finding]) == [("HOST-001", "error", "beta")]
    assert remedy in finding.remedy


@BOTH
def test_a_stale_cdi_file(see, docker, name):
    stale = docker(cdi_driver="580.82.09", cdi_devices=("nvidia.com/gpu=all",))
    (finding,) = see({name: {"docker": stale}})
    assert reported([finding]) == [("HOST-026", "warning", name)]
    assert finding.seen == "generated for 580.82.09, but 580.95.05 is loaded"
    assert finding.remedy[0].startswith("sudo nvidia-ctk cdi generate")
    alone = stale.model_copy(update={"runtimes": ("runc",)})
    assert reported(see({name: {"docker": alone}})) == [("HOST-026", "error", name)]


@BOTH
@pytest.mark.parametrize("gpus", [(), Unread(unread="nvidia-smi exit 6: No devices were found")])
def test_a_lost_gpu(see, name, gpus):
    (finding,) = see({name: {"gpus": gpus}})
    assert reported([finding]) == [("HOST-003", "error", name)]
    assert finding.remedy[-1] == "sudo reboot"


UNLOADED = {"gpus": Unread(unread="nvidia-smi exit 9"), "driver": Unread(unread="no such file")}


@BOTH
def test_a_kernel_without_its_driver_module(see, name):
    (finding,) = see({name: {**UNLOADED, "driver_module": None}})
    assert reported([finding]) == [("HOST-003", "error", name)]
    assert finding.remedy[0] == "sudo apt-get install -y linux-modules-nvidia-580-open-6.14.0-1015-nvidia"


@BOTH
def test_an_updated_driver_that_is_not_loaded(see, name):
    (finding,) = see({name: {"driver_module": "580.126.09"}})
    assert reported([finding]) == [("HOST-015", "warning", name)]
    assert finding.remedy == ("sudo reboot",)


@pytest.mark.parametrize(
    ("driver", "playbook", "severity"),
    [
        ("590.48.01", {}, "error"),
        ("590.48.01", {"args": {"enforce-eager": True}}, "warning"),
        ("590.44.01", {"image": "nvcr.io/nvidia/vllm:25.12.post1-py3"}, "warning"),
        ("610.57.04", {}, None),
    ],
)
def test_a_driver_version_that_deadlocks(see, driver, playbook, severity):
    findings = see({name: {"driver": driver} for name in ("alpha", "beta")}, playbook=playbook)
    wanted = [("HOST-010", severity, name) for name in ("alpha", "beta")] if severity else []
    assert reported(findings) == wanted


@pytest.mark.parametrize(("capability", "wrong"), [("12.1", False), (None, False), ("12.0", True)])
def test_a_gpu_other_than_gb10(see, capability, wrong):
    findings = see({"beta": {"gpus": gpu(compute_capability=capability)}})
    assert reported(findings) == ([("HOST-018", "warning", "beta")] if wrong else [])


@pytest.mark.parametrize(
    ("percent", "power", "clock", "codes"),
    [
        (96, 14.0, 850.0, {"HOST-021"}),
        (96, 24.0, 2400.0, {"HOST-021"}),
        (89, 16.0, 700.0, set()),
        (None, None, None, set()),
    ],
)
def test_power_and_clocks(see, percent, power, clock, codes):
    own = gpu(utilization_percent=percent, power_w=power, sm_clock_mhz=clock)
    findings = see({"beta": {"gpus": own}})
    assert {(finding.code, finding.severity, finding.node) for finding in findings} == {
        (code, "warning", "beta") for code in codes
    }


@BOTH
def test_too_little_memory_because_of_the_page_cache(see, memory, name):
    (finding,) = see({name: {"memory": memory(free_bytes=40 * GB, cached_bytes=80 * GB)}})
    assert reported([finding]) == [("HOST-022", "warning", name)]
    assert "40.0 GB free, 115.7 GB needed, about 80.0 GB would be freed" in finding.seen
    assert finding.remedy == ("sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'",)


def test_used_memory_is_not_page_cache(see, memory):
    taken = memory(free_bytes=20 * GB, available_bytes=30 * GB, cached_bytes=10 * GB)
    (finding,) = see({"beta": {"memory": taken}})
    assert reported([finding]) == [("HOST-006", "warning", "beta")]
    assert finding.remedy[-1] == "set gpu-memory-utilization: 0.23 in the playbook"


def test_an_engine_within_the_models_memory_is_not_reported_as_taking_all(see, memory):
    """With another model: half of the Spark's memory is used, and 16 GiB of weights do not need it."""
    files = (WeightFile(name="model.safetensors", size_bytes=16 * 2**30),)
    half = {"memory": memory(available_bytes=65 * GB, free_bytes=65 * GB), "companions": {}}
    held = {**half, "weights": Weights(path="/models/llama", config=LLAMA_8B, files=files)}
    args = {"gpu-memory-utilization": "auto", "max-model-len": 32768}
    found = see({"alpha": held, "beta": held}, playbook={"args": args})
    assert not {"HOST-006", "HOST-022"} & {finding.code for finding in found}


def test_memory_used_by_no_program_is_reported_before_a_start(see, memory):
    """A Spark on which an engine was killed: 31 GiB are lost until a reboot."""
    leaked = memory(free_bytes=90 * GB, available_bytes=95 * GB, cached_bytes=5 * GB, anonymous_bytes=3 * GB)
    small = {"args": {"gpu-memory-utilization": 0.5}}
    (finding,) = see({"beta": {"memory": leaked}}, playbook=small)
    assert reported([finding]) == [("HOST-032", "info", "beta")]
    assert "30.5 GB in addition to 3.00 GB of processes" in finding.seen
    assert finding.remedy[-1] == "sudo reboot   if no program uses the GPU"
    assert ("HOST-032", "warning", "beta") in reported(see({"beta": {"memory": leaked}}))


@BOTH
def test_no_contiguous_memory(see, memory, name):
    (finding,) = see({name: {"memory": memory(cma_total_bytes=0)}})
    assert reported([finding]) == [("HOST-024", "warning", name)]
    assert any("kho=off" in command for command in finding.remedy)


def disks(**free):
    return tuple(
        Disk(purpose=purpose, path=f"/{purpose}", total_bytes=4000 * GB, free_bytes=free.get(purpose, 3000 * GB))
        for purpose in ("state", "hf_home", "docker")
    )


@BOTH
def test_a_full_disk_is_one_finding_for_everything_on_it(see, name):
    full = disks(state=10**6, hf_home=10**6, docker=10**6)
    (finding,) = see({name: {"disks": full}})
    assert reported([finding]) == [("HOST-005", "error", name)]
    assert see({name: {"disks": disks(state=2 * GB)}}) == []


@BOTH
def test_no_free_space_for_a_missing_image(see, name):
    (error, info) = see({name: {"image": None, "disks": disks(docker=39 * GB)}})
    assert reported([error, info]) == [("HOST-028", "error", name), ("IMG-009", "info", name)]
    assert "39.0 GB free at /docker, 40.0 GB needed" in error.seen
    assert reported(see({name: {"image": None, "disks": disks(docker=41 * GB)}})) == [("IMG-009", "info", name)]
    assert see({name: {"disks": disks(docker=5 * GB)}}) == []


@pytest.mark.parametrize(
    ("free", "every", "found"),
    [(9, True, ["HOST-028"]), (11, True, []), (11, False, ["HOST-028"]), (41, False, [])],
)
def test_layers_of_another_image_need_no_free_space(see, spark, free, every, found):
    """15 of 20 GB are free; the image is copied if not every node without it can pull it."""
    layers = [f"sha256:{letter * 64}" for letter in "ab"]
    files = [{"digest": layer[7:], "bytes": size * GB} for layer, size in zip(layers, (15, 5), strict=True)]
    changes = {
        "alpha": {
            "image": spark().image.model_copy(update={"layers": tuple(layers)}),
            "layers": Layers(files=files),
        },
        "beta": {"image": None, "layers": Layers(chains=[layers[:1]]), "disks": disks(docker=free * GB)},
        "gamma": {"image": None, "layers": Layers(chains=[layers[:1]] if every else [])},
    }
    findings = see(changes, names=("alpha", "beta", "gamma"))
    assert [finding.code for finding in findings if finding.code == "HOST-028"] == found


@pytest.mark.parametrize(
    ("changes", "runtime", "severity"),
    [
        ({"remove_ipc": True}, "docker", "info"),
        ({"remove_ipc": True}, "process", "warning"),
        ({"remove_ipc": None}, "process", None),
        ({"remove_ipc": True, "uid": 999}, "process", None),
        ({"remove_ipc": True, "lingers": True}, "process", None),
    ],
)
def test_a_logind_setting_that_removes_ipc(see, spark, changes, runtime, severity):
    own = {**changes, "engine": spark().image.inside} if runtime == "process" else changes
    image = {"image": None} if runtime == "process" else {}
    findings = see({"me": own}, names=("me",), runtime={"kind": runtime}, playbook=image)
    assert reported(findings) == ([("HOST-016", severity, "me")] if severity else [])


@pytest.mark.parametrize(
    ("address", "port", "taken"),
    [
        ("::", 8000, True),
        ("127.0.0.1", 8000, True),
        ("192.168.86.11", 8000, False),
        ("0.0.0.0", 29501, False),
    ],
)
def test_a_port_is_in_use_if_the_listening_addresses_overlap(see, address, port, taken):
    held = {"listeners": (Listener(address=address, port=port, process="nginx"),)}
    assert reported(see({"alpha": held})) == ([("HOST-004", "error", "alpha")] if taken else [])
    assert see({"beta": held}) == [], "only the head listens"


@pytest.mark.parametrize(
    ("port", "playbook", "instead"),
    [(8000, {}, "api.port"), (6379, {}, "executor: native"), (29501, {"executor": "native"}, "executor: ray")],
)
def test_the_key_to_change_depends_on_the_port_in_use(see, port, playbook, instead):
    held = {"listeners": (Listener(address="0.0.0.0", port=port),)}
    (finding,) = see({"alpha": held}, playbook=playbook)
    assert instead in finding.remedy[1]
    assert finding.seen.startswith("a process of another user listens on")


def test_nodes_that_answered_are_checked_even_if_others_did_not(spark, cluster):
    facts = {"alpha": spark(rails(11), gpus=(), driver="570.1")}
    found = checks.run_checks(cluster({"alpha": "h1", "beta": "h2"}), facts, EMPTY)
    assert [each for each in reported(found) if each[1] == "error"] == [("HOST-003", "error", "alpha")]


@pytest.mark.parametrize("process", [None, "python3"])
def test_a_port_used_by_another_cluster_is_reported_with_the_cluster(see, process):
    held = {"listeners": (Listener(address="0.0.0.0", port=8000, process=process),), "ranks": (running_rank("tiny"),)}
    (finding,) = see({"alpha": held})
    assert finding.summary == "port 8000 of alpha is in use by cluster tiny, and the API needs it"
    assert "probably of sparkcluster-tiny-1-r0, listens on 0.0.0.0:8000" in finding.seen
    assert finding.remedy == (
        "sparkcluster down, with the inventory of cluster tiny",
        "or set another api.port in the inventory",
    )


VLLM = {"name": "vllm", "engine": "vllm", "host_network": True}
NODE = {"name": "node", "host_network": True}
WEB = {"name": "open-webui", "ports": [3000]}


@pytest.mark.parametrize(
    ("port", "container", "seen"),
    [
        (8000, VLLM, "a process of another user, perhaps of the container vllm, listens on 0.0.0.0:8000"),
        (8000, {**WEB, "ports": [8000]}, "the container open-webui listens on 0.0.0.0:8000"),
        (8000, NODE, "a process of another user, perhaps of the container node, listens on 0.0.0.0:8000"),
        (8000, WEB, "a process of another user listens on 0.0.0.0:8000"),
    ],
)
def test_a_port_used_by_a_container_is_reported_with_the_container(see, port, container, seen):
    listeners = [{"address": "0.0.0.0", "port": port, "process": None}]

    (finding,) = see(described={"alpha": {"listeners": listeners, "containers": [container]}})

    assert (finding.code, finding.seen) == ("HOST-004", seen)
    stops = f"on alpha: docker stop {container['name']}"
    converts = "sparkcluster import --container vllm --node 192.168.86.11   saves its settings as a playbook"
    named = [converts, stops] if container is VLLM else [stops] if "container" in seen else []
    assert list(finding.remedy[: len(named)]) == named


def test_a_container_with_an_engine_is_named_if_memory_is_taken(see):
    sizes = {"total_bytes": 128, "free_bytes": 1, "available_bytes": 60}
    rest = dict.fromkeys(("cached_bytes", "swap_total_bytes", "swap_free_bytes"), 0)
    memory = {name: size * 2**30 for name, size in sizes.items()} | rest

    (finding,) = see(described={"beta": {"memory": memory, "containers": [WEB, VLLM]}})

    assert finding.code == "HOST-006"
    assert finding.remedy[:2] == (
        "sparkcluster import --container vllm --node 192.168.86.12   saves its settings as a playbook",
        "on beta: docker stop vllm",
    )
    assert "open-webui" not in str(finding.remedy)
