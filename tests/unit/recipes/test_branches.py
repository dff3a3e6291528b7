"""Scripts with branches, functions, loops and here-documents: the engine that bash would start, or a refusal."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.recipes import convert, shell

SHELL = shutil.which("bash")

SCRIPTS = [
    "if [ a = a ]; then vllm serve a; else vllm serve b; fi",
    "X=2\nif [ $X -gt 3 ]; then vllm serve big; elif (( X == 2 )); then vllm serve two; else vllm serve none; fi",
    'M=qwen\ncase "$M" in\n  llama*|mistral) vllm serve l;;\n  qw?n) vllm serve q;;\n  *) vllm serve other;;\nesac',
    "MODE=${1:-single}\n[[ $MODE == single ]] && TP=1 || TP=2\nvllm serve m -tp $TP",
    "f() {\n  local m=$1; shift\n  vllm serve \"$m\" \"$@\"\n}\nf org/m --a 'b c' --d",
    'main() { serve "${@:-x}"; }\nserve() { vllm serve "$1" --n $#; }\nmain "$@"',
    "m=outer\nf() { local m=inner; g; }\ng() { vllm serve $m; }\nf\nvllm serve $m",
    'ARGS=(--a 1)\nif [ -n "${FP8:-}" ]; then ARGS+=(--fp8); fi\nARGS+=(--b "x y")\nvllm serve m "${ARGS[@]}" ${#ARGS[@]}',
    "declare -A M=([small]=org/s [big]=org/b)\nM[huge]=org/h\nSIZE=${SIZE:-big}\nvllm serve ${M[$SIZE]} ${M[huge]}",
    "for n in 1 2 3; do\n  [ $n = 2 ] && continue\n  vllm serve m$n\n  [ $n -ge 3 ] && break\ndone",
    "i=0\nwhile [ $i -lt 3 ]; do\n  i=$((i + 1))\n  vllm serve m$i\ndone",
    "while [[ $# -gt 0 ]]; do case $1 in --m) M=$2; shift 2;; *) exit 1;; esac; done\nvllm serve ${M:=d} $M",
    'set -- --m x y\nwhile [ $# -gt 0 ]; do case "$1" in --m) M=$2; shift 2;; *) R=$1; shift;; esac; done\nvllm serve $M $R',
    'J=$(cat <<EOF\n{"a": "${B:-c}"}\nEOF\n)\nvllm serve m --json "$J"',
    "cat > run.sh <<'EOF'\nM=${1:-none}\nvllm serve $M\nEOF\nbash run.sh org/m",
    "bash <<EOF\nvllm serve ${X:-m}\nEOF",
    "(M=a; vllm serve $M)\nM=${M:-b}\nvllm serve $M",
    "M=a; echo x | M=b; vllm serve $M",
    "{ M=a; }; vllm serve $M && vllm serve second",
    "P=org/model-fp8.gguf\nvllm serve ${P##*/} ${P%.gguf} ${P%%-*} ${P/model/m} ${P^^} ${P:4:5} ${#P}",
    "A=(x 'y z' w)\nvllm serve \"${A[1]}\" ${A[@]:1} \"${A[*]}\" \"${A[@]:1:1}\"",
    "N=3; vllm serve m --n $((N * 2 + 1)) --s $(( (N+1)/2 ))",
    "M=$(basename /models/org/m/)\nD=`dirname /a/b`\nvllm serve $M $D $(echo one two)",
    "export A=1\nvllm serve m &\nwait",
    "! false && vllm serve m",
    "true && false || vllm serve m",
    "f() { return 1; }\nf\nvllm serve m > log 2>&1",
    "eval \"vllm serve 'a b'\"",
    "if true; then\n  exit_code=0\nfi\nvllm serve m\nexit 0\nvllm serve never",
    "vllm serve $'a\\tb' \"c\\\"d\" e\\ f",
    "A=1 B=2\nvllm serve $A$B",
    "X='a  b'\nvllm serve $X \"$X\" \"\" '' \"$X$\" \"${X}\"\"c\"",
    "until true; do vllm serve never; done; vllm serve m",
    "select_model() {\n  case $1 in\n    a) echo A;;\n  esac\n}\nvllm serve m ${X:+never} ${X-d}",
    '[ -z "${X:-}" ] && [ 1 -eq 1 ] && vllm serve m',
    'C="vllm serve"\n$C org/m',
    "if [[ abc == a* && ! x == y ]]; then vllm serve m; fi",
    'f() { vllm serve "$FUNC_ARG"; }\nFUNC_ARG=v f',
    "i=5; ((i++)); ((i += 2)); vllm serve $i",
    "x=1; y=x; vllm serve ${!y}",
    "vllm serve $((2**13)) $((0x1F + 0XA)) $((2 ** 3 ** 2)) $((10 - 2**2))",
    'X=model; E=; vllm serve ${X^} ${X,} "${X: -1}" ${X: -3:2} ${X:1:-1} "a${X: -9}" ${E^}x; Y=ABC; vllm serve ${Y,}',
    "echo '-a 1' > a.txt; vllm serve $(<a.txt) \"$(< ./a.txt)\"",
    "shopt -s extglob nocasematch; M=Big-FP8; case $M in *fp8*) vllm serve a;; *) vllm serve b;; esac; [[ $M == big-fp8 ]] && vllm serve c; [[ $M != BIG* ]] || vllm serve d; [ $M = big-fp8 ] || vllm serve e; vllm serve ${M%-fp8} ${M%-FP8}; shopt -u nocasematch; [[ $M == big* ]] || vllm serve f",
    "A=$(echo -ne '-a 1'); B=$(echo -nE '-b\\n'); vllm serve $A $B $(echo -E x) $(echo -x -e) $(echo -e y); echo -ne 'vllm serve ' > f; echo -En '$1' >> f; bash f z",
    'set -- a b c d e f g h i j; vllm serve ${10} ${01} "$10" $((10 + 0)); set -- 3; vllm serve $(($10 + ${01}))',
    "while true; do vllm serve m; break; done; vllm serve after",
    "f() { if true; then I=a; return; fi; I=b; }\nf\nvllm serve $I",
    "for m in a b; do if [ $m = a ]; then break; fi; done\nvllm serve $m",
    "M=org/fast\ncat > run.sh <<'EOF'\nvllm serve ${M:-org/default}\nEOF\nbash run.sh\nexport M\nchmod +x run.sh; ./run.sh; bash run.sh",
    'bash <<EOF\nvllm serve --x "{\\"a\\": 1}"\nEOF',
    'A=(x); f() { local A=(y); }; f; vllm serve "${A[@]}"',
    "M=a; f() { declare -g M=b; local N=c; }; f; vllm serve $M ${N:-none}",
    'f() { local tp=$1 extra="-tp ${tp:-none}"; vllm serve $tp $extra; }\nf 2',
    "M=a; M=b & wait; { M=c; } & wait; vllm serve $M",
    "case 7 in [[:digit:]]) vllm serve digit;; *) vllm serve other;; esac",
    'P="a*"; case abc in "$P") vllm serve quoted;; $P) vllm serve pattern;; esac',
    'X=abcab; vllm serve ${X/#ab/Z} ${X/%ab/Y} ${X//ab/-} ${X#a*} ${X%"*"} ${X%[!a]}',
    'X="a/b/c"; vllm serve "${X//\\//-}" ${X##*/}',
    "vllm serve $((-7 / 2)) $((-7 % 3)) $((7 / 2))",
    'A=x; A+=(y); B=(a b); B=c; B+=d; vllm serve "${A[@]}" "${B[@]}"',
    'A[5]=x; A+=(y); A[2]=z; vllm serve "${A[@]}" ${A[-1]} ${#A[@]} ${!A[@]} "${A[@]:5}"',
    'vllm serve ${X-"a b"} "${X:-c d}" ${X:-e f} "${X:-\'q\'}"',
    "set -- a b; shift 5; vllm serve $# $1; shift; vllm serve $1",
    "f() { exit 1; }\nvllm serve first\nif f; then vllm serve never; fi\nvllm serve never",
    "vllm serve first; exec vllm serve last; vllm serve never",
    "vllm serve $'\\x41\\101' $(dirname /a) $(dirname a) $(basename /)",
    "export A=1; export -n A; bash <<'EOF'\nvllm serve ${A:-none}\nEOF",
    "set -a; A=1; set +a; B=2; bash <<'EOF'\nvllm serve ${A:-none} ${B:-none}\nEOF",
    "f() { bash <<'EOF'\nvllm serve ${A:-none}\nEOF\nvllm serve $A; }\nA=1 f; vllm serve ${A:-gone}",
    'ARGS=(); vllm serve ${ARGS[@]+"${ARGS[@]}"} x; ARGS=(a "b c"); vllm serve ${ARGS[@]+"${ARGS[@]}"}',
    'echo "vllm serve \\$1" > run.sh; echo \'vllm serve end\' >> run.sh; bash run.sh a',
    "cat > e.sh <<'EOF'\nM=$1\nEOF\nsource ./e.sh b; vllm serve $M",
    'A=x; B="y z"; vllm serve "$A $B" "${A} ${B}" "$(echo a) $(echo b)" "$A `echo b`" "-$A  $B-"',
    'unset A[1]; A=(a b); B=(${A[0]} $(echo c)); vllm serve "${B[@]}"',
    "i=0; while true; do i=$((i + 1)); if [ $i -ge 2 ]; then break; fi; done; vllm serve $i",
    "vllm serve m \\\n  --a 1 `# a comment` \\\n  --b",
    # set -e ends a script, unless the failure is asked for
    "vllm serve first\nset -e\ni=0; ((i++))\nvllm serve never",
    "set -e\nf() { false; vllm serve on; true; }\nf || vllm serve no\nif ! f; then vllm serve no; fi\nf\nvllm serve never",
    "set -euo pipefail\nvllm serve first\nfalse | true\nvllm serve never",
    "set -o errexit\nf() { return 1; }\nif f; then vllm serve never; fi\nvllm serve m\nf\nvllm serve never",
    "f() { for i in 1; do false && true; done; }\nset -e\nfor i in 1; do false && true; done\nvllm serve m\nf\nvllm serve never",
    "( set -e; false; vllm serve never ); vllm serve a; ( exit 3 ) || vllm serve b; ( exit 0 ) && vllm serve c",
    "set -e; vllm serve a; (false); vllm serve never",
    "set -e; false & vllm serve a; set +e; false; vllm serve b",
    "echo 'false; vllm serve never' > a.sh; bash -e a.sh; bash -e -x a.sh || vllm serve m",
    "X=$(false) || vllm serve a; true; vllm serve $?; set -- a; shift 2 || vllm serve $#",
    "f() { if true; then return 1; fi; }; f || vllm serve m; f && vllm serve never; while false; do :; done && vllm serve n",
    # what is set in front of a command
    "f() { export B; }; g() { D=7; }\nB=0 f; D=1 g\nbash <<'EOF'\nvllm serve ${B:-none} ${D:-none}\nEOF",
    "f() { unset F; F=3; }; F=1; F=0 f; vllm serve $F",
    "cat > run.sh <<'E'\nvllm serve ${M:-none}\nE\nM=x bash run.sh; M=y source ./run.sh; vllm serve ${M:-gone}",
    "A=1 eval 'vllm serve $A'; vllm serve ${A:-gone}",
    "set -ae; A=1; set +o allexport; B=2; bash <<'EOF'\nvllm serve ${A:-none} ${B:-none}\nEOF",
    # words
    "M=a; vllm serve --x=`echo $M`2 a`echo b`c \\\n  --y=`echo d`",
    'A=(--x=`echo b`c d); vllm serve ${#A[@]} "${A[@]}"',
    "A=(p q)\ncat > r.sh <<E\nvllm serve ${A[@]} $*\nE\nbash r.sh",
    "A=(1 2); (( ${#A[@]} == 2 )) && vllm serve $(( ${#A[@]} + ${A[1]} )) $(basename '')x",
    "echo 'A=1 B=2' > e; export $(cat e | xargs); bash <<'EOF'\nvllm serve $A $B\nEOF",
    "printf '%s\\n' x > /dev/null; echo '#c' > e; echo 'A=1' >> e; export $(grep -v '^#' e | xargs); vllm serve $A",
    "IFS=,; A='a,b c,,d ,'; vllm serve $A x$A; IFS=$'\\n'; B=$'a b\\nc  d'; vllm serve $B; IFS=; vllm serve $B; unset IFS; vllm serve $B",
    "IFS=', '; C=' a , b,,c  d, '; vllm serve $C \"$C\"; C='vllm serve x'; IFS=:; $C; IFS=' '; $C",
    '[ -n "$X" ] || true && vllm serve m; [ -e /nonexistent ] && false || vllm serve n',
    "exec 3>log; exec 2>&1; vllm serve m >&3; exec vllm serve last; vllm serve never",
    # files are where they were written
    "mkdir d; cd d; echo 'vllm serve a' > run.sh; cd ..; echo 'vllm serve b' > run.sh; cd d; bash run.sh; bash ../run.sh",
    "echo 'vllm serve a' > a.sh; cp a.sh b.sh; echo 'vllm serve c' > a.sh; bash b.sh; mkdir bin; mv b.sh bin/; bash bin/b.sh",
    "echo 'vllm serve a' > a.sh; (echo 'vllm serve b' > a.sh; cat < a.sh | cat > /dev/null); bash a.sh",
    "echo 'vllm serve a' > a.sh; (mkdir d; cd d; echo 'vllm serve d' > a.sh); bash a.sh; cd d && bash ./a.sh; bash $PWD/a.sh",
    "echo 'vllm serve $1' > a.sh; chmod +x a.sh; nohup ./a.sh x; time ./a.sh y; env M=1 bash a.sh z; timeout 9 ./a.sh t; exec ./a.sh last; vllm serve never",
]  # fmt: skip


def evaluated(text):
    words = [call.words[call.words[0] == "exec" :] for call in shell.parse(text).calls]
    return [command[1:] for command in words if command[0] == "vllm"]


@pytest.mark.skipif(SHELL is None, reason="no bash to compare with")
@pytest.mark.parametrize("text", SCRIPTS)
def test_the_engine_starts_as_in_bash(tmp_path, text):
    engine = tmp_path / "vllm"
    engine.write_text(
        "#!/bin/sh\ncd ${0%/*}\nfor word; do printf '%s\\037' \"$word\"; done >> log.txt\nprintf '\\036' >> log.txt\n"
    )
    engine.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run([SHELL, "-c", text, "script"], cwd=tmp_path, env=env, capture_output=True, timeout=20, check=False)
    log = (tmp_path / "log.txt").read_text()
    expected = [record.split("\037")[:-1] for record in log.split("\036")[:-1]]
    assert expected
    assert evaluated(text) == expected


IMAGE = "docker run a/b:1 vllm serve org/"


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (f'if [ "$1" = big ]; then\n  {IMAGE}big\nelse\n  {IMAGE}small\nfi', 1, "decides which engine starts", "--define 1=VALUE"),
        (f"if nvidia-smi; then {IMAGE}a; fi\n{IMAGE}b", 1, "decides which engine starts", "a file of its own"),
        (f"case $(hostname) in\n a) {IMAGE}a;;\n *) {IMAGE}b;;\nesac", 1, "decides which engine starts", "of its own"),
        (f"curl -s localhost:8000 && {IMAGE}a || {IMAGE}b", 1, "decides which engine starts", "of its own"),
        (f"[ -d /fast ] && M=fast || M=slow\n{IMAGE}$M", 1, "M depends on `[ -d /fast ] && M=fast`", "--define M=VALUE"),
        (f"if lspci; then\n X=1\nfi\n{IMAGE}m --seed $X", 1, "X depends on `lspci`", "--define X=VALUE"),
        (f'A=(--seed 1)\n[ -e x ] && A+=(--fast)\n{IMAGE}m "${{A[@]}}"', 2, "A depends on", "--define A=VALUE"),
        (f"{IMAGE}m --seed {{1,2}}", 1, "`{1,2}` is not followed", "write what it becomes"),
        (f"{IMAGE}m --x <n_of_tokens> --y YOUR_FLAG", None, "leaves <n_of_tokens>, YOUR_FLAG to", "--define n_of_tokens=VALUE --define YOUR_FLAG=VALUE"),
        ("vllm serve \u2039latest model\u203a", None, "leaves <latest model> to", "--define"),
        ("M=<your-model>\nvllm serve $M", None, "leaves <your-model> to", "--define your-model=VALUE"),
        ("[ $# -lt 1 ] && exit 1\nvllm serve $1", None, "it ends on line 1", "--define"),
        ("cd x\ndocker compose up -d", 2, "docker compose", "import docker-compose.yml"),
        (f"for ((;;)); do\n) {IMAGE}m", 1, "cannot be parsed", "whole command"),
        (f"x=1\nwhile :; do x=$((x+1)); done\n{IMAGE}m", 2, "loop without end", "out of it"),
        ("f() { if probe; then I=a; return; fi; I=b; }\nf\ndocker run $I vllm serve org/m", 1, "I depends on `probe`", "I=VALUE"),
        (f"if probe; then set -- a; else set -- b; fi\n{IMAGE}$1", 1, "the arguments depend on `probe`", "out of the branch"),
        (f"if probe; then f() {{ :; }}; else f() {{ exit; }}; fi\nf\n{IMAGE}m", 2, "function f differs", "one of them"),
        ('docker run a/b:1 bash -c "pip install x==$V; vllm serve org/m"', 1, "needs $V", "with its values"),
        ("docker run a/b:1 bash -c 'f() { pip install x || true; }; f; vllm serve org/m'", 1, "before the engine runs", "with its"),
        ("[ -f x ] || cat > x <<E\nM=org/m\nE\n. ./x\nvllm serve ${M:-org/d}", 1, "what x contains is not certain after `[ -f x ]`", "one place"),
        (f"echo -e 'M=a\\tb' > x\n. ./x\n{IMAGE}$M", 1, "is not certain after `echo -e", "one place"),
        (f"{{\n  echo M=a\n}} > x\n. ./x\n{IMAGE}$M", 1, "is not certain after `{`", "one place"),
        (f"echo M=a > x\nsed -i s/a/b/ x\n. ./x\n{IMAGE}$M", 2, "is not certain after `sed -i", "one place"),
        (f"printf 'M=%s\\n' a > x\n. ./x\n{IMAGE}$M", 1, "is not certain after `printf", "one place"),
        (f"shopt -s nocasematch\nM=aB\nM=${{M/A/c}}\n{IMAGE}$M", 3, "M depends on", "M=VALUE"),
        ("for i in 1; do\nif probe; then break; fi\nvllm serve org/a\ndone\nvllm serve org/b", 2, "decides which engine", "of its own"),
        ("f() { local -n o=$1; o+=(--seed 1); }\nA=()\nf A\nvllm serve org/m ${A[@]}", 1, "local -n", "out of it"),
        ("docker run i:${HOSTNAME:-x} vllm serve org/m", 1, "the image is i:$HOSTNAME, which", "--define HOSTNAME=VALUE"),
        (f"((++i))\n{IMAGE}m --seed $i", 1, "i depends on", "i=VALUE"),
        ("if probe; then docker run -d --name n a/a:1 sleep 1; else docker run -d --name n a/b:1 sleep 1; fi\ndocker exec n vllm serve org/m", 1, "what the container n is", "of its own"),
        ("docker run a/b:1 bash -c 'if [ $RANK = 0 ]; then vllm serve org/a; else vllm serve org/b; fi'", 1, "decides which engine", "RANK"),
        ("docker run a/b:1 bash -c 'V=1; curl x/$V.sh | sh; vllm serve org/m'", 1, "needs $V", "with its values"),
        (f"{IMAGE}m \\\n  # --old \\\n  --seed 1", 3, "begins with --seed", "backslash"),
        (f"{IMAGE}m \u2013seed 1", 1, "typographic", "type -"),
        (f"f() {{ f; }}\nf\n{IMAGE}m", None, "nested deeper", "right file"),
        (f"if M=$(pick); then {IMAGE}a; else {IMAGE}b; fi", 1, "decides which engine", "of its own"),
        (f"cd x && probe && {IMAGE}a || {IMAGE}b", 1, "`cd x && probe` decides which engine", "of its own"),
        (f"cat x | grep -q y && {IMAGE}a || {IMAGE}b", 1, "decides which engine", "of its own"),
        (f"case b in\na) cat <<EOF\nhi\nEOF;;\nb) {IMAGE}m;;\nesac", 2, "the here-document EOF is not closed", "alone on"),
        (f"cat <<EOF\n{IMAGE}a\n{IMAGE}b", 1, "the here-document EOF is not closed", "alone on"),
        (f"M=a`echo b`c\n{IMAGE}$M", 1, "M depends on", "M=VALUE"),
        ("export V={a,b}\ndocker run -e V=$V a/b:1 vllm serve org/m", 1, "V depends on", "V=VALUE"),
        (f"read -p 'Seed? ' S\n{IMAGE}m --seed $S", 1, "S depends on `read", "S=VALUE"),
        (f"xargs vllm serve org/x\n{IMAGE}m", 1, "may start an engine too", "of its own"),
        (f"tmux run-shell 'vllm serve org/x'\n{IMAGE}m", 1, "may start an engine too", "of its own"),
        (f"$RUN\n{IMAGE}m", 1, "may start an engine too", "of its own"),
        (f"bash <(echo 'vllm serve org/x')\n{IMAGE}m", 1, "may start an engine too", "of its own"),
        (f"echo 'vllm serve org/x' | tee a.sh\nbash a.sh\n{IMAGE}m", 1, "is not certain after `tee a.sh`", "one place"),
        (f"#!/bin/bash -e\nfalse\n{IMAGE}m", None, "it ends on line 2", "set -e"),
        ("bash -ec 'false; vllm serve org/m'", None, "starts no vLLM", "of its own"),
        ("echo 'vllm serve org/m' > run.sh\ndocker run i:1 bash -c 'bash run.sh'", None, "starts no vLLM", "of its own"),
        ("docker compose run v vllm serve org/m", 1, "its compose file says", "`docker compose run` adds"),
    ],
)  # fmt: skip
def test_what_the_text_does_not_decide_is_refused(text, line, message, hint):
    with pytest.raises(UsageError) as caught:
        convert(text, "x.sh")
    assert message in caught.value.message
    assert hint in caught.value.hint
    if line is not None:
        assert caught.value.message.startswith(f"x.sh:{line}: ")


@pytest.mark.parametrize(
    ("text", "defines", "model"),
    [
        (f'if [ "$1" = big ]; then {IMAGE}big; else {IMAGE}small; fi', {"1": "big"}, "org/big"),
        (f'if [ "$1" = big ]; then {IMAGE}big; else {IMAGE}small; fi', {"1": "x"}, "org/small"),
        (f"[ -d /fast ] && M=fast || M=slow\n{IMAGE}$M", {"M": "slow"}, "org/slow"),
        ("vllm serve org/<model>", {"model": "m"}, "org/m"),
        ("vllm serve $MODEL", {"MODEL": "org/m"}, "org/m"),
        ("M=$(pick)\nvllm serve $M", {"M": "org/m"}, "org/m"),
        ("M=${MODEL:-org/d}\nvllm serve $M", {"MODEL": "org/m"}, "org/m"),
        ("[ $# -lt 1 ] && exit 1\nvllm serve $1", {"1": "org/m"}, "org/m"),
    ],
)
def test_a_definition_decides(text, defines, model):
    assert convert(text, "x.sh", defines=defines).document["model"] == {"id": model}


def test_a_definition_that_nothing_asks_for_is_refused():
    with pytest.raises(UsageError, match="does not ask for MODLE") as caught:
        convert("M=org/m\nvllm serve $M --seed $SEED", "x.sh", defines={"MODLE": "org/m"})
    assert caught.value.hint == "it asks for SEED"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (f"if ! docker ps | grep -q x; then\n {IMAGE}m\nfi", "line 1: imported as if `! docker ps | grep -q x` is true"),
        (f"docker start x || {IMAGE}m", "line 1: imported as if `docker start x` is false"),
        (f"source ./env.sh\n{IMAGE}m", "the variables of ./env.sh"),
        ("docker run a/b:1 bash -c 'ray start --head && vllm serve org/m'", "ray start --head: left out: sparkcluster starts Ray"),
        ("docker run a/b:1 bash -c 'ulimit -n 9; vllm serve org/m; rm x'", "the command rm x, which follows the engine"),
        ("docker run -d --name n a/b:1 top\ndocker exec n pip install x\ndocker exec n vllm serve org/m", "the command docker exec n pip install x"),
        (f"docker pull x && grep -q y z && {IMAGE}m", "line 1: imported as if `docker pull x && grep -q y z` is true"),
        ("export A=1\nsudo vllm serve org/m", "A: sudo does not pass it on"),
        (f"{IMAGE}m --seed 1 \\ \n  --max-model-len 5", "line 1: a blank behind the backslash"),
        ("C=$(sudo docker run -d i:1 vllm serve org/m)\nvllm serve org/b", "only the first engine of the text is imported, not vllm"),
        ("export A=1\ntmux new -d 'vllm serve org/m'", "line 2: tmux has A only if it starts its server there"),
        ("tmux new -d 'vllm serve org/m' \\; set status off", "line 1: the command set status off of tmux"),
        (f"tmux attach -t v\n{IMAGE}m", "the command tmux attach -t v"),
        ("docker run i:1 bash -c 'B=1; unset A B; vllm serve org/m'", "unset A: a playbook cannot remove a variable of the image"),
        ("ssh spark 'export $(pick); vllm serve org/m'", "line 1: what $(pick) sets"),
        (f"export $(pick)\n{IMAGE}m", "line 1: what $(pick) sets"),
        ("timeout 60 numactl -N 0 vllm serve org/m", "timeout 60 numactl -N 0: left out"),
        ("docker run i:1 uv run --with x vllm serve org/m", "uv run --with x: left out"),
        ("echo 'vllm serve org/m' > a.sh\ndocker run -v /srv/a.sh:/a.sh i:1 bash /a.sh", "/srv/a.sh: taken to be the file a.sh"),
        ("docker run a/b:1 bash -c 'test -e /x && vllm serve org/m'", "line 1: imported as if `test -e /x` is true"),
        (f"if curl -s localhost:80$00/health; then exit 0; fi\n{IMAGE}m", "line 1: imported as if `curl -s localhost:80$00/health`"),
        (f"if probe ${{00}} ${{{'9' * 5000}}}; then exit 0; fi\n{IMAGE}m", "line 1: imported as if `probe ${00}"),
        (f'[ -d "$D" ] || exit 1\n{IMAGE}m', 'line 1: imported as if `[ -d "$D" ]` is true'),
        (f"if curl -s u; then\n echo up; exit 0\nfi\n{IMAGE}m", "line 1: imported as if `curl -s u` is false"),
        (f"die() {{\n exit 1\n}}\nhave x || die\nfor i in 1 2; do\n {IMAGE}m\ndone", "line 4: imported as if `have x` is true"),
        (f"f() {{\n have x || exit 1\n}}\nf\n{IMAGE}m", "line 2: imported as if `have x` is true"),
        ("ssh spark <<EOF\nhave x || exit 1\ndocker run i:1 vllm serve org/m\nEOF", "imported as if `have x` is true"),
    ],
)  # fmt: skip
def test_what_was_assumed_is_said(text, note):
    made = convert(text, "x.sh")
    assert made.document["model"] == {"id": "org/m"}
    assert any(note in line for line in made.notes), made.notes


@pytest.mark.parametrize(
    "text",
    [
        f"{IMAGE}m\nhave x || exit 1",  # behind the engine
        f"(have x || exit 1)\n{IMAGE}m",  # ends a shell of its own
        f"A=$(have x || exit 1)\n{IMAGE}m",
        "docker run i:1 bash -c 'have x || exit 1; vllm serve org/m'",  # is in setup
    ],
)
def test_an_exit_that_does_not_keep_the_engine_from_starting_is_no_assumption(text):
    made = convert(text, "x.sh")
    assert made.document["model"] == {"id": "org/m"}
    assert not any("imported as if" in line for line in made.notes), made.notes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("docker run -e D=$HOME/t i:1 vllm serve org/m", "D ~/t: nothing makes a home directory of ~ there"),
        ("export D=~/t\nvllm serve org/m", "D ~/t: "),
        ("vllm serve org/m --chat-template $HOME/t.jinja", "--chat-template ~/t.jinja: "),
        ("docker run -e D=/t i:1 vllm serve org/m --chat-template a~b", None),
    ],
)
def test_a_home_directory_that_nothing_fills_in_is_told(text, told):
    notes = [line for line in convert(text, "x.sh").notes if "home directory" in line]
    assert [told in line for line in notes] == [True] if told else notes == []


@pytest.mark.parametrize(
    ("text", "image", "env", "setup"),
    [
        ("{\n  echo x\n  docker run i:1 vllm serve org/m\n} 2>&1 | tee run.log", "i:1", None, None),
        ("{\n\tA=1; export A\n}\nvllm serve org/m", None, {"A": "1"}, None),
        # NVIDIA's commands for two Sparks: a container first, the engine by docker exec
        (
            ("export IMG=v/l:1\nbash run_cluster.sh $IMG 10.0.0.1 --head ~/.cache/huggingface -e VLLM_HOST_IP=10.0.0.1 -e A=1\n"
            "export C=$(docker ps --format '{{.Names}}' | grep -E '^node-[0-9]+$')\n"
            "docker exec -it $C /bin/bash -c -i 'vllm serve org/m'"),
            "v/l:1", {"A": "1"}, None,
        ),
        ("docker run -d --name n -e B=2 i:1 sleep infinity\ndocker exec -e A=1 n vllm serve org/m", "i:1", {"A": "1", "B": "2"}, None),
        ("ssh -p 22 me@spark 'docker run i:1 vllm serve org/m'", "i:1", None, None),
        ("ssh spark <<EOF\ndocker run i:1 vllm serve org/m\nEOF", "i:1", None, None),
        ("tmux new-session -d -s v 'A=1 vllm serve org/m'", None, {"A": "1"}, None),
        ("export A=1\ntmux new -ds v -e B=2 -c /w 'vllm serve org/m' \\; attach", None, {"A": "1", "B": "2"}, None),
        ("export A=1\nscreen -dmS v bash -c 'vllm serve org/m'", None, {"A": "1"}, None),
        ("export A=1\ntmux new -d -s v\nexport C=3\ntmux send-keys -t v 'export B=2' C-m\ntmux send -t v 'vllm serve org/m'\ntmux send -t v Enter", None, {"A": "1", "B": "2"}, None),
        ("tmux send-keys -t v 'M=org/m' ENTER 'vllm serve' space '$M' enter C-c; tmux display 'vllm'", None, None, None),
        ("screen -S v -X stuff $'vllm serve org/m\\r'", None, None, None),
        ("tmux send-keys -t w 'export B=2' C-m\ntmux send-keys -t v -l 'vllm serve org/m'", None, None, None),
        ("screen -dmS v\nscreen -S v -X stuff 'export A=1^M'\nscreen -S v -p 0 -X stuff 'M=org/m\\nvllm serve $M\\012'", None, {"A": "1"}, None),
        ("tmux new -d sh -c 'docker run -e A=1 i:1 vllm serve org/m'", "i:1", {"A": "1"}, None),
        # exports of the host enter a container only by -e
        ("export A=1 B=2\ndocker run -e B i:1 vllm serve org/m", "i:1", {"B": "2"}, None),
        ("export A=1\nB=2\nvllm serve org/m", None, {"A": "1"}, None),
        ("A=1\ndocker run i:1 bash -c 'vllm serve ${A:-org/m}'", "i:1", None, None),
        ("docker run -e M=org/m i:1 bash -c 'vllm serve $M'", "i:1", {"M": "org/m"}, None),
        (
            'docker run i:1 bash -c "pip install x > /dev/null; [ -e y ] || mkdir y; X=1 && vllm serve org/m"',
            "i:1", None, ["pip install x > /dev/null", "[ -e y ] || mkdir y"],
        ),
        ("docker run i:1 bash -c 'cd /w && pip install -e . && vllm serve org/m'", "i:1", None, ["cd /w && pip install -e ."]),
        ("M=org/m; A='-tp 1'; docker run i:1 bash -c \"vllm serve $M $A\"", "i:1", None, None),
        ("docker run -d --name n i:1 sleep 9\ndocker exec -e A=1 n pip install x\ndocker exec n vllm serve org/m", "i:1", None, None),
        ("ssh a 'docker run -d --name n i:1 top'\nssh b 'docker run -d --name n i:2 top'\nssh a 'docker exec n vllm serve org/m'", "i:1", None, None),
        ("C=$(docker run -d i:1 top)\ndocker exec $C vllm serve org/m", "i:1", None, None),
        ("docker run i:2 vllm serve org/m --headless\ndocker run i:1 vllm serve org/m --node-rank 0", "i:1", None, None),
        ("docker run -i i:1 bash <<'EOF'\nexport A=1\nvllm serve org/m\nEOF", "i:1", {"A": "1"}, None),
        ("docker run i:1 bash -c 'exec vllm serve \"$@\"' serve org/m", "i:1", None, None),
        (
            (
                "cat > start.sh <<'EOF'\nexport A=1\nexec vllm serve org/m\nEOF\n"
                "docker run -v $(pwd)/start.sh:/start.sh i:1 bash /start.sh"
            ),
            "i:1", {"A": "1"}, None,
        ),
        ("I=i:1\nif [ $(uname -m) != aarch64 ]; then I=i:2; fi\ndocker run $I vllm serve org/m", "i:1", None, None),
        ("timeout 60 numactl -N 0 vllm serve org/m", None, None, None),
        ("export A=1 B=2\nenv -u A C=3 vllm serve org/m", None, {"B": "2", "C": "3"}, None),
        ("export A=1\nenv -i B=2 vllm serve org/m", None, {"B": "2"}, None),
        ("export A=1 B=2\nsudo vllm serve org/m", None, None, None),
        ("export A=1\nsudo -E vllm serve org/m", None, {"A": "1"}, None),
        ("export A=1 B=2\nsudo --preserve-env=A C=4 vllm serve org/m", None, {"A": "1", "C": "4"}, None),
        ("docker run i:1 timeout 9 env A=1 vllm serve org/m", "i:1", {"A": "1"}, None),
        ("A=(-e $X)\nA+=(-e B=1)\ndocker run ${A[@]} i:1 vllm serve org/m", "i:1", {"B": "1"}, None),
        ("echo 'vllm serve org/m' > a.sh\ndocker run -v $PWD:/w i:1 bash -c 'cd /w && bash a.sh'", "i:1", None, None),
        (
            (
                "cat > compose.yaml <<'EOF'\nservices:\n  v:\n    image: ${I:-i}:1\n    container_name: n\n    ports: [8001:8000]\n"
                "    environment: {A: 1}\n  ui: {image: ui}\nEOF\nI=j docker compose run --rm -e B=2 v vllm serve org/m"
            ),
            "j:1", {"A": "1", "B": "2"}, None,
        ),
        ("$ docker run i:1 vllm serve org/m", "i:1", None, None),
    ],
)  # fmt: skip
def test_where_it_runs(text, image, env, setup):
    document = convert(text, "x.sh").document
    assert document["model"] == {"id": "org/m"}
    assert (document.get("image"), document.get("env"), document.get("setup")) == (image, env, setup)


@pytest.mark.parametrize(
    "terminal",
    ["tmux new -d -s v", "tmux new-window -n w", "tmux -L x split-window -h -p 50", "screen -dmS v", "screen -d -m"],
)
def test_a_terminal_runs_words_as_they_are(terminal):
    made = convert(
        f"""{terminal} vllm serve org/m --speculative-config '{{"method": "ngram"}}'\nvllm serve org/n""", "x.sh"
    )
    assert made.document["model"] == {"id": "org/m"}
    assert made.document["args"] == {"speculative-config": {"method": "ngram"}}
    assert made.notes == ("only the first engine of the text is imported, not vllm serve org/n",)


def test_text_in_quotes_is_no_placeholder():
    text = """vllm serve org/m --reasoning-config '{"start": "<think>", "stop": "<|im_end|>"}'"""
    assert json.loads(json.dumps(convert(text, "x.sh").document["args"])) == {
        "reasoning-config": {"start": "<think>", "stop": "<|im_end|>"}
    }
