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
    assert "do-not-show-me" not in text.lower(), "a secret was repeated"
    assert "donotshowme" not in text.lower(), "a secret was repeated"
    assert "pydantic" not in text
    assert "http" not in text


def test_problems_are_sorted_by_line() -> None:
    with pytest.raises(SpecError) as caught:
        load.load(BAD / "several-at-once.yaml")
    places = [(problem.line, problem.column) for problem in caught.value.problems]
    assert places == sorted(places)
    assert len(places) >= 8
    assert caught.value.exit_code == 2
    assert caught.value.as_json()["error"]["problems"][0]["path"] == "cluster"


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load.read(path)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value.message


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.yaml").endswith("none.yaml: no such file")
    assert refused(tmp_path / "a\x1bb.yaml").endswith("a\\x1bb.yaml: no such file")
    assert refused(Path("a\0b")).endswith("is not a file name")


def test_a_missing_inventory_can_be_written_by_discover(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load.load(tmp_path / "my pair.yaml")
    assert (caught.value.hint or "").startswith(f"sparkcluster discover -o '{tmp_path}/my pair.yaml'   writes ")


def test_file_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert refused(tmp_path / "file" / "inventory.yaml").endswith("no such file")


def test_directory(tmp_path: Path) -> None:
    assert refused(tmp_path).endswith("is a directory")


def test_a_pipe_without_a_writer_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert refused(tmp_path / "pipe.yaml").endswith("is not a regular file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("cluster: x")
    path.chmod(0)
    assert refused(path).endswith("permission denied")


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(load.os, "open", denied)
    assert refused(tmp_path / "inventory.yaml").endswith("permission denied")


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_bytes(b"#" * (load.MAX_BYTES + 1))
    assert "larger than 1024 KiB" in refused(path)


def test_not_utf8_has_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"cluster: x\n# caf\xe9\n")
    assert refused(path).endswith("inventory.yaml:2:6: the file is not UTF-8")


def test_utf16_and_nul(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes("cluster: x".encode("utf-16"))
    assert "not UTF-8" in refused(path)
    path.write_bytes(b"cluster: \0")
    assert "U+0000" in refused(path)


HIDDEN = [
    "\x1b",
    "\x7f",
    "\x9b",
    "\x85",
    "\u202e",
    "\u2066",
    "\u200e",
    "\u061c",
    "\u200b",
    "\ufeff",
    "\u2028",
    "\U000e0041",
]


@pytest.mark.parametrize("char", HIDDEN)
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cluster: a\n# co{}mment\n", "2:5"),
        ("cluster: b{}c\n", "1:11"),
        ("clu{}ster: a\n", "1:4"),
        ("a: 'b\n\n  c{}'\n", "3:4"),
    ],
)
def test_hidden_characters_are_refused_anywhere(tmp_path: Path, char: str, text: str, place: str) -> None:
    """In a comment, a value, a key, a text of several lines: a file is what it shows."""
    path = tmp_path / "inventory.yaml"
    path.write_bytes(text.replace("{}", char).encode())
    assert f":{place}: unexpected character U+{ord(char):04X} " in refused(path)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('cluster: "a\\e]52;c;x\\a"', "1:10: cluster: contains U+001B control character"),
        ('cluster: "a\\u202e"', "1:10: cluster: contains U+202E RIGHT-TO-LEFT OVERRIDE"),
        ('"clu\\u200bster": a', "1:1: a key contains U+200B ZERO WIDTH SPACE"),
        ('"a\\n": a', "1:1: a key contains U+000A control character"),
        ('cluster: "\\x9b2J"', "1:10: cluster: contains U+009B control character"),
    ],
)
def test_hidden_characters_are_refused_as_escapes_of_yaml(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    assert [str(problem).partition(":")[2] for problem in load.read(path).problems] == [where]


def test_joiners_of_persian_and_of_emoji_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "playbook.yaml"
    path.write_text(
        PLAYBOOK + "\ndescription: '\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f4bb'\n", encoding="utf-8"
    )
    assert load.load_playbook(path).name == "serve"


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "playbook.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + PLAYBOOK.encode())
    assert load.load_playbook(path).name == "serve"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)),
        "[" * 500_000,
        "- " * 400_000,
        "a: " + "{b: " * 200_000,
        "- x\n" * 250_000,
        "? " * 400_000,
        "k: &" + "a" * 900_000 + " [*" + "a" * 100_000 + "]",
    ],
    ids=["billion-laughs", "brackets", "dashes", "braces", "many", "question-marks", "long-anchor"],
)
def test_yaml_bombs_are_refused_cheaply(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF)
    refused(path)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 3
    assert after.ru_maxrss - before.ru_maxrss < 100_000, "KiB"


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("id", None, "id does not exist", "ssh-keygen -t ed25519 -f {0}, then ssh-copy-id -i {0} USER@HOST"),
        ("id.pub", "ssh-rsa AAAAB3Nz me@here\n", None, None),  # an agent may have its private key
        ("id_rsa", "ssh-rsa AAAAB3Nz\n", "id_rsa is a public key", "give its private key"),
        ("id.ppk", "PuTTY-User-Key-File-3: ssh-ed25519\n", "id.ppk has the format of PuTTY", "puttygen {0} -O"),
        ("id", "-----BEGIN RSA PRIVATE KEY-----\n", None, None),
        ("", None, " is a directory", "give the private key in it"),
    ],
)
def test_what_is_no_private_key_is_told_before_any_connection(
    name: str, content: str | None, message: str | None, hint: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    key = keys / name
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
