"""Shell text: the engine that bash would start, with its words and environment, or a refusal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from sparkcluster.engines.vllm import ENGINE
from sparkcluster.errors import UsageError
from sparkcluster.importer import convert, script

SHELL = shutil.which("bash")
STUB = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["CALLS"], "a") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=file)
"""
# Text after `vllm serve org/m`, behind the text before it.
TEXTS = [
    # words
    "X='a  b'; vllm serve org/m --x $X \"$X\" '' \"$X$\" \"${X}\"\"c\" a\\ b \"c\\\"d\\e\" #g",
    'vllm serve org/m \\\n  --xa 1 \\\n  --xb "c\nd" # e',
    'E=; vllm serve org/m --x "$E" $E "${UNSET:-}" ${UNSET:-} y',
    'ARGS="--xa 1"; ARGS+=" --xb 2"; ARGS="$ARGS --xc"; vllm serve org/m $ARGS',
    'A=(--xa 1 # b\n  "c d"); A+=(--xe); A=("${A[@]}" f); vllm serve org/m "${A[@]}" $A',
    'A=(--xa "b c"); bash -c "vllm serve org/m ${A[*]}"',
    'A=(); vllm serve org/m "${A[@]}" ${A[@]+"${A[@]}"} --xb',
    # defaults
    "vllm serve org/m ${X-\"a b\"} \"${X:-c d}\" ${X:-e f} \"${X:-'q'}\" ${X:-'{\"a\": 1}'} \"${Y:-${Z:-z}}\"",
    'S={}; vllm serve org/m "${S:-{\\"a\\":1\\}}" "${T:-{\\"a\\":1\\}}" "${T:-{\\"a\\":{\\"b\\":1}}}" ${T:-${U:-u}}',
    'vllm serve org/m --speculative-config "${SPEC:-{\\"method\\": \\"mtp\\", \\"n\\": {\\"m\\": 1}}}" --xb',
    'A=(\n  --speculative-config "${SPEC:-{\\"method\\":\\"mtp\\"}}"\n)\nvllm serve org/m "${A[@]}"',
    'T="x y"; vllm serve org/m ${T:+--chat-template "$T"} ${T:+"--xb=$T"} ${U:+--never} "${U+never}"',
    ': "${S:=7}"; T=; vllm serve org/m ${S} ${T:-1} ${T-2} ${1:-3} ${R:=4} $R',
    "export LD=/a:${LD:-}; export LD=/b:$LD; vllm serve org/m",
    # branches
    "[ a = b ] && X=1 || X=2; [[ abc != y ]] && Y=1; [ -n x ] || Y=2; vllm serve org/m $X $Y",
    'if [ -z "${FP8:-}" ]; then Q=a; elif [ 1 = 1 ]; then Q=b; else Q=c; fi; vllm serve org/m --quantization $Q',
    'case ${1:-qwen} in\n  llama|mistral) M=l;;\n  "qwen") M=q;;\n  *) M=o;;\nesac\nvllm serve org/m $M',
    "false && vllm serve org/a; true || vllm serve org/b; vllm serve org/m; exit; vllm serve org/c",
    "f() { return 1; }; f && X=1 || X=2; vllm serve org/m $X",
    'f() { if [ "$1" = a ]; then return 1; fi; return 0; }; S=1; f a && S=2; f b && T=3; vllm serve org/m $S $T',
    "S=1; f() { S=2; }; if ! f; then exit 1; fi; vllm serve org/m $S",
    # functions, subshells
    'f() { local m=$1; vllm serve org/$m "$2" $# "$@"; }; f m --xa "b c"',
    "m=a; f() { local m=b; g; }; g() { n=$m; }; f; vllm serve org/m $m $n",
    'run() { echo "+ $*"; "$@"; }; run vllm serve org/m --xa "b c"',
    "A=a; (A=b); A=c | cat; { B=e; }; vllm serve org/m $A $B",
    "S=1; f() { vllm serve org/m $S; }; S=2; f",
    "P=9; f() { local P=${P:-8}; vllm serve org/m $P; }; f",
    'run() { "$@"; }; A=1 run vllm serve org/m',
    'C=(vllm serve org/m "a b"); exec "${C[@]}"',
    # environment
    "export A=1; B=2; export C; C=3; D=4 vllm serve org/m --x",
    "A=1 B=2\nvllm serve org/m --x ${B:-3}",
    "declare -x A=1; vllm serve org/m",
    "export A=1 B=2; A=3; env E=5 vllm serve org/m --x",
    "B=2; export C=3; bash -c 'vllm serve org/m --x ${B:-none} $C $1' _ d",
    "bash -c 'export A=1 && exec vllm serve org/m --x \"$A\"'",
]  # fmt: skip


