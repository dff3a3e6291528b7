"""Shell text as words: what a real shell makes of it, where it needs to run nothing."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sparkcluster.recipes import shell

SHELL = shutil.which("bash")


def words(text, **variables):
    return shell.parse(text, variables).commands


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\"", [["a", "b c", "d e"]]),
        ("a b\\\nc", [["a", "b", "c"]]),
        ("a \\\n b \\  \n c", [["a", "b", "c"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a x#y", [["a", "x#y"]]),
        ("a;b&&c||d|e&", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a > x 2>&1 >> 'y z' b", [["a", "b"]]),
        ("a '$X' \"$X\" $X ${X}y", [["a", "$X", "v w", "v", "w", "v", "wy"]]),
        ("a ${Y:-d} ${Y-d} ${X:-d}", [["a", "d", "d", "v", "w"]]),
        ('a ${Y:-$X/z} "${Y:-${Z:-$X}}"', [["a", "v", "w/z", "v w"]]),
        (
            "L=(--a 'b c' # d)\n --e)\nL+=(f)\nx \"${L[@]}\" y ${L[*]}",
            [["x", "--a", "b c", "--e", "f", "y", "--a", "b", "c", "--e", "f"]],
        ),
        ("L=(A=1 B='2 3')\nx \"${L[@]}\"", [["x", "A=1", "B=2 3"]]),
        ('L=()\nx "${L[@]}" "$@" y', [["x", "y"]]),
        ("HOME_=/h\na ${U:-$HOME_/c}:/d", [["a", "/h/c:/d"]]),
        ('a "\\"\\$X\\\\"', [["a", '"$X\\']]),
        ("A=1 B='2 3'\nc $A \"$B\"", [["c", "1", "2 3"]]),
        ("a '' \"\"", [["a", "", ""]]),
        ("cat <<'END'\nx y\nEND\nb", [["cat"], ["b"]]),
    ],
)
def test_words(text, commands):
    assert words(text, X="v w") == commands


def test_what_would_have_to_be_run_is_unknown():
    (command,) = words("a $(id -u):`id -g` $UNSET $1")
    assert shell.unknown(command[1]) == ["id -u", "id -g"]
    assert shell.plain(command[1]) == "$(id -u):$(id -g)"
    assert shell.unknown(command[2]) == ["UNSET"]


def test_a_variable_made_of_unknowns_is_unknown():
    (command,) = words("K=$(openssl rand -hex 32)\na $K")
    assert shell.plain(command[1]) == "$K"


@pytest.mark.skipif(SHELL is None, reason="no bash to compare with")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab \\'\"$#;&|<>~*=\t-äß{}", max_size=6), min_size=1, max_size=4))
def test_what_shlex_quotes_reads_back(parts):
    import shlex

    # the grammar takes a bare `==` at the end for an error, which is reported
    assume("==" not in parts)
    assert words("x " + shlex.join(parts)) == [["x", *parts]]


@pytest.mark.skipif(SHELL is None, reason="no bash to compare with")
@pytest.mark.parametrize(
    "text",
    [
        r"""printf '%s\n' a\ b "c d"'e'f "g\"h" 'i'\''j'""",
        'X="1 2"; printf "%s\\n" $X "$X" "${X}3" ${Y:-z} "${Y:-z z}"',
        "printf '%s\\n' --a={\\\"b\\\":1} '{\"c\": [1, 2]}'",
    ],
)
def test_as_bash_reads_it(text):
    done = subprocess.run([SHELL, "-c", text], capture_output=True, text=True, check=True)
    command = next(command for command in words(text) if command[0] == "printf")
    assert command[2:] == done.stdout.splitlines()
