"""Parts of a plan; test_golden.py has complete plans."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster import plan, topology
from sparkcluster.engines.vllm import command_line
from sparkcluster.errors import PlanError
from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import Facts
from sparkcluster.plan import docker_run, environment
from sparkcluster.plan.build import container_name
from sparkcluster.plan.diff import difference
from sparkcluster.spec import library, playbook_files

PORT_0 = ("enp1s0f0np0", "enP2p1s0f0np0")
TWO = {"alpha": "192.168.86.11", "beta": "192.168.86.12"}


@pytest.fixture
def two(spark):
    def make(**changes):
        return {
            name: spark(
                {PORT_0[0]: f"192.168.177.{number}/24", PORT_0[1]: f"192.168.178.{number}/24"},
                management=f"192.168.86.{number}/24",
                **changes,
            )
            for name, number in (("alpha", 11), ("beta", 12))
        }

    return make


def build(spec, facts, release=1, **kwargs):
    return plan.build(spec, facts, topology.build(spec, facts), release=release, **kwargs)


def changed(facts: dict[str, Facts], node: str, **update) -> dict[str, Facts]:
    return facts | {node: facts[node].model_copy(update=update)}


# ------------------------------------------------------------------------------------------------- the hash


def test_the_release_number_is_in_container_names_and_not_in_the_hash(two, cluster):
    first, ninth = build(cluster(TWO), two()), build(cluster(TWO), two(), release=9)

    assert first.hash == ninth.hash
    assert first.nodes["alpha"].containers[0].name == "sparkcluster-atlas-1-alpha"
    assert ninth.nodes["alpha"].containers[0].name == "sparkcluster-atlas-9-alpha"
    assert ninth.nodes["alpha"].containers[0].labels["io.sparkcluster.plan"] == first.hash


def test_with_several_models_on_a_node_the_launcher_gets_its_position_among_the_victims(two, cluster):
    one = cluster(TWO, playbook={"args": {"gpu-memory-utilization": 0.3}})
    beside = build(dataclasses.replace(one, siblings=("b", "c"), stopped_after=2), two())

    assert beside.nodes["alpha"].containers[0].launcher["victim"] == {"order": 2, "floor_bytes": 5 * 2**30}
    before = build(dataclasses.replace(one, siblings=("b", "c")), two())
    assert (before.hash, difference(before.as_json(), beside.as_json())) == (beside.hash, [])
    assert "victim" not in build(one, two()).nodes["alpha"].containers[0].launcher


def test_the_hash_covers_inputs_and_nothing_that_changes_automatically(two, cluster):
    facts = two()
    own = facts["beta"]
    later = own.model_copy(
        update={
            "interfaces": tuple(reversed(own.interfaces)),
            "hcas": tuple(reversed(own.hcas)),
            "memory": own.memory.model_copy(update={"free_bytes": 1, "available_bytes": 2, "cached_bytes": 3}),
            "disks": tuple(disk.model_copy(update={"free_bytes": 1}) for disk in own.disks),
            "clock_s": 1.0,
            "probe_s": 9.0,
            "listeners": (),
            "kernel": "6.17.0",
            "driver": "580.142",
        }
    )

    assert build(cluster(TWO), facts | {"beta": later}).hash == build(cluster(TWO), facts).hash


@pytest.mark.parametrize(
    "playbook",
    [
        {"args": {"max-model-len": 4096}},
        {"secrets": ["WANDB_API_KEY"]},
        {"setup": ["true"]},
        {"caches": []},
    ],
)
def test_a_changed_playbook_is_another_plan(two, cluster, playbook):
    assert build(cluster(TWO, playbook=playbook), two()).hash != build(cluster(TWO), two()).hash


def test_a_changed_address_gid_or_image_is_another_plan(two, cluster, spark):
    facts = two()
    image = facts["beta"].image.model_copy(update={"id": "sha256:" + "ff" * 32})
    moved = spark({PORT_0[0]: "192.168.177.22/24", PORT_0[1]: "192.168.178.12/24"})
    hashes = {
        build(cluster(TWO), node_facts).hash
        for node_facts in (
            facts,
            changed(facts, "beta", image=image),
            facts | {"beta": moved},
            facts | {"beta": two(gid=4)["beta"]},
        )
    }

    assert len(hashes) == 4


# ---------------------------------------------------------------------------------------------- environment


@pytest.mark.parametrize(
    ("networks", "within"),
    [
        (["192.168.177.0/24", "192.168.178.0/24"], "192.168.176.0/22"),
        (["10.0.0.0/24", "192.168.178.0/24"], None),
    ],
)
def test_nccl_gets_one_range_that_includes_every_rail(networks, within):
    assert environment.address_range(networks) == within


@pytest.mark.parametrize(("ready_timeout_s", "limits"), [(3600, ("3600", "3600")), (60.5, ("600", "300"))])
def test_engine_time_limits_follow_ready_timeout_s_and_are_at_least_the_defaults(two, cluster, ready_timeout_s, limits):
    playbook = {"ready_timeout_s": ready_timeout_s}
    for node in build(cluster(TWO, playbook=playbook), two()).nodes.values():
        assert node.env["VLLM_ENGINE_READY_TIMEOUT_S"] == limits[0]
        assert node.env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == node.env["RAY_CGRAPH_get_timeout"] == limits[1]
    own = {**playbook, "env": {"VLLM_ENGINE_READY_TIMEOUT_S": "7200"}}
    assert build(cluster(TWO, playbook=own), two()).nodes["beta"].env["VLLM_ENGINE_READY_TIMEOUT_S"] == "7200"


@pytest.mark.parametrize(
    ("image", "value"),
    [
        ("nvcr.io/nvidia/vllm:26.03-py3", "0"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "0"),
        ("nvcr.io/nvidia/vllm:25.12.post1-py3", None),
        ("vllm/vllm-openai:v0.28.0", None),
    ],
)
def test_flashinfers_fp4_experts_are_disabled_for_images_where_they_return_garbage(two, cluster, image, value):
    made = build(cluster(TWO, playbook={"image": image}), two())
    assert {node.env.get("VLLM_USE_FLASHINFER_MOE_FP4") for node in made.nodes.values()} == {value}


def test_a_secret_appears_by_name_and_never_by_value(two, cluster):
    playbook = {"secrets": ["WANDB_KEY"], "env": {"WANDB_KEY": "hf_leaked"}}
    made = build(cluster(TWO, playbook=playbook, api={"key": {"env": "KEY"}}), two())

    assert made.nodes["alpha"].secrets == ("RAY_AUTH_TOKEN", "VLLM_API_KEY", "WANDB_KEY")
    assert made.nodes["beta"].secrets == ("RAY_AUTH_TOKEN", "WANDB_KEY")
    assert "hf_leaked" not in json.dumps(made.as_json())
    container = made.nodes["beta"].containers[0]
    assert container.env_file == f"{container.rank_dir}/secrets.env"
    assert container.argv[container.argv.index("--env-file") + 1] == container.env_file


# ------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("value", "argv"),
    [
        (True, ["--x"]),
        (False, ["--no-x"]),
        (None, []),
        (0.85, ["--x", "0.85"]),
        ("-1", ["--x=-1"]),
        (["a", 2], ["--x", "a", "2"]),
        ({"method": "mtp", "n": 2}, ["--x", '{"method":"mtp","n":2}']),
    ],
)
def test_arguments_become_vllm_flags(value, argv):
    assert command_line.flag("x", value) == argv


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("/models/a:b", "type=bind,source=/models/a:b,target=/m,readonly"),
        ("/models/a,b", 'type=bind,"source=/models/a,b",target=/m,readonly'),
        ('/models/a"b', 'type=bind,"source=/models/a""b",target=/m,readonly'),
    ],
)
def test_a_mount_is_escaped_for_any_path(source, shown):
    assert docker_run.bind(source, "/m", read_only=True) == ["--mount", shown]


@pytest.mark.parametrize(
    ("entrypoint", "kept"),
    [(["vllm", "serve"], False), (["/bin/sh", "/opt/nvidia/nvidia_entrypoint.sh"], True), ([], False)],
)
def test_nvidias_entrypoint_is_kept(two, cluster, entrypoint, kept):
    """Images based on nvidia/cuda have its files, and older ones of vLLM a custom entrypoint."""
    facts = two()
    for name, own in facts.items():
        image = own.image.model_copy(update={"entrypoint": tuple(entrypoint)})
        facts[name] = own.model_copy(update={"image": image})
    argv = build(cluster(TWO), facts).nodes["alpha"].containers[0].argv
    assert ("--entrypoint" not in argv) is kept


@pytest.mark.parametrize("user", ["root", "0:0"])
def test_as_root_nothing_changes(two, cluster, user):
    changed = {
        name: own.model_copy(update={"image": own.image.model_copy(update={"user": user})})
        for name, own in two().items()
    }
    assert build(cluster(TWO), changed) == build(cluster(TWO), two())


@pytest.mark.parametrize(
    ("user", "of_image", "home"),
    [
        ("2000:2000", "", "/sparkcluster/home"),
        ("0", "2000", "/root"),
    ],
)
def test_the_playbooks_user_is_the_ranks_user_with_separate_caches(two, cluster, user, of_image, home):
    facts = {
        name: own.model_copy(update={"image": own.image.model_copy(update={"user": of_image})})
        for name, own in two().items()
    }
    own = cluster(TWO, playbook={"container": {"user": user}})
    container = build(own, facts).nodes["alpha"].containers[0]
    assert container.argv[container.argv.index("--user") + 1] == user
    of_user = [each for each in mounts(container) if f"-user-{user.replace(':', '-')}/" in each]
    assert [each for each in mounts(container) if "/caches/" in each] == of_user
    assert all(f"target={home}/" in each for each in of_user)
    assert bool(container.shared) is (home != "/root")


@pytest.mark.parametrize("playbook", [{}, {"container": {"cap_add": ["MKNOD"]}}])
def test_containers_run_with_the_least_privileges(two, cluster, playbook):
    facts = two()
    spec = cluster(TWO, playbook=playbook, permit={"capabilities": ["MKNOD"]})
    argv = build(spec, facts).nodes["alpha"].containers[0].argv

    assert not {"--privileged", "--restart", "--rm"} & set(argv)
    assert "--security-opt no-new-privileges" in " ".join(argv)
    dropped = {name for flag, name in itertools.pairwise(argv) if flag == "--cap-drop"}
    assert dropped == ({"NET_RAW"} if playbook else {"NET_RAW", "MKNOD"})
    assert argv[argv.index("--pull") + 1] == "never"
    assert {"--init", "--detach"} <= set(argv)


def test_the_plan_names_a_built_image_by_its_content(two, cluster):
    spec = cluster(TWO, playbook={"build": {"context": "./mod"}})
    first, other = (
        dataclasses.replace(spec, build=playbook_files.FileSet("./mod", mark, "mod", ())) for mark in ("aa", "bb")
    )
    missing = {name: own.model_copy(update={"image": None}) for name, own in two().items()}
    plan = build(first, missing)
    assert plan.image == first.image
    assert plan.image.startswith("sparkcluster-build:")
    assert first.image in plan.nodes["alpha"].containers[0].argv
    assert build(other, missing).hash != plan.hash


def test_devices_and_limits_of_the_playbook_are_added(two, cluster):
    container = {"devices": ["/dev/gdrdrv"], "ulimits": {"nofile": 65536, "core": 0}}
    argv = build(cluster(TWO, playbook={"container": container}), two()).nodes["beta"].containers[0].argv
    pairs = list(itertools.pairwise(argv))
    assert [value for flag, value in pairs if flag == "--device"] == ["/dev/infiniband", "/dev/gdrdrv"]
    limits = [value for flag, value in pairs if flag == "--ulimit"]
    assert limits == ["memlock=-1", "stack=67108864", "nofile=65536", "core=0"]


HUB, INSIDE = "/home/nvidia/.cache/huggingface/hub", "/root/.cache/huggingface/hub"
QWEN = f"type=bind,source={HUB}/models--Qwen--Qwen3-8B,target={INSIDE}/models--Qwen--Qwen3-8B,readonly"


def mounts(container) -> list[str]:
    """Mounts of a container, except the launcher's files and the caches."""
    values = [value for word, value in zip(container.argv, container.argv[1:], strict=False) if word == "--mount"]
    return [value for value in values if "/clusters/" not in value and "/caches/" not in value]


