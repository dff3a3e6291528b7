"""Imported recipes: the resulting command line means the same, flag by flag."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from sparkcluster import plan, topology
from sparkcluster.cli.main import guarded
from sparkcluster.importer import convert
from sparkcluster.spec import Playbook
from sparkcluster.spec.document import parse
from tests.unit.importer.words import flags_of

DATA = Path(__file__).parents[2] / "data/recipes"
SCRIPTS = sorted(DATA.glob("*.sh"))
IMAGE = re.compile(r"(vllm/|nvcr\.io/|ghcr\.io/|vllm-node).*")


def printed(text):
    """Environment, mounts and engine words of a docker run line, parsed only with shlex."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    words = words[words.index("run") + 1 :]
    at = next(index for index, word in enumerate(words) if IMAGE.fullmatch(word))
    before, after = words[:at], words[at + 1 :]
    pairs = list(itertools.pairwise(before))
    env = dict(value.split("=", 1) for option, value in pairs if option == "-e")
    mounts = [value for option, value in pairs if option == "-v"]
    if after[:1] == ["-c"]:
        after = shlex.split(after[1])
    for head in (["vllm", "serve"], ["python3", "-m", "vllm.entrypoints.openai.api_server"]):
        for index in range(len(after)):
            if after[index : index + len(head)] == head:
                after = after[index + len(head) :]
                break
    return words[at], env, mounts, flags_of(after)


@pytest.fixture
def rendered(cluster, spark):
    """The resulting run of a playbook on one Spark: image, environment, mounts, engine words, setup."""

    def render(text, nodes=1):
        data = parse(text, "imported.yaml").data
        Playbook.model_validate(data)
        hosts = {f"n{number}": f"192.168.86.1{number}" for number in range(1, nodes + 1)}
        names = {number: f"192.168.177.1{number}/24" for number in range(1, nodes + 1)}
        spec = cluster(hosts, playbook=data)
        facts = {
            name: spark(
                {"enp1s0f0np0": names[number], "enP2p1s0f0np0": names[number].replace("177", "178")}
                if nodes > 1 else None, management=f"{hosts[name]}/24",
            )
            for number, name in enumerate(hosts, start=1)
        }  # fmt: skip
        made = plan.build(spec, facts, topology.build(spec, facts), release=1)
        node = made.nodes["n1"]
        argv = list(node.containers[0].argv)
        mounts = [argv[index + 1] for index, word in enumerate(argv) if word == "--mount"]
        return data, node.env, mounts, node.containers[0].launcher

    return render


OURS = ("--host", "--port", "--served-model-name", "--tensor-parallel-size", "--pipeline-parallel-size")


def engine(launcher):
    words = launcher["engine"]
    assert words[:2] == ["vllm", "serve"]
    return flags_of(words[2:])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_imported_script_has_the_same_command_line(path, rendered):
    image, env, mounts, expected = printed(path.read_text())
    made = convert(path.read_text(), path.name)

    data, run_env, run_mounts, launcher = rendered(made.text)
    got = engine(launcher)

    assert data["image"] == image
    # The model, by repository or at the path that the mounts give it.
    (model,) = expected.pop("model")
    (run_model,) = got.pop("model")
    sources = {target: source for source, target in (mount.split(":")[:2] for mount in mounts)}
    if model.startswith("/"):
        (target,) = [directory for directory in sources if model == directory or model.startswith(f"{directory}/")]
        model = model.replace(target, sources[target].replace("~", "/home/nvidia"), 1)
    assert run_model == model
    assert got.pop("--served-model-name") == expected.pop(
        "--served-model-name", [data["model"].get("id", run_model.rsplit("/", 1)[-1])]
    )
    assert got.pop("--tensor-parallel-size") == expected.pop("--tensor-parallel-size", [1])
    assert got.pop("--pipeline-parallel-size") == [1]
    assert got.pop("--host") == ["127.0.0.1"]
    assert got.pop("--port") == expected.pop("--port", [8000])
    host = expected.pop("--host", None)
    assert (host is None) == (not any("api.host" in note for note in made.notes))
    assert got == expected

    carried = {name: value for name, value in env.items() if name not in {"HF_HOME", "HF_TOKEN"}}
    assert {name: run_env.get(name) for name in carried} == carried
    assert "HF_TOKEN" not in data.get("secrets", [])
    seen = {re.search(r"target=([^,]*)", mount)[1]: re.search(r"source=([^,]*)", mount)[1] for mount in run_mounts}
    for target, source in sources.items():
        if target in {env.get("HF_HOME"), "/root/.cache/huggingface"}:
            continue  # the cache has a separate key in the inventory
        where = source.replace("~", "/home/nvidia")
        assert seen.get(target) == where or seen.get(where) == where