@pytest.fixture
def first_call(tmp_path):
    """Run a text with an imitation of vllm; returns words and environment of its first call."""
    (tmp_path / "vllm").write_text(STUB)
    (tmp_path / "vllm").chmod(0o755)

    def run(text):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "CALLS": str(tmp_path / "calls")}
        subprocess.run([SHELL, "-c", text], env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, check=False, timeout=20)
        words, found = json.loads((tmp_path / "calls").read_text().splitlines()[0])
        own = {*env, "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
        return words, {name: value for name, value in found.items() if name not in own}

    return run


@pytest.mark.skipif(SHELL is None, reason="no bash to compare with")
@pytest.mark.parametrize("text", TEXTS)
def test_the_engine_is_the_program_that_bash_would_start(text, first_call, monkeypatch):
    starts = []
    playbook = script.playbook
    monkeypatch.setattr(script, "playbook", lambda start: playbook(starts.append(start) or start))
    convert(text, "x.sh")
    words, env = first_call(text)
    assert ["serve", *starts[0].words] == words
    assert {name: value for name, value in starts[0].env.items() if name != "LD"} == {
        name: value for name, value in env.items() if name != "LD"
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("M=$(awk 1 x)", "M depends on `$(awk 1 x)`"),
        ("A=a\nif [ -f x ]; then M=a; else M=b; fi", "M depends on `[ -f x ]`"),
        ("for M in a b; do :; done", "M depends on `for M in a b; do :; done`"),
        ("while read -r M; do :; done", "M depends on `while read -r M; do :; done`"),
        ("M=1; ((M++))", "M depends on `((M++))`"),
        ("X=a; M=${X%b}", "depends on `${X%b}`"),
        ("X=a; M=${X,,}", "depends on `${X,,}`"),
        ("A=(1 2 3); M=${A[@]:1}", "depends on `${A[@]:1}`"),
        ("M=(1); M+=2", "M depends on `M+=2`"),
        ("M=1; IFS=, read -r M", "M depends on `IFS=, read -r M`"),
        ("M=1; f() { [ -d x ] && return; M=2; }; f", "M depends on `return` in f"),
        ("M=1; f() { M=2; }; for d in a b; do f; break; done", "M depends on"),
        ("M=1; f() { M=2; }; until f; do :; done", "M depends on"),
        ("M=1; (( M = 4 ))", "M depends on `(( M = 4 ))`"),
        ("M=1; unset M", "M depends on `unset M`"),
        ("M=$((1 + 2))", "M depends on `$((1 + 2))`"),
        ("M=$'a'", "M depends on `$'a'`"),
        ("A=(1 2); M=${A[1]}", "M depends on `${A[1]}`"),
        ("set -- 3; M=$1", "1 depends on `set -- 3`"),
        ("M={a,b}", "M depends on `{a,b}`"),
        ("case $X in a) M=1;; *) M=2;; esac", "M depends on"),
        ("[ a = b -o c = c ] && M=1", "M depends on `[ a = b -o c = c ]`"),
        ("case ab in a*) M=1;; *) M=2;; esac", "M depends on"),
        ("[ 3 -gt 2 ] && M=1", "M depends on `[ 3 -gt 2 ]`"),
    ],
)  # fmt: skip
def test_unsupported_shell_syntax_makes_a_value_unknown(text, name):
    """With the line where the value becomes unknown; ``--define`` sets it, as the error says."""
    with pytest.raises(UsageError) as caught:
        convert(f"{text}\nvllm serve org/m --seed $M", "x.sh")
    assert name in caught.value.message
    assert caught.value.message.startswith(f"x.sh:{2 if text.startswith('A=a') else 1}: ")
    lost = caught.value.message.split(": ")[1].split()[0]
    assert caught.value.hint == f"add --define {lost}=VALUE, or import the docker run line alone"
    if lost == "M":
        made = convert(f"{text}\nvllm serve org/m --seed $M", "x.sh", defines={"M": "7"})
        assert made.document["args"] == {"seed": 7}


def test_a_branch_without_effect_on_the_command_is_ignored():
    made = convert("if [ -f x ]; then A=1; fi\n[ -d y ] || exit 1\nvllm serve org/m --seed 1", "x.sh")
    assert made.document["args"] == {"seed": 1}


def test_a_condition_that_decides_about_the_engine_is_noted():
    made = convert("if docker ps | grep -q x; then\n  echo runs\nelse\n  vllm serve org/m\nfi", "x.sh")
    assert "line 1: imported as if `docker ps | grep -q x` were false" in made.notes
    made = convert("for i in 1 2; do vllm serve a/b; done", "x.sh")
    assert "line 1: imported as if `for i in 1 2; do vllm serve a/b; done` ran once" in made.notes


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (40, 'L=("${L[@]}" "${L[@]}")\n'), (40, "A=$A$A$A$A$A$A$A$A\n"), (2000, "f() { f; f; }\nf\n"),
        (3000, "if [ $A ]; then\n"), (15, "for a in 1 2; do f() { f; }; f; done; if [ $X ]; then f; else f; fi\n"),
        (3000, "${A:-"), (3000, "$("), (3000, "(("), (30_000, "[["), (50_000, "*?"), (100_000, "<<E "),
    ],
)  # fmt: skip
def test_growing_texts_are_bounded(size, text):
    """Each finishes within the time-out of the tests, for any repetition."""
    with pytest.raises(UsageError):
        convert(f"A=xxxxxxxx\nL=(a b)\n{text * size}\nvllm serve", "x.sh")


@pytest.mark.parametrize(
    "text", ["x=" + "a=" * 40 + ' "', "A=b " * 30_000 + '"', "M={" + "," * 100_000, '"' + "${A:=" * 40 + "}" * 40 + '"']
)
def test_patterns_take_linear_time(text):
    with pytest.raises(UsageError):
        convert(f"{text}\nvllm serve", "x.sh")


def test_each_text_starts_with_a_clean_state():
    """A block that ends with exec or exit ends only that block."""
    page = "```sh\nexec ls\n```\n```sh\nvllm serve org/m\n```\n"
    assert convert(page, "x.md").document["model"] == {"id": "org/m"}


def test_json_in_a_default_value_is_parsed():
    made = convert('vllm serve org/m --speculative-config "${S:-{\\"method\\":\\"mtp\\",\\"n\\":5}}"', "x.sh")
    assert made.document["args"] == {"speculative-config": json.loads('{"method":"mtp","n":5}')}
    assert "speculative-config" not in ENGINE.arguments
