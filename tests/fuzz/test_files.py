"""A foreign file with any content is reported with its problems: no bug, no hang."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.errors import SparkclusterError
from sparkcluster.fit import headers

from . import spoil
from .conftest import cases

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {
    "inventory": sorted(ROOT.glob("inventory/*.yaml")),
    "playbook": sorted(ROOT.glob("playbooks/**/*.yaml")),
    "recipe": sorted(path for path in ROOT.glob("tests/data/recipes/**/*.*") if ".expected." not in path.name),
}
WORDS = (
    "", "- ", ": ", "{", "}", "[", "]", "&a ", "*a", "<<: *a", "!!python/object/apply:os.system [id]", "|", ">", "'", '"', "\\",
    "$(id)", "`id`", "${X:-${X}}", "<<EOF", "\t", "\0", "\x1b]52;c;aGk=\x07", "\u202e", "\ufeff", "null", "~", "-1", "1e999", "0x10",
    "9" * 400, "x" * 5000, "[" * 200, "{a: " * 200, "../" * 40, "--privileged", "-v /:/host", "2001-01-01", "yes", "%", "@",
)  # fmt: skip


def edited(chance: Random, text: str) -> str:
    """``text`` with a careless or hostile edit."""
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        text = _edited_once(chance, text)
    return text


def _edited_once(chance: Random, text: str) -> str:
    lines = text.split("\n")
    at, where, word = chance.randrange(len(lines)), chance.randrange(len(text) + 1), chance.choice(WORDS)
    words = lines[at].split(" ")
    words[chance.randrange(len(words))] = word
    ways = (
        lambda: text[:where] + word + text[where:],
        lambda: text[:where],
        lambda: "\n".join([*lines[:at], " ".join(words), *lines[at + 1 :]]),
        lambda: "\n".join(lines[:at] + lines[at + 1 :]),
        lambda: "\n".join([*lines[:at], *[lines[at]] * chance.choice((2, 300)), *lines[at:]]),
        lambda: "\n".join([*lines[:at], " " * chance.randrange(9) + lines[at], *lines[at + 1 :]]),
        lambda: "\n".join(chance.sample(lines, len(lines))),
    )
    return chance.choice(ways)()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("inventory", "lint"), ("inventory", "plan"), ("playbook", "lint"), ("recipe", "import"), ("playbook", "import")],
)
@cases(20, 300)
@given(seed=st.integers(0, 2**48))
def test_a_command_survives_any_file(
    attacked: Any, tmp_path_factory: pytest.TempPathFactory, kind: str, words: str, seed: int
) -> None:
    chance = Random(seed)
    origin = chance.choice(TEXTS[kind])
    text = edited(chance, origin.read_text("utf-8"))
    path = tmp_path_factory.getbasetemp() / f"spoilt{origin.suffix}"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if chance.random() > 0.02 else chance.randbytes(300))
    code, output = attacked.command([words, str(path)], lambda *_: [])
    if attacked.internal:
        raise AssertionError(f"internal error, seed {seed}") from attacked.internal[0]
    assert code in {0, 1, 2}, output


@cases(150, 4000)
@given(seed=st.integers(0, 2**48))
def test_any_safetensors_file_gives_tensors_or_a_single_error(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = Random(seed)
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
        "b": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [64, 72]},
    }
    text = spoil.line(chance, header)
    length = chance.choice((len(text), len(text), len(text), len(text) + 1, 0, 10**8, 2**63, chance.randrange(200)))
    content = struct.pack("<Q", length) + text + bytes(72)
    folder = tmp_path_factory.getbasetemp() / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(
        spoil.line(chance, {"model_type": "llama"}) if chance.random() < 0.2 else b"{}"
    )
    (folder / "model.safetensors").write_bytes(content[: chance.choice((None, None, None, 4, 8, 40))])
    with contextlib.suppress(SparkclusterError):
        headers.from_path(folder)