def test_commands_before_the_engine_become_setup(rendered):
    made = convert((DATA / "nemotron-3-nano-omni.sh").read_text(), "omni.sh")
    *_, launcher = rendered(made.text)
    assert [shlex.split(line) for line in launcher["setup"]] == [["pip", "install", "vllm[audio]"]]


def test_a_recipe_for_a_single_spark(rendered):
    made = convert((DATA / "super-solo.yaml").read_text(), "super-solo.yaml")
    data, _, _, launcher = rendered(made.text)
    assert (data["name"], data["image"], data["tensor_parallel"]) == ("nemotron-3-super-nvfp4-solo", "vllm-node", 1)
    assert data["description"] == "Nemotron 3 Super on one Spark, for agents"
    got = {key: value for key, value in engine(launcher).items() if key not in OURS}
    assert got == {
        "model": ["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"], "--kv-cache-dtype": ["fp8"],
        "--moe-backend": ["cutlass"], "--trust-remote-code": [], "--gpu-memory-utilization": [0.85],
        "--max-model-len": [131072], "--max-num-seqs": [4], "--enable-prefix-caching": [],
        "--enable-auto-tool-choice": [], "--tool-call-parser": ["qwen3_coder"],
    }  # fmt: skip


def test_a_recipe_for_several_nodes(rendered):
    made = convert((DATA / "cluster-of-three.yaml").read_text(), "cluster-of-three.yaml")
    data, env, _, launcher = rendered(made.text, nodes=3)
    got = engine(launcher)
    assert (data["name"], data["tensor_parallel"], data["executor"]) == ("flash-tp-3", 3, "ray")
    assert got["--limit-mm-per-prompt"] == [{"image": 1}]
    assert got["--additional-config"] == [{"tokens": 7, "ranks": 3}]
    assert got["--speculative-config"] == [{"method": "mtp", "num_speculative_tokens": 2}]
    assert got["--max-model-len"] == ["auto"]
    assert got["--mxfp4-layers"] == ["moe,qkv,o,lm_head"]
    assert env["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1"
    notes = "\n".join(made.notes)
    for part in (
        "--mxfp4-layers",
        "mods/fix-something",
        "--exp-b12x",
        "NCCL_IB_HCA",
        "api.port: 9000",
        "build-and-copy",
    ):
        assert part in notes
        assert part in made.text


def line(*words, image="vllm/vllm-openai:nightly", options=()):
    return shlex.join(["docker", "run", *options, image, *words])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line("org/m", "--swapspace", "4"), "swap-space"),
        (line("org/m", "--speculative-disable-by-batch-size", "32"), "V1"),
        (line("org/m", "--made-up"), "--made-up"),
        (line("org/m", options=["--privileged"]), "--privileged"),
        (line("org/m", options=["--memory", "100g"]), "unified memory"),
        (line("org/m", options=["--env-file", "x.env"]), "under env"),
        (line("org/m", options=["-e", "NCCL_SOCKET_IFNAME=enp1s0f0np0"]), "differs between nodes"),
        (line("org/m", options=["-v", "data:/data"]), "full path"),
        (line("org/m", options=["-p", "9000:8000"]), "api.port: 9000"),
        (
            line("org/m", options=["--secret", "hf", "--tz", "local", "--replace"]),
            "--secret hf: a playbook has no such key",
        ),
        ("timeout 9 vllm serve org/m", "timeout 9: skipped"),
        ("set -a; source x.env; vllm serve org/m", "line 1: set -a: write the variables"),
        ("docker run i:1 bash -c 'vllm serve org/m; make'", "the command make, which follows the engine"),
        (
            "docker run i:1 bash -c 'ray start --head; vllm serve org/m'",
            "ray start --head: skipped: sparkcluster starts Ray",
        ),
        ("vllm serve org/m -tp 2\u00b2", "--tensor-parallel-size 2\u00b2: write"),
        ("docker run --env-file <(env) i:1 vllm serve org/m", "--env-file <(env): write its variables"),
        (line("org/m", options=["--health-start-interval", "5s"]), "--health-start-interval 5s: a playbook has no"),
        ("vllm serve org/m $EXTRA", "$EXTRA: not set; if it contains flags"),
        (line("org/m", "--api-key", "sk-12345678"), "api.key"),
        (line("org/m", "--config", "x.yaml"), "under args"),
        (line("org/m", options=["--ulimit", "nofile=1024:4096"]), "--ulimit nofile=1024:4096"),
        (line("org/m", options=["--device", "/dev/ttyS0:/dev/serial"]), "--device /dev/ttyS0:/dev/serial"),
        ("docker run vllm/vllm-openai:nightly org/m --max-model-len $LEN", "LEN"),
        ("cat <<EOF > x\nvllm serve no\nEOF\nvllm serve org/m", "line 1: here-document, which is unsupported"),
        ("curl -H 'Authorization: Bearer sk-abcdefghij' x\nvllm serve org/m", "the command curl"),
        (line("org/m") + "\n" + line("org/other"), "only the first engine"),
        (line("/cache/hub/m", options=["-v", "hf:/cache"]), "is not in a mounted directory"),
    ],
)
def test_settings_that_cannot_be_imported_are_reported(text, message):
    made = convert(text, "x.sh")
    assert any(message in note for note in made.notes), made.notes
    assert "sk-" not in made.text


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["-tp", "2", "-q=fp8"], {"quantization": "fp8"}),
        (["-O3"], {"optimization-level": "3"}),
        (["-cc.mode=3"], {"compilation-config.mode": "3"}),
        (["--max_model_len", "32k"], {"max-model-len": "32k"}),
        (["--no-enable-prefix-caching"], {"enable-prefix-caching": False}),
        (["--enforce-eager", "--no-enforce-eager"], {"enforce-eager": False}),
        (["--seed", "1", "--seed=2"], {"seed": 2}),
        (
            ["--cudagraph-capture-sizes", "1", "2", "4", "--seed", "0"],
            {"cudagraph-capture-sizes": [1, 2, 4], "seed": 0},
        ),
        (["--chat-template", "a b.jinja"], {"chat-template": "a b.jinja"}),
        (["--speculative-config", '{"method":"ngram"}'], {"speculative-config": {"method": "ngram"}}),
        (["--speculative-config={not json"], {"speculative-config": "{not json"}),
    ],
)
def test_spellings_of_a_flag(words, args):
    made = convert(line("org/m", *words), "x.sh")
    assert made.document.get("args") == args
    assert parse(made.text, "x").data["args"] == args


