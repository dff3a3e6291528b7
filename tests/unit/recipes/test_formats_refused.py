"""Compose files, units and pages that are broken or leave something open, each with one clear error; and quoting."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.cli.main import main
from sparkcluster.errors import UsageError
from sparkcluster.recipes import compose_text, convert, defines, unit_file
from sparkcluster.recipes.choices import Choices
from tests.unit.recipes.test_formats import DATA

COMPOSE = "services:\n  vllm:\n    image: vllm/vllm-openai:v1\n    "


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        # What a reader takes for a shell's, and Compose does not.
        (COMPOSE + "command: pip install x && vllm serve org/m", "x:4: services.vllm.command has an unquoted &, from", "as a list"),
        (COMPOSE + "command: --model <MODEL>", "x:4: services.vllm.command has an unquoted <, from", "quote it"),
        (COMPOSE + "command: |\n      --model org/m \\\n      --seed 1", "a backslash at the end of a line", "command: >"),
        (COMPOSE + "command: --model org/m --x '{", "a quote (') is not closed", "close it"),
        (COMPOSE + "command: --model $(cat m)", "a $ that begins no variable", "$$"),
        (COMPOSE + "command: --model ${M!x}", "a ${…} that Compose does not know", "$$"),
        (COMPOSE + "command: --model ${M:-x", "a ${ that is not closed", "close it"),
        (COMPOSE + "command: ['" + "${A:-" * 9 + "}" * 9 + "']", "nested deeper than 8", "write the value"),
        (COMPOSE + "command: {a: b}", "services.vllm.command must be text", ""),
        (COMPOSE + "environment: 3\n    command: org/m", "x:4: services.vllm.environment must be a mapping", ""),
        (COMPOSE + "environment: {A: 0777}\n    command: org/m", "A is a number that YAML parsers read differently", "quote it"),
        (COMPOSE + "extends: vllm", "services.vllm.extends extends itself", ""),
        (COMPOSE + "extends: other", "names the service other, which the file does not have", ""),
        (COMPOSE + "image: twice", "x:4:5: services.vllm.image: duplicate key", "keep one"),
        (COMPOSE + "entrypoint: []", "has an empty entrypoint and no command", "write command"),
        (COMPOSE + "\tcommand: x", "x:4:5: not valid YAML", "spaces"),
        (COMPOSE + "command: !reset null", "tags ('!…') are not supported", "quote"),
        (
            "x-c: &c\n  image: vllm/vllm-openai:v1\nservices:\n  a:\n    <<: *c\n    command: org/a $\n  b:\n    <<: *c\n    command: org/b\n",
            "several services that start an engine: a (cannot be read: x:6: services.a.command has", "service=a",
        ),
        ("services:\n  a:\n    <<: &c\n      image: vllm/vllm-openai:v1\n    command: org/a $\n", "x:5: services.a.command has a $", "$$"),
        ("services:\n  a:\n    image: vllm/vllm-openai:v1\n    profiles: [x]\n  b:\n    extends: a\n    command: org/a $\n", "x:7: services.b.command has a $", "$$"),
        (
            "services:\n  a:\n    image: vllm/vllm-openai:v1\n    <<: 3\n  b:\n    image: vllm/vllm-openai:v1\n    command: org/b\n",
            "several services that start an engine: a (cannot be read: x:4: services.a must", "service=a",
        ),
        ("services:\n", "has no service that starts an engine; its services: none", "import"),
        ("services: 3\n", "services must be a mapping", ""),
        ("services:\n  vllm: [a]\n", "its services: vllm (cannot be read: ", "import"),
        ("services:\n  a:\n    image: vllm/vllm-openai:${TAG}\n    command: org/m\n", "the image is vllm/vllm-openai:$TAG", "--define TAG=VALUE"),
        # systemd's own rules.
        ("[Service]\nExecStart=/bin/vllm serve 'org/m\n", "x:2: ExecStart= has a quote that is not closed", "close the quote"),
        ("[Service]\nExecStart=/bin/vllm serve org/m \\d\n", "or an escape that systemd does not know", "write \\\\"),
        ("[Service]\nExecStart=|/bin/vllm serve org/m\n", "x:2: ExecStart=| runs a shell", "without |"),
        ("[Service]\nExecStart=/bin/vllm serve org/m\njunk\n", "x:3: expected Key=value, found junk", "fix"),
        ("[Service]\nEnvironment=A B=1\nExecStart=/bin/x\n", "x:2: Environment= takes NAME=value, found A", "quote"),
        ("[Service]\nExecStart=-\n", "ExecStart= names no program", "write its path"),
        ("[Service]\nExecStart=\n", "has no ExecStart=", "import"),
        ("[Service]\nEnvironment=A=" + "x" * 999_999 + "\nExecStart=/bin/x" + " ${A}" * 99, "too long with its variables", "right file"),
        # Pages.
        ("# A\n\n```sh\n" + "```\n```sh\n" * 2001, "more than 2000 code blocks", "right file"),
        ("# A\n" + "\n" * 9_000 + "```sh\na=1\n```\n" * 999, "too many code blocks for its length", "right file"),
        ("# A\n\n```sh\nvllm serve $MODEL\n```\n", "x:4: block 1: the model is $MODEL", "--define MODEL=VALUE"),
        ("# A\n\n```yaml\n" + COMPOSE + "command: a && b\n```\n", "x:7: block 1: services.vllm.command", "list"),
    ],
)  # fmt: skip
def test_what_makes_no_playbook_is_refused(text, message, hint):
    with pytest.raises(UsageError) as caught:
        convert(text, "x")
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert "\ue000" not in f"{caught.value}{caught.value.hint}"


def test_a_script_that_writes_other_formats_stays_a_script():
    """A Compose file, a unit and a page in here-documents are no reason to read the script as such."""
    for inner in (COMPOSE, "[Service]\nExecStart=/bin/x\n", "# Page\n\n```sh\nvllm serve org/other\n```\n"):
        made = convert(f"cat > x <<'END'\n{inner}\nEND\nvllm serve org/m\n", "x.sh")
        assert made.document["model"] == {"id": "org/m"}


def test_the_command(tmp_path, capsys, monkeypatch):
    page = DATA / "markdown/two-models.md"
    with pytest.raises(UsageError, match="in 2 blocks") as caught:
        main(["import", str(page)])
    assert caught.value.exit_code == 2
    assert main(["import", str(page), "--block", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["playbook"]["model"] == {"id": "org/large-120b"}
    compose = DATA / "compose/interpolation.yaml"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(compose.read_bytes()), encoding="utf-8"))
    assert main(["import", "-", "--define", "MODEL=org/m", "--define", "SEQS=4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["playbook"]["args"]["max-num-seqs"] == 4
    with pytest.raises(UsageError, match=r"x\.sh has no blocks"):
        convert("vllm serve org/m", "x.sh", block=1)
    with pytest.raises(UsageError, match="does not ask for A"):
        convert("vllm serve org/m", "x.sh", defines={"A": "1"})


@pytest.mark.parametrize("written", [["MODEL"], ["=x"], ["-B=x"], ["A=1", "A=2"], ["A=x\x1b[2J"]])
def test_definitions_that_are_none(written):
    with pytest.raises(UsageError) as caught:
        defines(written)
    assert caught.value.message.isprintable()
    assert caught.value.hint


WORDS = st.lists(st.text("abnst '\"\\$%;&|<>(){}[]#`~*?!=,:\täß", max_size=8), max_size=5)


def quoted(word, *doubled):
    """A word in double quotes, by the rules that Compose and systemd have in common."""
    for char in ("\\", '"'):
        word = word.replace(char, f"\\{char}")
    for char in doubled:
        word = word.replace(char, char * 2)
    return f'"{word}"'


@settings(max_examples=200, deadline=None)
@given(WORDS)
def test_quoted_words_arrive_as_they_are(words):
    """Whatever is quoted by the rules of Compose or of systemd reaches the program unchanged."""
    line = " ".join(quoted(word, "$") for word in words)
    assert compose_text.words(compose_text.interpolated(line, {}.get)) == words

    started = []

    def script(text, *_):
        started.append(shlex.split(text))
        return {}, []

    line = " ".join(quoted(word, "$", "%") for word in words)
    unit_file.read(f"[Service]\nExecStart=/bin/x {line}\n", "x", [], Choices(script))
    assert started == [["/bin/x", *words]]


PIECES = (
    "${",
    "$$",
    "%i",
    "\\",
    "'",
    '"',
    "```\n",
    "\n",
    "\t",
    "<<: *x\n",
    "&a ",
    "*a",
    "- ",
    "{",
    "[",
    ":",
    "|",
    "$ ",
    "services:\n",
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_texts_with_damage_end_with_a_playbook_or_an_error(data):
    """A cut, a copied part or a stray character never ends in a traceback."""
    paths = sorted(path for path in DATA.glob("*/*") if ".expected." not in path.name)
    text = data.draw(st.sampled_from(paths)).read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 40)))
        text = text[:at] + data.draw(st.sampled_from(["", text[at:end] * 2, *PIECES])) + text[end:]
    with contextlib.suppress(UsageError):
        convert(text, "x")
