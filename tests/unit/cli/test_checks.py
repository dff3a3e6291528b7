"""``sparkcluster checks``: the catalogue within 80 columns, a page by its code, and a hint for one that is not there."""

from __future__ import annotations

import json

import pytest

from sparkcluster.checks.pages import pages
from sparkcluster.checks.registry import CATALOGUE, UNREAD
from sparkcluster.cli import checks
from sparkcluster.cli.main import guarded
from sparkcluster.cli.parser import Parser
from sparkcluster.errors import HostError, UsageError


def run(*words):
    parser = Parser(prog="sparkcluster checks")
    checks.add_arguments(parser)
    return checks.run(parser.read(words))


def test_every_code_has_a_page(capsys):
    codes = [error.code for error in HostError.__subclasses__() if "code" in vars(error)]
    assert len(set(codes)) == 10
    assert {*CATALOGUE, *codes, HostError.code, UNREAD, "SPEC-001", "SPEC-002"} <= set(pages())
    assert run("--json") == 0
    listed = json.loads(capsys.readouterr().out)["checks"]
    assert [one["code"] for one in listed] == list(pages())
    assert all(one["title"] and one["why"] and one["severity"] for one in listed)


def test_the_table_fits_80_columns_and_has_every_code(capsys):
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:] if line[0] != " "] == list(pages())


@pytest.mark.parametrize("typed", ["NET-006", "net-006", " Net-006 "])
def test_a_page_says_why_and_what_mends_it(typed, capsys):
    assert run("--explain", typed) == 0
    text = capsys.readouterr().out
    assert text.startswith("NET-006  The MTU is the same on every node of a rail\n")
    assert "why:      The first collective deadlocks" in text
    assert "remedy:   sudo ip link set INTERFACE mtu MTU" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("code", list(pages()))
def test_every_page_fits_80_columns(code, capsys):
    assert run("--explain", code) == 0
    text = capsys.readouterr().out
    assert text.count("\nwhy: ") == 1
    assert all(len(line) <= 80 for line in text.splitlines()[1:])


def test_the_page_of_one_code_as_json(capsys):
    assert run("--explain", "NET-003", "--json") == 0
    (page,) = json.loads(capsys.readouterr().out)["checks"]
    assert (page["code"], page["needs"], page["stage"]) == ("NET-003", ["hcas"], "facts")


def test_an_unknown_code_names_the_nearest():
    with pytest.raises(UsageError, match="unknown check NET-06") as failure:
        run("--explain", "NET-06")
    assert failure.value.hint is not None
    assert failure.value.hint.startswith("did you mean NET-006?")


@pytest.mark.parametrize("typed", ["", "\x1b[2J", "x" * 500, "NET"])
def test_nonsense_is_wrong_usage_without_a_traceback(typed, capsys):
    assert guarded(["checks", "--explain", typed]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: unknown check")
    assert "\x1b" not in told
    assert len(told.splitlines()) == 2