@pytest.mark.parametrize(
    ("text", "image", "model"),
    [
        ("docker run -d vllm/vllm-openai:nightly org/m", "vllm/vllm-openai:nightly", {"id": "org/m"}),
        (
            "docker run -it --rm nvcr.io/nvidia/vllm:26.04-py3 vllm serve org/m",
            "nvcr.io/nvidia/vllm:26.04-py3",
            {"id": "org/m"},
        ),
        ("sudo docker container run -p8000:8000 x/y:1 vllm serve org/m", "x/y:1", {"id": "org/m"}),
        ("sudo -E -u me docker run x/y:1 vllm serve org/m", "x/y:1", {"id": "org/m"}),
        ("uv run --with 'vllm>=0.23' --python 3.12 vllm serve org/m --seed 1", None, {"id": "org/m"}),
        ("A=1 uvx vllm serve org/m", None, {"id": "org/m"}),
        ("IMG=a/b:1\nM='org/m'\ndocker run \"$IMG\" vllm serve ${M}", "a/b:1", {"id": "org/m"}),
        ("docker run ${IMG:-a/b:2} vllm serve ${M:-org/m}", "a/b:2", {"id": "org/m"}),
        ("docker run --entrypoint vllm a/b:1 serve org/m", "a/b:1", {"id": "org/m"}),
        ("docker run a/b:1 bash -lc 'exec vllm serve org/m'", "a/b:1", {"id": "org/m"}),
        ("docker run -v $HOME/w:/w a/b:1 vllm serve /w/m", "a/b:1", {"path": "~/w/m"}),
        (
            "docker run --mount type=bind,source=/data,target=/w,readonly a/b:1 vllm serve /w/m",
            "a/b:1",
            {"path": "/data/m"},
        ),
        ("#!/bin/bash\nset -e\nif true; then\n  vllm serve org/m --seed 1 > log 2>&1 &\nfi", None, {"id": "org/m"}),
        ("$ docker run \\ \n  a/b:1 \\\n  vllm serve org/m \\\n", "a/b:1", {"id": "org/m"}),
        ("docker run a/b:1 python3 -m vllm.entrypoints.openai.api_server --model org/m", "a/b:1", {"id": "org/m"}),
        ("docker run vllm/vllm-openai:nightly vllm serve org/m", "vllm/vllm-openai:nightly", {"id": "org/m"}),
        (
            "docker run a/b:1 python3 -u -X dev -m vllm.entrypoints.openai.api_server --model org/m",
            "a/b:1",
            {"id": "org/m"},
        ),
        ("python3 -m vllm.entrypoints.cli.main serve org/m", None, {"id": "org/m"}),
        ("\ufeffvllm serve org/m", None, {"id": "org/m"}),
        ("docker run --entrypoint python3 a/b:1 /usr/bin/vllm serve org/m", "a/b:1", {"id": "org/m"}),
        ("docker run --entrypoint bash a/b:1 -c 'vllm serve org/m'", "a/b:1", {"id": "org/m"}),
        ("docker run a/b:1 bash -c 'exec \"$@\"' _ vllm serve org/m", "a/b:1", {"id": "org/m"}),
        ("ssh -p 22 me@spark 'docker run a/b:1 vllm serve org/m'", "a/b:1", {"id": "org/m"}),
        ("docker run -d --name n a/b:1 sleep infinity\ndocker exec n vllm serve org/m", "a/b:1", {"id": "org/m"}),
        ("./launch-cluster.sh -t own:1 -n 10.0.0.1,10.0.0.2 exec vllm serve org/m -tp 2", "own:1", {"id": "org/m"}),
        ("./launch-cluster.sh --solo exec vllm serve org/m", "vllm-node", {"id": "org/m"}),
        (
            "bash run_cluster.sh vllm/vllm-openai:v1 10.0.0.1 --head ~/h\ndocker exec -it node-1 vllm serve org/m -tp 2",
            "vllm/vllm-openai:v1",
            {"id": "org/m"},
        ),
        (
            "run_cluster.sh vllm/vllm-openai 10.0.0.1 --head ~/h -e A=1\ndocker exec n /bin/bash -c 'vllm serve org/m'",
            "vllm/vllm-openai",
            {"id": "org/m"},
        ),
        ("docker run --rm a/b:1 nvidia-smi\ndocker run a/b:2 vllm serve org/m", "a/b:2", {"id": "org/m"}),
    ],
)
def test_forms_of_the_start_command(text, image, model):
    document = convert(text, "x.sh").document
    assert (document.get("image"), document["model"]) == (image, model)


