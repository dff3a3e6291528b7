"""What makes no playbook: broken, hostile and huge texts, each with one line; and the command itself."""

from __future__ import annotations

import io
import json
import shlex
import sys

import pytest

from sparkcluster.cli.main import main
from sparkcluster.errors import SpecError, UsageError
from sparkcluster.linting import lint
from sparkcluster.importer import convert
from sparkcluster.spec.document import parse


def line(*words, image="vllm/vllm-openai:nightly", options=()):
    return shlex.join(["docker", "run", *options, image, *words])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts no vLLM"),
        ("echo hello", "starts no vLLM"),
        ("trtllm-serve org/m", "starts no vLLM"),
        ("docker run a/b:1 sglang serve", "starts no vLLM"),
        ("docker run -d --name x", "has no image"),
        ("docker run -e", "has no value"),
        ("vllm serve", "names no model"),
        (
            "IMG=i\ndocker run $OPTS -it ${IMG}:1 vllm serve org/m",
            "x.sh:2: what follows the options of docker run is $OPTS, which",
        ),
        (
            "docker run $IMAGE --model org/m",
            "x.sh:1: what follows the options of docker run is $IMAGE, which the text does not set",
        ),
        ("docker run --rm --new-one 5 vllm/vllm-openai:v1 org/m", "x.sh:1: --new-one: unknown option of docker run"),
        (
            "docker run --new-one 5 vllm/vllm-openai:v1 org/a\nvllm serve org/b",
            "x.sh:1: `docker run --new-one 5 vllm/vllm-openai:v1 org/a` may start an engine too",
        ),
        ("A=1\nvllm serve org/m --max-model-len --seed 1", "x.sh:2: --max-model-len has no value"),
        ("vllm serve org/m --served-model-name a --max-model-len", "x.sh:1: --max-model-len has no value"),
        ("probe || exit 2\u00b2\nvllm serve", "names no model"),
        (
            "model: org/m\nruntime: vllm\ncommand: vllm serve org/m\ndefaults: {data_parallel: 2\u00b2, A: 1}\nmin_nodes: 2",
            "for 1 node",
        ),
        ("vllm serve $MODEL", "x.sh:1: the model is $MODEL, which the text does not set"),
        ("A=1\ndocker run vllm/vllm-openai:v1 --model=$MODEL --seed 1", "x.sh:2: the model is $MODEL, which the text"),
        (
            "services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: --model $M",
            "x.sh:3: services.a cannot be imported: the model is $M",
        ),
        ("vllm serve gpt2", "neither a repository nor a full path"),
        ("vllm serve ~/hub/models--org--m/snapshots/*/", "is a pattern"),
        ("vllm serve --model /models/llama*", "is a pattern"),
        ("vllm serve 'org/m", "is not closed"),
        ('vllm serve "org/m', "is not closed"),
        ("vllm serve ${M", "is not closed"),
        ("L=(a 'b)\nvllm serve org/m", "is not closed"),
        ("L=(a b)\n" + 'L=("${L[@]}" "${L[@]}")\n' * 40 + "vllm serve org/m", "more than"),
        ("vllm serve " + "${A:-" * 50 + "x" + "}" * 50, "nested deeper"),
        ("docker run -v /:/host a/b:1 vllm serve org/m", "control of the node"),
        ("docker run -v /var/run/docker.sock:/s a/b:1 vllm serve org/m", "control of the node"),
        ("docker run -v ~/.ssh:/s a/b:1 vllm serve org/m", "your SSH keys"),
        ("docker run -v /data:/dev/x a/b:1 vllm serve org/m", "the container needs its own"),
        ("vllm serve org/m --hf-token-file ../..\x00", "U+0000 control character"),
        ("vllm serve org/m --seed \ue000x\ue001", "not text"),
        ("docker run --device /dev/sda a/b:1 vllm serve org/m", "control of the node"),
        (
            'docker run \\\n --mount "type=bind,src=/a,\ndst=/m" a/b:1 vllm serve org/m',
            "x.sh:1: --mount type=bind,src=/a, dst=/m",
        ),
        ("docker run --mount $'type=bind,src=/a\\r,dst=/a' a/b:1 vllm serve org/m", "a line break"),
        ("A=xxxxxxxxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 30 + "vllm serve org/m", "more than 65536 characters"),
        ("vllm serve org/m " + "x " * 30_000, "more than 20000 words"),
        ("recipe_version: '1'\ncontainer: x\ncommand: vllm serve {model}\n", "defaults does not have"),
        ("recipe_version: '1'\ncontainer: x\ncommand: vllm serve {a.__class__}\n", "is no name of a default"),
        ("recipe_version: '1'\ncontainer: x\ncommand: [vllm]\n", "command must be text"),
        ("recipe_version: '1'\ncontainer: x\ncommand: vllm serve a/b\ndefaults: [1]\n", "defaults must be a mapping"),
    ],
)
def test_what_makes_no_playbook_is_refused(text, message):
    with pytest.raises(UsageError) as caught:
        convert(text, "x.sh")
    assert message in str(caught.value)
    assert caught.value.hint


def test_json_without_end_stays_text(tmp_path):
    deep = "[" * 20_000
    made = convert(f"vllm serve org/m --speculative-config '{{\"a\": {deep}}}'", "x.sh")
    file = tmp_path / "x.yaml"
    file.write_text(made.text)
    codes = {finding.code: finding.summary for finding in lint([file]).findings}
    assert "takes a mapping" in codes["SPEC-005"]
    assert not any("the check itself failed" in summary for summary in codes.values())


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
    with pytest.raises(UsageError, match="already exists"):
        main(["import", str(source), "-o", str(out)])
    assert out.read_text() == before
    capsys.readouterr()
    assert main(["import", str(source), "-o", str(out), "--force", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["playbook"]["name"], printed["text"]) == ("qwen3-8b", out.read_text())
    assert len(printed["left"]) == 2
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
