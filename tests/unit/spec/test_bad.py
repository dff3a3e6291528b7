"""Bad input: for each YAML file in bad/, what a user is told stands beside it in a text file.

After a change of words, ``PYTHONPATH=. python tests/unit/spec/test_bad.py`` writes what is told now; then read the
difference.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.spec import load

BAD = Path(__file__).parent / "bad"
PLAYBOOK = "name: serve\nmodel: {id: owner/model}\nimage: vllm/vllm-openai:v0.20.0\n"


def told(path: Path) -> str:
    """What the user reads about ``path``, with files named from here."""
    try:
        if path.name.startswith("playbook-") and path.stem != "playbook-path":
            load.load_playbook(path)
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
def test_messages(case: Path) -> None:
    text = told(case)
    assert text == case.with_suffix(".txt").read_text(encoding="utf-8")
    assert "donotshowme" not in text.lower().replace("-", ""), "a secret was repeated"
    assert "pydantic" not in text


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load.read(path)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value.message


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a pipe without a writer, which would block."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (load.MAX_BYTES + 1))
    for name, said in {
        "none.yaml": "no such file or directory",
        "a\x1bb.yaml": "a\\x1bb.yaml: no such file or directory",
        "pipe.yaml/inventory.yaml": "not a directory",
        "a\0b": "no file has such a name",
        ".": "is a directory",
        "pipe.yaml": "is not a regular file",
        "large.yaml": "is larger than 1024 KiB",
    }.items():
        assert refused(tmp_path / name).endswith(said)
    monkeypatch.setattr(load.os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert refused(tmp_path / "large.yaml").endswith("permission denied")


def test_a_missing_inventory_can_be_written_by_discover(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load.load(tmp_path / "my pair.yaml")
    assert (caught.value.hint or "").startswith(f"sparkcluster discover -o '{tmp_path}/my pair.yaml'   writes ")


def test_what_is_no_utf8_has_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"cluster: x\n# caf\xe9\n")
    assert refused(path).endswith("inventory.yaml:2:6: the file is not UTF-8")
    path.write_bytes(b"cluster: \0")
    assert "U+0000" in refused(path)
    path.write_bytes(b"\xef\xbb\xbf" + PLAYBOOK.encode())
    assert load.load_playbook(path).name == "serve", "the mark of UTF-8 is accepted"


@pytest.mark.parametrize("char", ["\x1b", "\x85", "\u202e", "\u2066", "\u200b", "\ufeff", "\u2028", "\U000e0041"])
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


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('cluster: "a\\e]52;c;x\\a"', "1:10: cluster: contains U+001B control character"),
        ('cluster: "a\\u202e"', "1:10: cluster: contains U+202E RIGHT-TO-LEFT OVERRIDE"),
        ('"clu\\u200bster": a', "1:1: a key contains U+200B ZERO WIDTH SPACE"),
    ],
)
def test_hidden_characters_are_refused_as_escapes_of_yaml(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    assert [str(problem).partition(":")[2] for problem in load.read(path).problems] == [where]


def test_joiners_of_persian_and_of_emoji_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "playbook.yaml"
    text = "\ndescription: '\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f4bb'\n"
    path.write_text(PLAYBOOK + text, encoding="utf-8")
    assert load.load_playbook(path).name == "serve"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)),
        f"a: &a {'x' * 900_000}\nb: [{'*a,' * 10_000}]",
        "[" * 500_000,
        "- x\n" * 250_000,
        "k: &" + "a" * 900_000 + " [*" + "a" * 100_000 + "]",
    ],
    ids=["billion-laughs", "long-text", "brackets", "many", "long-anchor"],
)
def test_yaml_bombs_are_refused_cheaply(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF)
    refused(path)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 100_000, "KiB"


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("id", None, "id does not exist", "ssh-keygen -t ed25519 -f {0}, then ssh-copy-id -i {0} USER@HOST"),
        ("id.pub", "ssh-rsa AAAAB3Nz me@here\n", None, None),  # an agent may have its private key
        ("id.ppk", "PuTTY-User-Key-File-3: ssh-ed25519\n", "id.ppk has the format of PuTTY", "puttygen {0} -O"),
        ("id", "-----BEGIN RSA PRIVATE KEY-----\n", None, None),
    ],
)
def test_what_is_no_private_key_is_told_before_any_connection(
    name: str, content: str | None, message: str | None, hint: str, tmp_path: Path
) -> None:
    key = tmp_path / name
    if content is not None:
        key.write_text(content)
    (tmp_path / "serve.yaml").write_text(PLAYBOOK)
    path = tmp_path / "inventory.yaml"
    path.write_text(f"cluster: x\nplaybook: serve\nnodes:\n  - host: a\n    ssh: {{identity: '{key}'}}\n")
    if message is None:
        load.load(path)
        return
    with pytest.raises(SpecError) as caught:
        load.load(path)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == ("nodes[0].ssh.identity", 5)
    assert problem.message.endswith(message)
    assert (problem.hint or "").startswith(hint.format(key))


if __name__ == "__main__":
    for one in sorted(BAD.glob("*.yaml")):
        one.with_suffix(".txt").write_text(told(one), encoding="utf-8")