def test_settings_with_a_key_in_playbooks():
    options = ["--cap-add", "CAP_SYS_NICE", "--device=/dev/gdrdrv:/dev/gdrdrv:rw", "--device", "/dev/infiniband"]
    limits = ["memlock=-1", "stack=67108864:67108864", "nofile=65536", "nproc=-1:-1"]
    for limit in limits:
        options += ["--ulimit", limit]
    made = convert(line("org/m", "--served-model-name", "a", "b", "a", "org/m", options=options), "x.sh")
    assert made.document["container"] == {
        "cap_add": ["SYS_NICE"], "devices": ["/dev/gdrdrv"], "ulimits": {"nofile": 65536, "nproc": -1},
    }  # fmt: skip
    assert (made.document["served_name"], made.document["aliases"]) == ("a", ["b", "org/m"])
    assert made.notes == ()


EXTRA = "ARGS='--max-num-seqs 4 --enforce-eager'\nvllm serve org/m $ARGS \"--chat-template=$NAME.jinja\""


def test_a_variable_with_several_words():
    made = convert("NAME=it\n" + EXTRA, "x.sh")
    assert made.document["args"] == {"max-num-seqs": 4, "enforce-eager": True, "chat-template": "it.jinja"}


def test_notes_about_secrets_are_complete():
    text = "docker run -e HF_TOKEN=v1 a/b:1 vllm serve org/m --api-key v2 --hf-token v3 --tool-server $TOKEN"
    made = convert(text, "x.sh")
    assert set(made.notes) == {
        "HF_TOKEN: skipped: needed only to stage gated models; set it where you run sparkcluster",
        "--api-key: write api.key in the inventory, which keeps it out of every command line",
        "--hf-token: write HF_TOKEN in the environment of sparkcluster, which stages gated models with it",
        "--tool-server $TOKEN: skipped: TOKEN is not set",
    }