@pytest.mark.parametrize(
    ("playbook", "seen"),
    [
        ({}, [QWEN]),
        ({"model": {"path": "/models/q"}}, ["type=bind,source=/models/q,target=/models/q,readonly"]),
        (
            {"model": {"path": "/data/hub/models--q--q/snapshots/abc/sub"}},
            ["type=bind,source=/data/hub/models--q--q,target=/data/hub/models--q--q,readonly"],
        ),
        (
            {"args": {"speculative-config": {"method": "dflash", "model": "z-lab/D"}, "tokenizer": "Qwen/Qwen3-8B"}},
            [QWEN, f"type=bind,source={HUB}/models--z-lab--D,target={INSIDE}/models--z-lab--D,readonly"],
        ),
    ],
)
def test_a_container_mounts_only_the_served_model_of_the_cache(two, cluster, playbook, seen):
    for node in build(cluster(TWO, playbook=playbook), two()).nodes.values():
        assert mounts(node.containers[0]) == seen


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/export//home", "your SSH keys"),
        ("/export/home/bob/.ssh", "your SSH keys"),
        ("/export/home/bob/./hf/stored_tokens", "your Hugging Face token"),
        ("/export/home/bob/spark/state/clusters", "sparkcluster's state"),
        ("/etc", "control of the node"),
        ("/export/home/bob/models/m", None),
        ("/export/home/bob/hf/hub/models--q--q", None),
    ],
)
def test_forbidden_settings_are_refused_under_other_names_too(two, cluster, path, reason):
    home = "/export/home/bob"
    facts = changed(two(), "beta", home=home, hf_home=f"{home}/hf", state_dir=f"{home}/spark/state")
    mount = {"source": path, "target": "/x", "read_only": True}
    for playbook in ({"model": {"path": path}}, {"mounts": [mount]}):
        if reason is None:
            build(cluster(TWO, playbook=playbook), facts)
            continue
        with pytest.raises(PlanError, match=reason) as caught:
            build(cluster(TWO, playbook=playbook), facts)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("playbook", "roots"),
    [
        ({"model": {"path": f"{HUB}/models--q--q/x/y"}}, {f"{HUB}/models--q--q/x/y": f"{HUB}/models--q--q"}),
        ({"model": {"path": "~/scratch/q"}}, {"/home/nvidia/scratch/q": "/home/nvidia/scratch"}),
        (
            {
                "mounts": [
                    {"source": f"~/.cache//huggingface/hub/{name}", "target": f"/{name}"} for name in ("a/b", "c")
                ]
            },
            {f"/home/nvidia/.cache//huggingface/hub/{name}": f"{HUB}/{name[0]}" for name in ("a/b", "c")},
        ),
        (
            {"mounts": [{"source": path, "target": path} for path in ("/data/own", "/data/own/x/", "/database")]},
            {"/data/own": "/data", "/data/own/x/": "/data", "/database": "/database"},
        ),
    ],
)
def test_a_node_gets_the_allowed_directory_of_each_source(two, cluster, playbook, roots):
    spec = cluster(TWO, playbook=playbook, permit={"mounts": ["/data", "/data/own", "~/scratch:rw"]})
    for node in build(spec, two()).nodes.values():
        assert node.containers[0].roots == roots


