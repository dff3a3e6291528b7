"""``--save`` writes the chosen options into the inventory, and leaves every other byte unchanged."""

from __future__ import annotations

import pytest

from sparkcluster.cli.saved import select
from sparkcluster.spec import assignments, powers
from sparkcluster.spec.load import load

HEAD = "# mine\ncluster: c\nnodes:\n  - host: 192.168.1.11   # left\nplaybook: gpt-oss-120b   # fits one\n"
TAIL = "\napi:\n  port: 8000   # free\n"
OF = {"playbook": "gpt-oss-120b"}
MAX = "args.max-model-len"


@pytest.mark.parametrize(
    ("before", "selection", "after"),
    [
        ("", {**OF, "image": "own:1"}, "image: own:1\n"),
        ("image: own:1   # mine\n", {**OF, "image": "own:2"}, "image: own:2   # mine\n"),
        ("image: own:1   # mine\n", OF, ""),
        ("", {**OF, MAX: 8192}, f"set:\n  {MAX}: 8192\n"),
        (
            f"set:   # ours\n  {MAX}: 1   # small\n  env.A: b\n",
            {**OF, MAX: 2, "env.C": "1"},
            f'set:   # ours\n  {MAX}: 2   # small\n  env.C: "1"\n',
        ),
        (f"set: {{{MAX}: 1}}\n", OF, ""),
    ],
)
def test_every_other_byte_is_unchanged(tmp_path, before, selection, after):
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD + before + TAIL)
    select(file, selection)
    assert file.read_text() == HEAD + after + TAIL
    assert load(file).selected == selection


def test_another_playbook_keeps_the_trailing_comment(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD + "image: own:1\n")
    select(file, {"playbook": "gpt-oss-20b"})
    assert file.read_text() == HEAD.replace("gpt-oss-120b", "gpt-oss-20b")


def test_consent_given_to_flags_also_covers_the_lines_that_save_writes(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD)
    flags = assignments.Assignments([assignments.read("env.LD_PRELOAD=/x")])
    chosen = load(file, set_=flags)
    select(file, chosen.selected)
    assert "LD_PRELOAD" in file.read_text()
    assert powers.digest(load(file)) == powers.digest(chosen)