def test_options_of_launch_cluster():
    """Each gets its meaning, or is listed by name."""
    text = (
        "export VLLM_SPARK_EXTRA_DOCKER_ARGS='-v /srv/extra:/extra -e A=1' B=2\n"
        "./launch-cluster.sh -t own:1 -v /srv/models:/models -p 8001:8000 --ray --apply-vllm-pr 123 --nccl-debug"
        " --keep-entrypoint --eth-if enp1 -e B --no-cache-dirs -d --new exec vllm serve /models/x --chat-template /extra/x"
    )
    made = convert(text, "x.sh")
    assert made.document == {
        "name": "x", "model": {"path": "/srv/models/x"}, "image": "own:1", "tensor_parallel": 1, "executor": "ray",
        "args": {"chat-template": "/extra/x"}, "env": {"B": "2"},
    }  # fmt: skip
    told = [
        "--publish 8001:8000: write api.port: 8001",
        "--apply-vllm-pr 123: a playbook",
        "--keep-entrypoint: a playbook",
    ]
    told += ["--eth-if enp1: ", "--no-cache-dirs: ", "--new: a playbook", "sets NCCL_IGNORE_CPU_AFFINITY=1"]
    told += [
        "VLLM_SPARK_EXTRA_DOCKER_ARGS=-v /srv/extra:/extra -e A=1: write",
        "--nccl-debug: write NCCL_DEBUG under env",
    ]
    untold = [each for each in told if not any(each in note for note in made.notes)]
    unexpected = [note for note in made.notes if not any(each in note for each in told)]
    assert (untold, unexpected) == ([], [])


@pytest.mark.parametrize(
    ("option", "keys"),
    [("--solo", {"nodes": {"max": 1}}), ("--no-ray", {"executor": "native"}), ("--ray", {"executor": "ray"})],
)
def test_options_of_launch_cluster_with_a_key(option, keys):
    document = convert(f"./launch-cluster.sh {option} exec vllm serve org/m", "x.sh").document
    assert {key: document.get(key) for key in keys} == keys


def test_a_model_mounted_under_its_original_path_needs_no_note():
    assert not convert(line("/data/m", options=["-v", "/data/m:/data/m"]), "x.sh").notes


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        (["-p", "8200:8100"], ["--publish 8200:8100: write api.port: 8200 in the inventory"]),
        ([], ["--port 8100: write api.port: 8100 in the inventory"]),
    ],
)
def test_the_port_for_clients_is_noted_once(options, notes):
    """A container may publish the engine's port under another number; the engine then listens on that one."""
    assert list(convert(line("org/m", "--port", "8100", options=options), "x.sh").notes) == notes


def test_a_variable_that_the_script_writes_into_a_file_is_listed():
    """Compose would read it from .env, which is unsupported."""
    compose = "services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: org/m --seed ${SEED:-1}\n"
    made = convert(f"```env\nSEED=2\n```\n```yaml\n{compose}```\n", "x.md")
    assert made.document["args"] == {"seed": 1}
    assert made.notes == ("SEED: set elsewhere in the page, which is unsupported; add --define SEED=VALUE",)


def test_notes_are_skipped_settings_by_reason_and_settings_to_check(tmp_path, capsys):
    text = "docker run --gpus all --privileged --restart always -e HF_TOKEN=x -e VLLM_HOST_IP=1 -e NCCL_IB_HCA=y vllm/vllm-openai:v0.20.0 --model a/b --port 9000"
    (tmp_path / "run.sh").write_text(text)
    out = tmp_path / "out.yaml"
    assert guarded(["import", str(tmp_path / "run.sh"), "-o", str(out)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"wrote {out}: a/b"
    left, look = lines.index("skipped"), lines.index("to check")
    assert lines[look + 1 :] == [
        "  --port 9000: write api.port: 9000 in the inventory",
        f"next: sparkcluster lint {out}",
    ]
    assert "  VLLM_HOST_IP, NCCL_IB_HCA: it differs between nodes, so sparkcluster sets it" in lines[left:look]
