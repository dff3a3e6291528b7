"""``sparkcluster checks``: the catalogue, a page by its code, and a hint for an unknown code."""

from __future__ import annotations

import json

import pytest

from sparkcluster.checks.catalogue import pages
from sparkcluster.checks.check import CATALOGUE, UNREAD
from sparkcluster.cli.main import guarded
from sparkcluster.errors import HostError


def test_every_code_has_a_page_and_a_list_entry(capsys):
    codes = [error.code for error in HostError.__subclasses__() if "code" in vars(error)]
    assert {*CATALOGUE, *codes, HostError.code, UNREAD, "SPEC-001", "SPEC-002"} <= set(pages())
    assert guarded(["checks", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["checks"]
    assert [one["code"] for one in listed] == list(pages())
    assert all(one["title"] and one["why"] and one["severity"] for one in listed)
    assert guarded(["checks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:] if line[0] != " "] == list(pages())


def test_every_page_is_found_regardless_of_the_case_of_its_code(capsys):
    for code in pages():
        assert guarded(["checks", code.lower()]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"{code}  ")
        assert text.count("\nwhy  ") == 1


@pytest.mark.parametrize(("typed", "hint"), [("NET-06", "did you mean NET-006?"), ("\x1b[2J", ""), ("x" * 500, "")])
def test_an_unknown_code_is_a_usage_error_with_the_nearest(typed, hint, capsys):
    assert guarded(["checks", typed]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: unknown check")
    assert hint in told
    assert "\x1b" not in told
