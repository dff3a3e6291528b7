"""``ask`` at the keyboard and in a pipe: which words and which input become the prompt."""

from __future__ import annotations

import io
import sys

import pytest

from sparkcluster.cli import common
from sparkcluster.cli.main import guarded
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet

ANSWER = [
    {"reasoning": "hm"},
    {"text": "Hi"},
    {"done": {"content": "Hi", "finish_reason": "length", "usage": {"completion_tokens": 2048}, "total_s": 0.2}},
]


@pytest.fixture
def asked(world, monkeypatch):
    """``asked(*words, stdin=…)``: exit code of ``ask`` and the messages that reached the endpoint."""

    def run(*words, stdin=""):
        site = world()
        plan = site.plan(3)
        site.run(plan).record(plan, 3)
        hosts = {
            name: FakeHost(name).program("probe", facts.model_dump(mode="json")).program("ask", ANSWER)
            for name, facts in site.facts.items()
        }
        monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet(hosts))
        monkeypatch.setattr(common, "load_spec", lambda _: site.spec)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode("utf-8", "surrogateescape"))))
        code = guarded(["ask", "x.yaml", *words])
        return code, [request["messages"] for name, request in hosts["alpha"].requests if name == "ask"]

    return run


@pytest.mark.parametrize(
    ("words", "stdin", "prompt"),
    [
        (["why", "is", "it", "blue?"], "unread", "why is it blue?"),
        ([], "from\nstdin\n", "from\nstdin"),
        (["explain", "this:", "-"], "a\nb\n", "explain this: a\nb"),
        ([], "a\udcffb", "a�b"),
    ],
)
def test_words_are_joined_and_a_dash_inserts_standard_input(asked, capsys, words, stdin, prompt):
    assert asked(*words, stdin=stdin) == (0, [[{"role": "user", "content": prompt}]])
    told = capsys.readouterr()
    assert told.out == "Hi\n"
    assert "--max-tokens" in told.err


@pytest.mark.parametrize(("words", "stdin"), [([" "], ""), ([], "")])
def test_an_empty_prompt_is_a_usage_error(asked, capsys, words, stdin):
    assert asked(*words, stdin=stdin) == (2, [])
    assert "PROMPT" in capsys.readouterr().err
