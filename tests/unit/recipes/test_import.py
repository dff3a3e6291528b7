"""Recipes of others, imported: what sparkcluster then runs means what was written, flag by flag."""

from __future__ import annotations

import io
import itertools
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster import plan, topology
from sparkcluster.cli.main import main
from sparkcluster.errors import SpecError, UsageError
from sparkcluster.linting import lint
from sparkcluster.recipes import convert
from sparkcluster.spec import Playbook, flags
from sparkcluster.spec.document import parse

DATA = Path(__file__).parents[2] / "data/recipes"
SCRIPTS = sorted(DATA.glob("*.sh"))
IMAGE = re.compile(r"(vllm/|nvcr\.io/|ghcr\.io/|vllm-node).*")


def flags_of(words):
    """Flags of an argv, read as argparse would, without the code under test."""
    out = {}
    name = None
    for word in words:
        if re.fullmatch(r"--?[A-Za-z].*", word, re.DOTALL):
            name, equals, value = word.partition("=")
            short = {"-tp": "--tensor-parallel-size", "-q": "--quantization", "-pp": "--pipeline-parallel-size"}
            name = short.get(name, name)
            out[name] = [meaning(value)] if equals else []
        elif name is None:
            out["model"] = [word]
        else:
            out[name].append(meaning(word))
    if "--model" in out:
        out["model"] = out.pop("--model")
    return out