def test_playbook_files_are_mounted_from_the_directory_to_which_they_are_copied(two, cluster, tmp_path):
    (tmp_path / "plugin.py").write_text("x")
    playbook = {"mounts": [{"source": "./plugin.py", "target": "/opt/plugin.py"}]}
    found = playbook_files.read("./plugin.py", tmp_path / "playbook.yaml")
    spec = dataclasses.replace(cluster(TWO, playbook=playbook), files={"./plugin.py": found})
    facts = two()
    for name, node in build(spec, facts).nodes.items():
        state = facts[name].state_dir
        source = f"{state}/files/{found.mark}/plugin.py"
        assert mounts(node.containers[0])[-1] == f"type=bind,source={source},target=/opt/plugin.py,readonly"
        assert node.containers[0].roots == {source: f"{state}/files/{found.mark}"}
    assert build(cluster(TWO, playbook=playbook), facts).hash != build(spec, facts).hash


def test_a_playbook_cannot_load_code_compiled_by_another(two, cluster):
    """Not even with the same name as a bundled one."""
    (bundled,) = library.bundled()
    specs = [cluster(TWO, playbook={"name": name}) for name in ("qwen", "other")]
    mine = cluster(TWO, playbook={"name": "gpt-oss-20b"})
    file = bundled / "gpt-oss-20b.yaml"
    specs += [mine, dataclasses.replace(mine, playbook_path=file, places={("name",): (str(file), 1)})]
    caches = [build(spec, two()).nodes["alpha"].containers[0].directories[1:] for spec in specs]
    assert all(caches)
    assert len({path for each in caches for path in each}) == sum(map(len, caches))
    assert "/bundled/gpt-oss-20b/" in caches[-1][0]
    assert "/other/gpt-oss-20b/" in caches[-2][0]


