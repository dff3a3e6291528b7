"""Bad input: for each YAML file in bad/, the expected message is in a text file next to it.

After a change of messages, ``PYTHONPATH=. python tests/unit/spec/test_bad.py`` rewrites the text files; read the diff.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.spec import load

ROOT = Path(__file__).resolve().parents[3]
BAD = Path(__file__).parent / "bad"
PLAYBOOK = "name: serve\nmodel: {id: owner/model}\nimage: vllm/vllm-openai:v0.20.0\n"


def messages_for(path: Path) -> str:
    """The error text for ``path``, with file names relative to this directory."""
    try:
        if path.name.startswith("playbook-") and path.stem != "playbook-path":
            load.read_playbook(path)[0]
        else:
            load.load(path)
    except SpecError as error:
        lines = []
        for problem in error.problems:
            lines.append(str(problem))
            lines += [f"    hint: {problem.hint}"] if problem.hint else []
        return "\n".join(lines).replace(f"{BAD.parent}/", "") + "\n"
    return "nothing\n"


@pytest.mark.parametrize("case", sorted(BAD.glob("*.yaml")), ids=lambda path: path.stem)
def test_messages_for_bad_files(case: Path) -> None:
    text = messages_for(case)
    assert text == case.with_suffix(".txt").read_text(encoding="utf-8")
    assert "donotshowme" not in text.lower().replace("-", ""), "a secret was repeated"
    assert "pydantic" not in text


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load.read(path)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value.message


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a pipe without a writer, which would block."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (load.MAX_BYTES + 1))
    for name, said in {
        "none.yaml": "no such file or directory",
        "a\x1bb.yaml": "a\\x1bb.yaml: no such file or directory",
        "pipe.yaml/inventory.yaml": "not a directory",
        "a\0b": "not a valid file name",
        ".": "is a directory",
        "pipe.yaml": "is not a regular file",
        "large.yaml": "is larger than 1024 KiB",
    }.items():
        assert refused(tmp_path / name).endswith(said)
    monkeypatch.setattr(load.os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert refused(tmp_path / "large.yaml").endswith("permission denied")


def test_invalid_utf8_is_reported_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"cluster: x\n# caf\xe9\n")
    assert refused(path).endswith("inventory.yaml:2:6: the file is not UTF-8")
    path.write_bytes(b"cluster: \0")
    assert "U+0000" in refused(path)
    # The mark of UTF-8, and joiners of Persian and of emoji, are accepted.
    text = PLAYBOOK + "description: '\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f4bb'\n"
    path.write_text(text, encoding="utf-8-sig")
    assert load.read_playbook(path)[0].name == "serve"


@pytest.mark.parametrize(
    "char",
    [
        "\x1b",
        "\x85",
        "\u202e",
        "\u2066",
        "\u200b",
        "\ufeff",
        "\u2028",
        "\U000e0041",
        "\u3164",
        "\u034f",
        "\ufe01",
        "\u115f",
    ],
)
def test_hidden_characters_are_refused_anywhere(tmp_path: Path, char: str) -> None:
    """In a comment, a value, a key, a text of several lines: a file is what it shows."""
    path = tmp_path / "inventory.yaml"
    for text, place in {
        "cluster: a\n# co{}mment\n": "2:5",
        "cluster: b{}c\n": "1:11",
        "clu{}ster: a\n": "1:4",
        "a: 'b\n\n  c{}'\n": "3:4",
    }.items():
        path.write_bytes(text.replace("{}", char).encode())
        assert f":{place}: unexpected character U+{ord(char):04X} " in refused(path)


def test_hidden_characters_as_yaml_escapes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    for text, where in {
        'cluster: "a\\e]52;c;x\\a"': "1:10: cluster: contains U+001B control character",
        'cluster: "a\\u202e"': "1:10: cluster: contains U+202E RIGHT-TO-LEFT OVERRIDE",
        '"clu\\u200bster": a': "1:1: a key contains U+200B ZERO WIDTH SPACE",
    }.items():
        path.write_text(text)
        assert [str(problem).partition(":")[2] for problem in load.read(path).problems] == [where]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)),
        f"a: &a {'x' * 900_000}\nb: [{'*a,' * 10_000}]",
        "[" * 500_000,
        "- x\n" * 70_000,
    ],
    ids=["billion-laughs", "long-text", "brackets", "many"],
)
def test_yaml_bombs_are_refused_quickly(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF)
    refused(path)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 100_000, "KiB"


def test_an_invalid_private_key_is_reported_before_any_connection(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(PLAYBOOK)
    path, key = tmp_path / "inventory.yaml", tmp_path / "id"
    path.write_text(f"cluster: x\nplaybook: serve\nnodes:\n  - host: a\n    ssh: {{identity: '{key}'}}\n")
    for content, hint in ((None, "ssh-keygen -t ed25519 -f "), ("PuTTY-User-Key-File-3: ssh-ed25519\n", "puttygen ")):
        if content is not None:
            key.write_text(content)
        with pytest.raises(SpecError) as caught:
            load.load(path)
        (problem,) = caught.value.problems
        assert (problem.path, problem.line) == ("nodes[0].ssh.identity", 5)
        assert (problem.hint or "").startswith(f"{hint}{key}")
    key.write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    load.load(path)


EXAMPLES = [path.read_text("utf-8") for each in ("inventory/*.yaml", "playbooks/**/*.yaml") for path in ROOT.glob(each)]
PIECES = '[a, {b: 1}];{x: [[1]]};~;yes;.5;1e400;22:22;0o7;&a [*a];!!python/x;\';"\\0";- ;#;~/x;99999999999999999999;::;*a;a b;'
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def either(path: Path, text: str) -> None:
    """Whatever a file holds, a user gets problems or a spec: never another exception, and never one without a place."""
    path.write_text(text, encoding="utf-8")
    for read in (load.load, load.read_playbook):
        try:
            read(path)
        except SpecError as error:
            messages_for = [f"{each} {each.hint}" if min(each.line, each.column) else "\n" for each in error.problems]
        except UsageError as error:
            messages_for = [error.message]
        else:
            continue
        assert messages_for
        assert all(each.isprintable() and len(each) < 1500 for each in messages_for), messages_for


@FUZZ
@given(st.text(st.sampled_from(list("ab: -[]{}\"'\n\t#&*!|>%@`,?0~<.\\é\x85\u2028\ufffe")), max_size=120))
def test_random_characters_with_a_yaml_meaning(tmp_path: Path, text: str) -> None:
    either(tmp_path / "inventory.yaml", text)


@FUZZ
@given(st.data())
def test_an_example_with_one_value_replaced(tmp_path: Path, data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(EXAMPLES)).splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = f"{lines[at].partition(':')[0]}: {data.draw(st.sampled_from(PIECES.split(';')))}"
    either(tmp_path / "inventory.yaml", "\n".join(lines))


if __name__ == "__main__":
    for one in sorted(BAD.glob("*.yaml")):
        one.with_suffix(".txt").write_text(messages_for(one), encoding="utf-8")
