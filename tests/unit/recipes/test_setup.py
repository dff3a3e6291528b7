"""What a text runs before its engine: a shell that runs it and one that runs each line of setup do the same."""

import os
import subprocess

import pytest

from sparkcluster.errors import UsageError
from sparkcluster.recipes.read import convert

# Notes what it was called as, where, with which words, input and A.
STUB = """#!/bin/sh
read=$([ -t 0 ] || cat)
line=$(printf '%s in %s:' "${0##*/}" "$PWD"; printf ' <%s>' "$@"; printf ' A=%s read=%s' "$A" "$read")
printf '%s\\n' "$line" >> "$CALLS"  # by one write, as two may run at once
case $0 in *fails) exit 1;; esac
"""
PROGRAMS = ("pip", "python3", "make", "git", "fails", "curl", "vllm")


@pytest.fixture
def calls(tmp_path):
    """Run lines, each in a shell of its own until one fails; the calls in them, and whether none failed."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)

    def run(lines, name):
        here = tmp_path / name
        for directory in ("a/b", "home/x", "wheels"):
            (here / directory).mkdir(parents=True)
        for file in ("req.txt", "wheels/one.whl", "wheels/two.whl", "home/x/fix.py", "a/b/c.py"):
            (here / file).touch()
        log = here / "calls"
        log.touch()
        env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(here / "home"), "CALLS": str(log)}
        well = all(
            subprocess.run(["bash", "-c", line], cwd=here, env=env, stdin=subprocess.DEVNULL, check=False).returncode
            == 0
            for line in lines
        )
        found = [line.replace(str(here), "") for line in log.read_text().splitlines()]
        return [line for line in found if not line.startswith("vllm ")], well

    return run


@pytest.mark.parametrize(
    "text",
    [
        "pip install wheels/*.whl",
        "pip install ~/x/fix.py $HOME/x/fix.py \"$HOME/x y\" '~/x' a~=1",
        "pip install 'vllm[audio]' vllm[audio] \"*.whl\" wheels/?n?.whl",
        'V=1.2; pip install vllm[audio]==$V "a b$V" https://host/f?version=$V',
        "A='x y' python3 p.py",
        "[ -f req.txt ] && pip install -r req.txt",
        "[ -f no.txt ] && pip install -r no.txt",
        "[ -f no.txt ] && pip install -r no.txt && make; make all",
        "[ -f req.txt ] && pip install -r req.txt > /dev/null 2>&1; make",
        "fails x && pip install x; make",
        "fails x || pip install x",
        "for each in wheels/*; do [ -f $each ] && pip install $each; done; make",
        "for each in wheels/*; do [ -x $each ] && pip install $each; done; make",
        "{ [ -f no.txt ] && pip install x; }; make",
        "if [ -f no.txt ]; then make; else make all; fi",
        "python3 <<< 'import x; x.patch()'",
        "pip install x < /dev/null",
        "python3 - <<'EOF'\nimport x\nEOF\nmake",
        "cd a && cd b && pip install .",
        "cd a; cd b; make; cd ..; make all; cd; make home",
        "pushd a; make; popd; make all",
        "(cd a && make); make all",
        "{ cd a; make; }",
        "export A=3; python3 b.py; export A=4",
        "export A=3; python3 b.py; unset A",
        "pip install a & pip install b & wait",
    ],
)
def test_lines_of_setup_do_what_the_text_does(text, calls):
    made = convert(
        f"cat > start.sh <<'OUTER'\n{text}\nexec vllm serve org/m\nOUTER\n{CONTAINER} bash /start.sh", "x.sh"
    )
    expected, _ = calls([f"{text}\nvllm serve org/m"], "text")
    got, well = calls(made.document["setup"], "setup")
    assert sorted(got) == sorted(expected)
    assert well, "none of it keeps the engine from starting"


CONTAINER = "docker run -v $PWD/start.sh:/start.sh i:1"


@pytest.mark.parametrize(
    "text",
    ["(sleep 0.3 && curl host) &", "(sleep 0.3; curl host; make) &", "{ sleep 0.3; curl host; } &", "sleep 0.3 &"],
)
def test_what_runs_beside_the_engine_does_not_keep_it_waiting(text):
    made = convert(f"docker run i:1 bash -c '{text} vllm serve org/m'", "x.sh")
    assert made.document["setup"] == [text]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("D=/opt; cp $D/*.so /x", "`cp $D/*.so /x` before the engine needs $D"),
        ("D=$HOME/x; python3 $D/a.py", "needs $D"),
        ("cd /x; make; cd -; make", "`make` before the engine runs in a directory that `cd -` leads to"),
        ("[ -e /x ] && cd /x; make", "`make` before the engine runs in a directory that `cd /x` leads to"),
        ("{ cd /x; make; }; make all", "`make all` before the engine runs in a directory that `cd /x` leads to"),
        ("popd; make", "that `popd` leads to"),
    ],
)
def test_what_setup_cannot_do_is_refused_by_its_line(text, said):
    with pytest.raises(UsageError) as caught:
        convert(f"docker run i:1 bash -c '\n{text}\nvllm serve org/m'", "x.sh")
    assert said in caught.value.message
    assert caught.value.message.startswith("x.sh:")


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("set -- org/m\ncat > s.sh <<EOF\nvllm serve $1\nEOF\nbash s.sh org/q", "org/m"),
        ("set -- org m\ncat > s.sh <<EOF\nvllm serve $1/m$#\nEOF\nbash s.sh", "org/m2"),
        ('N=4\ncat > s.sh <<EOF\nvllm serve "org/m$((N * 2))"\nEOF\nbash s.sh', "org/m8"),
        ('cat > s.sh <<EOF\nvllm serve \\$1 # "$1" \\"\nEOF\nbash s.sh org/q', "org/q"),
        ("cat > s.sh <<'EOF'\nvllm serve $1\nEOF\nbash s.sh org/q", "org/q"),
    ],
)
def test_a_here_document_is_expanded_where_it_is_written(text, model):
    assert convert(text, "x.sh").document["model"] == {"id": model}


@pytest.mark.parametrize(
    "text",
    ['for l in "M=org/m"; do echo "$l"; done > .env', "(\necho M=org/m\n) > .env", "{ echo M=org/m; } > .env"],
)
def test_a_file_that_a_block_writes_is_not_certain(text):
    with pytest.raises(UsageError, match=r"\.env contains is not certain"):
        convert(f"{text}\nsource .env\nvllm serve ${{M:-org/z}}", "x.sh")


def test_what_cannot_be_parsed_is_told_or_refused_within_bash_c_too():
    text = "docker run i:1 bash -c '\n{ ((A=1 %s; A=2 make ); make all); }\nvllm serve org/m'"
    assert "line 1, which cannot be parsed as shell text" in convert(text % "make", "x.sh").notes
    with pytest.raises(UsageError, match=r"x\.sh:1: cannot be parsed"):
        convert(text % "vllm serve org/q", "x.sh")