def test_every_created_directory_is_in_the_state_directory(two, cluster):
    container = build(cluster(TWO), two()).nodes["alpha"].containers[0]

    assert container.directories[0] == container.rank_dir
    assert all(path.startswith("/home/nvidia/.local/state/sparkcluster/") for path in container.directories)
    assert {f"source={path}" for path in container.directories[1:]} <= {
        part for word in container.argv for part in word.split(",")
    }


def test_a_node_without_the_image_is_planned_with_the_image_id_of_the_others(two, cluster):
    made = build(cluster(TWO), changed(two(), "beta", image=None))

    assert made.nodes["beta"].containers[0].image == made.nodes["alpha"].containers[0].image


def test_a_process_uses_the_inventorys_python_before_it_was_probed(spark, cluster):
    runtime = {"kind": "process", "python": "~/venv/bin/python"}
    spec = cluster({"me": "127.0.0.1"}, playbook={"image": None}, runtime=runtime)

    made = build(spec, {"me": spark(image=None, engine=Unread(unread="no such file"))})

    assert made.nodes["me"].containers[0].argv[0] == "/home/nvidia/venv/bin/python"


# ------------------------------------------------------------------------------------------------- refusals


def test_an_impossible_configuration_is_an_error_with_an_alternative(two, cluster):
    playbook = {"args": {"data-parallel-size": 2}, "tensor_parallel": 2}
    with pytest.raises(PlanError, match="needs 4 nodes") as caught:
        build(cluster(TWO, playbook=playbook), two())
    assert caught.value.hint


