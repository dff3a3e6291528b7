"""Texts that cannot be imported: an error with line and hint; secrets, damaged files, and the command itself."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.cli.main import main
from sparkcluster.errors import SpecError, UsageError
from sparkcluster.importer import convert, defines
from sparkcluster.spec import Playbook
from sparkcluster.spec.document import parse

DATA = Path(__file__).parents[2] / "data/recipes"
ALONE = "import the docker run line alone"
SPARKRUN = 'recipe_version: "2"\nmodel: a/b\nruntime: vllm\ncontainer: a/b:1\n'
COMPOSE = "services:\n  vllm:\n    image: vllm/vllm-openai:v1\n    "

SHELL = [
    # Nothing is started, or another program starts it.
    ("", "x.sh does not start vLLM or", "import a recipe, a Compose file, or a text with `docker run … vllm serve …`"),
    ("docker run --gpus all lmsysorg/sglang:spark python3 -m sglang.launch_server", "x.sh:1: the command names no model", "--model-path"),
    ("A=1\nllama-server -hf org/m --port 8080", "x.sh:2: the command does not say which GGUF", "--hf-file NAME.gguf"),
    ("ollama run m", "x.sh:1: this starts Ollama", "by hand"),
    ("docker run --gpus all ollama/ollama", "x.sh:1: this starts Ollama", "by hand"),
    ("./run-recipe.sh recipes/m.yaml --no-ray", "starts the recipe recipes/m.yaml", "sparkcluster import recipes/m.yaml"),
    ("sparkrun run @eugr/m --tp 2", "starts the recipe @eugr/m of sparkrun", "the recipe's YAML file"),
    ("docker compose up -d", "docker compose reads its own file", "docker-compose.yml"),
    ("cd x\n./start.sh", "x.sh:2: this runs ./start.sh", "sparkcluster import ./start.sh"),
    # Syntax errors.
    ("docker run -d --name x", "x.sh:1: docker run has no image", "copy the complete command"),
    ("docker run -e", "x.sh:1: -e has no value", "copy the complete command"),
    ("\nvllm serve", "x.sh:2: the command has no model", "--model"),
    ("A=1\nvllm serve org/m --max-model-len --seed 1", "x.sh:2: --max-model-len has no value", "write its value"),
    ("vllm serve gpt2", "x.sh:1: the model gpt2 is neither a repository nor a full path", "ORGANISATION/NAME"),
    ("vllm serve /models/llama*", "neither a repository nor a full path", "/path"),
    ("A=1\nvllm serve 'org/m", "x.sh:2: this cannot be parsed as shell text", "check for an unclosed quote"),
    ("vllm serve org/m\n--seed 1", "x.sh:2: a command starts with --seed", "end the previous line with a backslash"),
    ("docker run --gpus all  # for RDMA \\\n  vllm/vllm-openai:v1 org/m", "x.sh:1: the backslash is in a comment", "remove"),
    ("vllm serve org/m \u2013\u2013seed 1", "x.sh:1: \u2013\u2013seed starts with a typographic character", "type -"),
    ("vllm serve org/m --seed \ue000x\ue001", "x.sh contains characters that are not text", "right file"),
    # Unknown values.
    ("vllm serve $MODEL", "x.sh:1: the model is $MODEL, which is not set", "add --define MODEL=VALUE"),
    ("docker run $IMAGE --model org/m", "x.sh:1: the image is $IMAGE", "--define IMAGE"),
    ("docker run $OPTS -it i:1 vllm serve org/m", "is $OPTS, which is not set", "--define OPTS"),
    ("vllm serve <model> --seed 1", "x.sh:1: the command needs <model>", f"add --define model=VALUE, or {ALONE}"),
    ("vllm serve YOUR_MODEL", "x.sh:1: the command needs YOUR_MODEL", "--define YOUR_MODEL"),
    ("M=1\nE=$(jq .a x)\nvllm serve org/m $E", "x.sh:2: E depends on `$(jq .a x)`", f"add --define E=VALUE, or {ALONE}"),
    ("$CMD org/m", "`$CMD org/m` may start vLLM", "--define CMD=VALUE"),
    ("eval vllm serve org/m\nvllm serve org/b", "x.sh:1: `eval vllm serve org/m` may start vLLM", "vllm serve line alone"),
    ("serve() { printf 'vllm serve %s' org/m; }\ndocker exec node bash -c \"$(serve 2)\"", "x.sh:2: ", "alone"),
    ("if [ -e a ]; then vllm serve org/a; else\nvllm serve org/b; fi", "x.sh:1: `[ -e a ]` decides which engine starts", "import one command"),
    ("bash <<EOF\nvllm serve org/m\nEOF", "x.sh:1: here-documents are unsupported", "save its text to a file"),
    ("cat > x.sh <<EOF\nvllm serve org/m\nEOF", "x.sh:1: here-documents are unsupported", "import that file"),
    ("vllm serve org/m > log --seed 1", "x.sh:1: this cannot be parsed", "an argument after a redirection"),
    ("docker run i:1 bash -c 'D=/opt; cp $D/*.so /x; vllm serve org/m'", "before the engine needs $D", "with its values"),
    # Values that no playbook may have.
    ("docker run -v /:/host a/b:1 vllm serve org/m", "cannot be converted to a valid playbook", ""),
    ("docker run -v ~/.ssh:/s a/b:1 vllm serve org/m", "your SSH keys", ""),
    ("docker run --device /dev/sda a/b:1 vllm serve org/m", "control of the node", ""),
]  # fmt: skip
OTHERS = [
    ("x.yaml", "services:\n  a:\n    image: b/llama.cpp:server\n    command: -m x\n", "x.yaml has no service that starts an engine", ""),
    ("x.yaml", "some: thing\n", "unknown format", "supported: Compose files, and recipes"),
    ("x.yaml", "model: {model_id: a/b}\nmeta: {}\nvariants: {}\n", "unknown format", "container and command"),
    ("x.json", '{"schema": "sparkring-recipe/v1"}', "unknown format", "supported: "),
    ("x.yaml", SPARKRUN, "command: is required", "add command"),
    ("x.yaml", SPARKRUN + "command: [vllm]\n", "x.yaml:5:10: command", ""),
    ("x.yaml", SPARKRUN.replace("vllm", "atlas") + "command: x\n", "x.yaml:3:10: runtime: this starts atlas", "by hand"),
    ("x.yaml", SPARKRUN + "command: vllm serve {a}\ndefaults: {a: '{b}', b: '{a}'}\n", "needs {", "--define"),
    ("x.yaml", SPARKRUN + "command: vllm serve a/b\nmin_nodes: 3\nmax_nodes: 2\n", "nodes: max 2 is below min 3", ""),
    ("x.yaml", COMPOSE + "command: pip install x && vllm serve org/m", "has &&, but Compose runs no shell", "as a list"),
    ("x.yaml", COMPOSE + "command: --model org/m --x '{", "x.yaml:4:14: services.vllm.command: has an unclosed quote", "close it"),
    ("x.yaml", COMPOSE + "command: {a: b}", "services.vllm.command: must be text", ""),
    ("x.yaml", COMPOSE + "ports: [{target: 8000}]", "x.yaml:4:13: services.vllm.ports[0]: must be text", "short form"),
    ("x.yaml", COMPOSE + "extends: {file: b.yaml, service: a}", "services.vllm.extends: is not supported", "write the keys"),
    ("x.yaml", COMPOSE + "image: twice", "x.yaml:4:5: services.vllm.image: duplicate key", ""),
    ("x.yaml", COMPOSE + "command: --model $M", "the model is $M, which is not set", "--define M=VALUE"),
    ("x.yaml", COMPOSE.replace("/vllm-openai:v1", "/vllm-openai:$TAG") + "command: org/m\n", "which is not set", "--define TAG"),
    ("x.yaml", "services:\n", "services", ""),
    ("x.service", "[Service]\nExecStart=/bin/vllm serve 'org/m\n", "x.service:2: this cannot be parsed", "quote"),
    ("x.service", "[Service]\nType=simple\n", "has no ExecStart=", "import the command that the unit runs"),
    ("x.md", "# A\n\n```sh\nvllm serve $MODEL\n```\n", "x.md:4: the model is $MODEL", "--define MODEL=VALUE"),
    ("x.md", "```sh\nls\n```\n", "x.md starts no engine", "`vllm serve …`"),
    ("x.md", "```sh\n" + "```\n```sh\n" * 1001, "more than 1000 code blocks", "right file"),
    ("x.md", "```sh\nvllm serve a/b\n```\n```sh\nvllm serve a/c\n```\n", "2 blocks: block 1 (line 2): a/b; block 2 (line 5): a/c", "--block 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message", "hint"), [*(("x.sh", *case) for case in SHELL), *OTHERS])
def test_a_text_that_makes_no_playbook_is_refused(name, text, message, hint):
    with pytest.raises(UsageError) as caught:
        convert(text, name)
    shown = f"{caught.value} {caught.value.hint}"
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == 2
    assert not re.search("[\ue000-\ue0ff]", shown), shown


def test_an_unused_define_is_refused():
    with pytest.raises(UsageError, match="has no variable A") as caught:
        convert("vllm serve org/m --seed ${SEED:-1}", "x.sh", defines={"A": "1"})
    assert caught.value.hint == "variables: SEED"
    assert convert("vllm serve org/m --seed ${SEED:-1}", "x.sh", defines={"SEED": "2"}).document["args"] == {"seed": 2}
    with pytest.raises(UsageError, match=r"x\.sh has no blocks"):
        convert("vllm serve org/m", "x.sh", block=1)


@pytest.mark.parametrize("written", [["MODEL"], ["=x"], ["-B=x"], ["A=1", "A=2"], ["A=x\x1b[2J"]])
def test_invalid_definitions(written):
    with pytest.raises(UsageError) as caught:
        defines(written)
    assert caught.value.message.isprintable()
    assert caught.value.hint


RUN = "docker run {} a/b:1 vllm serve org/m"
RECIPE = "recipe_version: 1\ncontainer: a/b\ncommand: vllm serve org/m\n"


@pytest.mark.parametrize(
    "text",
    [
        RUN.format("--env-file MY_TOKEN=abc123"), RUN.format("--x-key=abc123"), RUN.format("-v 'TOKEN: abc123'"),
        RUN.format("-e 'Authorization: Bearer abc123'"), RUN.format("-e MY_API_KEY=abc123 -e HF_TOKEN=abc123"),
        RUN.format("-v /a:/root/.cache/huggingface/TOKEN=abc123/.cache/huggingface"),
        "export HF_TOKEN=abc123\nvllm serve org/m", "vllm serve org/m --api-key abc123 --hf-token abc123",
        "vllm serve org/m --served-model-name a 'Bearer abc123'", "vllm serve org/m --host 'Bearer abc123'",
        "curl -H 'Authorization: Bearer abc123' x\nvllm serve org/m", "curl -H 'Authorization: Bearer abc123' x",
        "$X 'Bearer abc123' vllm serve", "vllm serve 'TOKEN=abc123'", "sudo MY_TOKEN=abc123 vllm serve org/m",
        "./launch-cluster.sh --apply-mod TOKEN=abc123 exec vllm serve org/m",
        RECIPE + "build_args: [TOKEN=abc123]\n", RECIPE + "'Bearer abc123': 1\n", RECIPE + "env: {MY_API_KEY: abc123}\n",
        SPARKRUN + "command: vllm serve a/b\npre_exec: ['curl -H \"Authorization: Bearer abc123\" x']\n",
        SPARKRUN + "command: vllm serve a/b\nexecutor_config: {entrypoint: MY_TOKEN=abc123}\n",
        COMPOSE + "command: org/m\n    environment: {MY_API_KEY: abc123, HF_TOKEN: abc123}",
        "[Service]\nEnvironment=MY_TOKEN=abc123\nExecStart=/bin/vllm serve org/m\n",
    ],
)  # fmt: skip
def test_no_output_shows_a_secret_of_the_text(text):
    try:
        made = convert(text, "x")
    except UsageError as error:
        shown = f"{error} {error.hint}"
    else:
        shown = " ".join([made.text, *made.notes])
    assert "abc123" not in shown


PIECES = st.sampled_from(
    ["docker", "run", "exec", "-e", "-v", "A=1", "/:/x", "vllm/vllm-openai:nightly", "vllm serve org/m", "--seed", "1",
     "'", '"', "\\", "\n", "$A", "${A", "${A:-", "}", "$(", ")", "$((", "`", "#", "<<EOF", "\nEOF\n", "|", "&&", "||", ";",
     "&", "bash -c", "'vllm serve a/b'", "--entrypoint", "if", "then", "fi", "for a in", "do", "done", "case", "in", "esac",
     "f()", "{", "{a,b}", "[ a", "]", "A=(", "${A[@]}", "export", "unset", "set --", '{"a":1}', "recipe_version: 1",
     "\ncommand: vllm serve a/b", "\ncontainer: x", "\ndefaults:\n  a: 1", "services:\n", "- ", "<<: *x\n", "[Service]\n",
     "ExecStart=", "```\n", "\t", "\x00", "é", "%i"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=25).map(" ".join), st.sampled_from(["x", "x.yaml", "x.md"]))
def test_any_text_gives_a_playbook_or_a_single_error(text, name):
    try:
        made = convert(text, name)
    except UsageError:
        return
    Playbook.model_validate(parse(made.text, name).data)


FILES = sorted(path for path in DATA.glob("**/*.*") if ".expected." not in path.name)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_file_gives_a_playbook_or_a_single_error(data):
    """Truncated text, a duplicate part or a stray piece."""
    path = data.draw(st.sampled_from(FILES))
    text = path.read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 40)))
        text = text[:at] + data.draw(PIECES | st.sampled_from(["", text[at:end] * 2])) + text[end:]
    try:
        made = convert(text, path.name)
    except UsageError:
        return
    assert made.document["model"]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_output_is_deterministic_across_processes(seed):
    """The order is the order of the text, independent of the hash seed."""
    names = [f"NAME_{letter}" for letter in "ABCDEFGHIJKL"]
    exports = "".join(f"export {name}={name.lower()}\n" for name in names)
    loose = "".join(f"if [ -e {name} ]; then L_{name}=1; fi\n" for name in names)
    code = "import sys; from sparkcluster.importer import convert; print(convert(sys.stdin.read(), 'x').text)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=f"{exports}{loose}vllm serve org/m $EXTRA\n", text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
    )  # fmt: skip
    assert re.findall(r"\bNAME_[A-Z]", done.stdout) == names


def test_a_yaml_bomb_is_refused():
    anchors = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]\n" for n in range(1, 9))
    with pytest.raises(SpecError, match="more than"):
        convert(f"a0: &a0 x\n{anchors}{RECIPE}", "x.yaml")


def test_the_import_command(tmp_path, capsys, monkeypatch):
    source, out = tmp_path / "x.sh", tmp_path / "own.yaml"
    source.write_text("docker run --restart always vllm/vllm-openai:nightly Qwen/Qwen3-8B --made-up 1")
    assert main(["import", str(source), "--name", "own"]) == 0
    shown = capsys.readouterr()
    assert parse(shown.out, "x").data["name"] == "own"
    assert "--made-up" in shown.err
    assert "--restart" in shown.err
    assert main(["import", str(source), "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    before = out.read_text()
    with pytest.raises(UsageError, match="already exists"):
        main(["import", str(source), "-o", str(out)])
    assert out.read_text() == before
    assert main(["import", str(source), "-o", str(out), "--force", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["playbook"]["name"], printed["text"]) == ("qwen3-8b", out.read_text())
    assert len(printed["left"]) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"vllm serve $M"), encoding="utf-8"))
    assert main(["import", "-", "-o", "-", "--define", "M=org/m"]) == 0
    printed = capsys.readouterr()
    assert "id: org/m" in printed.out
    assert "to check\n  no image: add image: NAME" in printed.err
    assert "next: save it as FILE, then sparkcluster lint FILE\n" in printed.err


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x01\x00" * 100, b"\xff\xfe\x00v\x00l", b"x" * (1 << 20) + b"xx"])
def test_binary_and_huge_files_are_refused(tmp_path, content):
    (tmp_path / "x.sh").write_bytes(content)
    with pytest.raises(UsageError):
        main(["import", str(tmp_path / "x.sh")])
