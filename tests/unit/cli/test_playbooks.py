"""``playbooks``: the list, and the page of one."""

from __future__ import annotations

import pytest

from sparkcluster.cli.main import guarded


@pytest.fixture
def printed(capsys):
    """``printed(*words)``: stdout and stderr of `playbooks`."""

    def run(*words):
        assert guarded(["playbooks", *words]) == 0
        return capsys.readouterr()

    return run


def test_one_shows_what_it_is_and_what_to_type(printed):
    shown = printed("openai/gpt-oss-120b")
    assert "weights   65.3 GB\n" in shown.out
    assert shown.err.endswith("next: sparkcluster up INVENTORY --playbook openai/gpt-oss-120b\n")


def test_the_list_has_one_line_for_each(printed):
    for words in ((), ("--all",)):
        shown = printed(*words)
        assert "gpt-oss-120b" in shown.out
        assert max(map(len, shown.out.splitlines())) <= 80
    assert "tiny-llama-cpu" in shown.out