def test_ray_is_required_if_the_playbook_asks_for_it(two, cluster):
    facts = two()
    inside = facts["alpha"].image.inside.model_copy(update={"ray_version": None})
    image = facts["alpha"].image.model_copy(update={"inside": inside})
    facts = {name: own.model_copy(update={"image": image}) for name, own in facts.items()}

    assert build(cluster(TWO), facts).groups[0].executor == "native"
    assert build(cluster(TWO), facts, bring_ray=True).groups[0].executor == "ray"
    with pytest.raises(PlanError, match="no Ray"):
        build(cluster(TWO, playbook={"executor": "ray"}), facts)


@settings(max_examples=25)
@given(
    cluster=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True),
    nodes=st.sets(st.from_regex(r"[0-9A-Za-z][0-9A-Za-z.:%_-]{0,252}", fullmatch=True), min_size=2, max_size=2),
    release=st.integers(1, 10**6),
)
def test_container_names_are_valid_for_docker_and_unique(cluster, nodes, release):
    names = {container_name(cluster, release, node) for node in nodes}

    assert len(names) == 2
    assert all(len(name) <= 120 for name in names)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]+", name) for name in names)


def test_the_environment_of_a_node_is_separate_and_ray_does_not_copy_it(two, cluster):
    playbook = {"env": {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"}}
    nodes = {"alpha": {"env": {"NCCL_DEBUG": "INFO"}}, "beta": {"env": {"NCCL_NET_GDR_LEVEL": "LOC"}}}
    plan = build(cluster(TWO, playbook=playbook, nodes=nodes), two())
    found = {
        name: {key: node.env.get(key) for key in ("NCCL_DEBUG", "OMP_NUM_THREADS", "NCCL_NET_GDR_LEVEL")}
        for name, node in plan.nodes.items()
    }
    assert found == {
        "alpha": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "NCCL_NET_GDR_LEVEL": None},
        "beta": {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8", "NCCL_NET_GDR_LEVEL": "LOC"},
    }
    for node in plan.nodes.values():
        carried = set(node.containers[0].launcher["carry_over"])
        assert {"NCCL_DEBUG", "NCCL_NET_GDR_LEVEL"} <= carried
        assert "OMP_NUM_THREADS" not in carried


def test_a_model_has_all_its_names_in_the_api(two, cluster):
    plan = build(cluster(TWO, playbook={"served_name": "main", "aliases": ["gpt-4o", "other"]}), two())
    words = plan.nodes["alpha"].containers[0].launcher["engine"]
    at = words.index("--served-model-name")
    assert words[at + 1 : at + 5] == ["main", "gpt-4o", "other", "--tensor-parallel-size"]
    assert plan.model == "main"


# ----------------------------------------------------------------------------------------------- difference


def test_changes_are_described_in_lines(two, cluster):
    old = build(cluster(TWO), two()).as_json()
    playbook = {"args": {"max-model-len": 4096}, "env": {"NCCL_DEBUG": "INFO"}, "served_name": "q"}
    facts = two(gid=5)
    new = build(cluster(TWO, playbook=playbook), facts).as_json()

    assert difference(json.loads(json.dumps(old)), new) == [
        "model: Qwen/Qwen3-8B → q",
        "every node: env NCCL_DEBUG: unset → INFO",
        "every node: env NCCL_IB_GID_INDEX: 3 → 5",
        "alpha: engine - --served-model-name Qwen/Qwen3-8B",
        "alpha: engine + --served-model-name q",
        "alpha: engine + --max-model-len 4096",
    ]