def meaning(text):
    """What a value says, however it is written: JSON and numbers as such."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def printed(text):
    """Environment, mounts and engine words of a docker run line, as a reader with shlex alone sees them."""
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
    """What sparkcluster runs for a playbook on one Spark: image, environment, mounts, engine words, setup."""

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


@pytest.mark.parametrize("path", [one for one in SCRIPTS if "dflash-" not in one.name], ids=lambda path: path.stem)
def test_a_printed_command_line_means_the_same(path, rendered):
    image, env, mounts, wanted = printed(path.read_text())
    made = convert(path.read_text(), path.name)

    data, run_env, run_mounts, launcher = rendered(made.text)
    got = engine(launcher)

    assert data["image"] == image
    # The model, by repository or at the path that the mounts give it.
    (model,) = wanted.pop("model")
    (run_model,) = got.pop("model")
    sources = {target: source for source, target in (one.split(":")[:2] for one in mounts)}
    if model.startswith("/"):
        (target,) = [one for one in sources if model == one or model.startswith(f"{one}/")]
        model = model.replace(target, sources[target].replace("~", "/home/nvidia"), 1)
    assert run_model == model
    assert got.pop("--served-model-name") == wanted.pop(
        "--served-model-name", [data["model"].get("id", run_model.rsplit("/", 1)[-1])]
    )
    assert got.pop("--tensor-parallel-size") == wanted.pop("--tensor-parallel-size", [1])
    assert got.pop("--pipeline-parallel-size") == [1]
    assert got.pop("--host") == ["127.0.0.1"]
    assert got.pop("--port") == wanted.pop("--port", [8000])
    host = wanted.pop("--host", None)
    assert (host is None) == (not any("api.host" in one for one in made.left))
    assert got == wanted

    carried = {name: value for name, value in env.items() if name not in {"HF_HOME", "HF_TOKEN"}}
    assert {name: run_env.get(name) for name in carried} == carried
    assert ("HF_TOKEN" in env) == ("HF_TOKEN" in data.get("secrets", []))
    seen = {re.search(r"target=([^,]*)", one)[1]: re.search(r"source=([^,]*)", one)[1] for one in run_mounts}
    for target, source in sources.items():
        if target in {env.get("HF_HOME"), "/root/.cache/huggingface"}:
            continue  # the cache has a place of its own in the inventory
        where = source.replace("~", "/home/nvidia")
        assert seen.get(target) == where or seen.get(where) == where


def test_what_runs_before_the_engine_is_setup(rendered):
    made = convert((DATA / "nemotron-3-nano-omni.sh").read_text(), "omni.sh")
    *_, launcher = rendered(made.text)
    assert [shlex.split(line) for line in launcher["setup"]] == [["pip", "install", "vllm[audio]"]]


def test_an_image_that_takes_variables(rendered):
    made = convert((DATA / "dflash-qwen3.5-27b.sh").read_text(), "dflash.sh")
    data, env, _, launcher = rendered(made.text)
    got = engine(launcher)
    assert got["--speculative-config"] == [
        {"method": "dflash", "model": "z-lab/Qwen3.5-27B-DFlash", "num_speculative_tokens": 15}
    ]
    assert (got["--max-model-len"], got["--max-num-seqs"]) == ([65536], [16])
    assert got["--served-model-name"] == ["dflash-qwen3.5-27b"]
    assert data["model"] == {"path": "~/vllm/DFlash-Qwen3.5-27B-Uncensored-NVFP4"}
    assert "VLLM_API_KEY" not in env
    assert any("api.key" in one for one in made.left)


def test_a_recipe_for_one_spark(rendered):
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


def test_a_recipe_for_a_cluster(rendered):
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
    said = "\n".join(made.left)
    for what in (
        "--mxfp4-layers",
        "mods/fix-something",
        "--exp-b12x",
        "NCCL_IB_HCA",
        "api.port: 9000",
        "build-and-copy",
    ):
        assert what in said
        assert what in made.text


def line(*words, image="vllm/vllm-openai:nightly", options=()):
    return shlex.join(["docker", "run", *options, image, *words])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line("org/m", "--swapspace", "4"), "swap-space"),
        (line("org/m", "--speculative-disable-by-batch-size", "32"), "V1"),
        (line("org/m", "--made-up"), "--made-up"),
        (line("org/m", options=["--privileged"]), "--privileged"),
        (line("org/m", options=["--memory", "100g"]), "unified memory"),
        (line("org/m", options=["--env-file", "x.env"]), "under env"),
        (line("org/m", options=["-e", "NCCL_SOCKET_IFNAME=enp1s0f0np0"]), "differs from node to node"),
        (line("org/m", options=["-v", "data:/data"]), "full path"),
        (line("org/m", options=["-p", "9000:8000"]), "api.port: 9000"),
        (line("org/m", options=["--wonder"]), "no such option"),
        (line("org/m", "--api-key", "sk-12345678"), "api.key"),
        (line("org/m", "--config", "x.yaml"), "under args"),
        (line("org/m", "--served-model-name", "a", "b"), "further names of the model: b"),
        ("docker run vllm/vllm-openai:nightly org/m --max-model-len $LEN", "LEN"),
        ("cat <<EOF > x\nvllm serve no\nEOF\nvllm serve org/m", "here-document EOF"),
        ("curl -H 'Authorization: Bearer sk-abcdefghij' x\nvllm serve org/m", "the command curl"),
        (line("org/m") + "\n" + line("org/other"), "only the first engine"),
    ],
)
def test_what_cannot_be_carried_over_is_said(text, said):
    made = convert(text, "x.sh")
    assert any(said in one for one in made.left), made.left
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
def test_ways_to_write_a_flag(words, args):
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
        ("docker run \\ \n  a/b:1 \\\n  vllm serve org/m \\\n", "a/b:1", {"id": "org/m"}),
        ("docker run a/b:1 python3 -m vllm.entrypoints.openai.api_server --model org/m", "a/b:1", {"id": "org/m"}),
        ("docker run vllm/vllm-openai:nightly vllm serve org/m", "vllm/vllm-openai:nightly", {"id": "org/m"}),
        ("./launch-cluster.sh -t own:1 -n 10.0.0.1,10.0.0.2 exec vllm serve org/m -tp 2", "own:1", {"id": "org/m"}),
        ("./launch-cluster.sh --solo exec vllm serve org/m", "vllm-node", {"id": "org/m"}),
        ("docker run --rm a/b:1 nvidia-smi\ndocker run a/b:2 vllm serve org/m", "a/b:2", {"id": "org/m"}),
    ],
)
def test_ways_to_start_it(text, image, model):
    document = convert(text, "x.sh").document
    assert (document.get("image"), document["model"]) == (image, model)


EXTRA = "ARGS='--max-num-seqs 4 --enforce-eager'\nvllm serve org/m $ARGS \"--chat-template=$NAME.jinja\""


def test_a_variable_of_several_words():
    made = convert("NAME=it\n" + EXTRA, "x.sh")
    assert made.document["args"] == {"max-num-seqs": 4, "enforce-eager": True, "chat-template": "it.jinja"}


def test_secrets_are_named_and_never_copied():
    text = (
        "export HF_TOKEN=hf_abcdefghijklmnop\ndocker run -e HF_TOKEN=$HF_TOKEN -e MY_API_KEY=v1 a/b:1 vllm serve org/m"
    )
    made = convert(text, "x.sh")
    assert made.document["secrets"] == ["HF_TOKEN", "MY_API_KEY"]
    assert "hf_abc" not in made.text
    assert "v1" not in made.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "starts no vLLM"),
        ("echo hello", "starts no vLLM"),
        ("trtllm-serve org/m", "starts no vLLM"),
        ("docker run a/b:1 sglang serve", "starts no vLLM"),
        ("docker run -d --name x", "names no image"),
        ("docker run -e", "has no value"),
        ("vllm serve", "names no model"),
        ("vllm serve $MODEL", "does not set"),
        ("vllm serve gpt2", "neither a repository nor a full path"),
        ("vllm serve 'org/m", "never closed"),
        ('vllm serve "org/m', "never closed"),
        ("vllm serve ${M", "never closed"),
        ("docker run -v /:/host a/b:1 vllm serve org/m", "power over the node"),
        ("docker run -v /var/run/docker.sock:/s a/b:1 vllm serve org/m", "power over the node"),
        ("docker run -v ~/.ssh:/s a/b:1 vllm serve org/m", "your keys"),
        ("docker run -v /data:/dev/x a/b:1 vllm serve org/m", "nothing may be mounted"),
        ("vllm serve org/m --hf-token-file ../..\x00", "\\x00"),
        ("vllm serve org/m --seed \ue000x\ue001", "no text"),
        ("A=xxxxxxxxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 30 + "vllm serve org/m", "more than 65536 characters"),
        ("vllm serve org/m " + "x " * 30_000, "more than 20000 words"),
        ("recipe_version: '1'\ncontainer: x\ncommand: vllm serve {model}\n", "defaults has none"),
        ("recipe_version: '1'\ncontainer: x\ncommand: vllm serve {a.__class__}\n", "neither a repository"),
        ("recipe_version: '1'\ncontainer: x\ncommand: [vllm]\n", "a text under command"),
        ("recipe_version: '1'\ncontainer: x\ncommand: vllm serve a/b\ndefaults: [1]\n", "a list of names"),
    ],
)
def test_what_makes_no_playbook_is_refused(text, said):
    with pytest.raises(UsageError) as caught:
        convert(text, "x.sh")
    assert said in str(caught.value)
    assert caught.value.hint


def test_json_without_end_stays_text(tmp_path):
    deep = "[" * 20_000
    made = convert(f"vllm serve org/m --speculative-config '{{\"a\": {deep}}}'", "x.sh")
    file = tmp_path / "x.yaml"
    file.write_text(made.text)
    codes = {one.code: one.summary for one in lint([file]).findings}
    assert "takes a mapping" in codes["SPEC-005"]
    assert not any("the check itself failed" in one for one in codes.values())


def test_a_bomb_of_yaml_is_refused():
    anchors = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]\n" for n in range(1, 9))
    with pytest.raises(SpecError) as caught:
        convert("a0: &a0 x\n" + anchors + "command: vllm serve a/b\ncontainer: x\nrecipe_version: '1'\n", "x.yaml")
    assert "more than" in str(caught.value)


def test_the_command(tmp_path, capsys, monkeypatch):
    source, out = tmp_path / "x.sh", tmp_path / "own.yaml"
    source.write_text(line("Qwen/Qwen3-8B", "--made-up", "1", options=["--restart", "always"]))
    assert main(["import", str(source), "--name", "own"]) == 0
    shown = capsys.readouterr()
    assert parse(shown.out, "x").data["name"] == "own"
    assert "--made-up" in shown.err
    assert "--restart" in shown.err
    assert main(["import", str(source), "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["lint", str(out)]) == 1  # --made-up is no flag of vLLM
    before = out.read_text()
    with pytest.raises(UsageError, match="is there already"):
        main(["import", str(source), "-o", str(out)])
    assert out.read_text() == before
    capsys.readouterr()
    assert main(["import", str(source), "-o", str(out), "--force", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["playbook"]["name"], told["text"]) == ("qwen3-8b", out.read_text())
    assert len(told["left"]) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"vllm serve org/m"), encoding="utf-8"))
    assert main(["import", "-"]) == 0


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x01\x00" * 100, b"\xff\xfe\x00v\x00l", b"x" * (1 << 20) + b"xx"])
def test_binary_and_huge_files_are_refused(tmp_path, content):
    path = tmp_path / "x.sh"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        main(["import", str(path)])


def test_a_script_of_100_mb_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "x.sh"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(UsageError, match="larger than 1024 KiB"):
        main(["import", str(path)])


WORD = st.text("abcxyzABC019._/:@ '\"$`\\{}[]=,~#;&|<>*?!äß-", min_size=1, max_size=12).filter(
    lambda text: not text.startswith("-") and text.strip() == text
)
NUMBER = st.integers(0, 10**6).map(str)
FRACTION = st.floats(0.01, 1, allow_nan=False).map(lambda number: f"{number:.4g}" if number >= 0.0001 else "0.5")
MAPPING = st.dictionaries(
    st.text("abc_", min_size=1, max_size=5), st.integers(0, 99) | st.booleans() | WORD, max_size=3
)
RESERVED = {"config", "model", "revision", "api-key", "served-model-name", "uds", "hf-token", "headless"}


def values(flag):
    if flag.kind in {"bool", "flag"}:
        return st.just([])
    by_type = {"int": NUMBER, "size": NUMBER, "float": FRACTION, "json": MAPPING.map(json.dumps)}
    one = by_type.get(flag.type, WORD)
    return st.lists(one, min_size=1, max_size=3) if flag.kind == "list" else one.map(lambda value: [value])


@st.composite
def recipes(draw):
    from sparkcluster.spec.check_playbook import ELSEWHERE, secret

    known = [
        flag
        for flag in flags.table().values()
        if flag.name not in RESERVED and flag.name not in ELSEWHERE and not secret(flag.name.replace("-", "_"))
    ]
    chosen = draw(st.lists(st.sampled_from(known), max_size=8, unique_by=lambda flag: flag.name))
    out = []
    for flag in chosen:
        given_ = draw(values(flag))
        negated = flag.kind == "bool" and draw(st.booleans())
        name = f"--no-{flag.name}" if negated else f"--{flag.name}"
        single = len(given_) == 1 and draw(st.booleans())
        out.append([f"{name}={given_[0]}"] if single else [name, *given_])
    unseen = draw(st.lists(st.from_regex(r"--zz[a-z]{1,6}-[a-z]{1,6}", fullmatch=True), max_size=2, unique=True))
    return out, unseen


@settings(max_examples=60, deadline=None)
@given(recipes(), st.booleans())
def test_a_recipe_that_nobody_has_seen(made, continued):
    """Any flags with any values: the playbook's arguments render to the same words, and unknown ones are told."""
    from sparkcluster.plan import vllm

    known, unseen = made
    groups = [*known, *([one, "1"] for one in unseen)]
    separator = " \\\n    " if continued else " "
    words = [shlex.join(group) for group in groups]
    text = separator.join(["docker run --gpus all vllm/vllm-openai:nightly Qwen/Qwen3-8B", *words])

    imported = convert(text, "x.sh")

    playbook = Playbook.model_validate(parse(imported.text, "x").data)
    wanted = flags_of([word for group in groups for word in group])
    got = flags_of(vllm.arguments(playbook))
    assert got == wanted
    for one in unseen:
        assert any(one in told for told in imported.left)
