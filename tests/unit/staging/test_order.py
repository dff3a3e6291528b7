"""The documents between the controller and a worker."""

from __future__ import annotations

import json

import pytest

from sparkcluster.answers import checked
from sparkcluster.errors import CommandFailed
from sparkcluster.staging.order import Begin, Dial, Look, Order, Said, Source, files_lines, files_path, key

TOKEN = "ab" * 16


def test_an_order_has_no_more_than_what_was_set():
    dial = Dial(address="10.1.0.11", port=4711, token=TOKEN)
    order = Order(sources=(Source(node="a", ways=(dial,)),))
    assert json.loads(order.line()) == {
        "from": [{"node": "a", "ways": [{"address": "10.1.0.11", "port": 4711, "token": TOKEN}]}]
    }
    look = Order(look=(Look(node="a", address="10.1.0.11", port=4711, token=TOKEN),))
    assert json.loads(look.line())["look"][0]["node"] == "a"
    assert Order(end=True).line() == b'{"end":true}\n'
    assert Order(sources=()).line() == b'{"from":[]}\n'  # nobody is left: not the same as no word of it


def test_what_a_worker_says_is_typed():
    said = checked(
        Said,
        {"bytes": 5, "total": 9, "from": "a", "left": [{"node": "b", "why": "no data for 5 s", "offset": 3}],
         "wrong": [{"file": 3, "from": "a", "sha256": "0" * 64}], "served": {"c": 5}},
        node="d", step="stage",
    )  # fmt: skip
    assert (said.source, said.left[0].node, said.wrong[0].source) == ("a", "b", "a")


@pytest.mark.parametrize(
    "answer",
    [
        {"ports": {"10.1.0.11": 70_000}},
        {"ports": {"nowhere; rm": 70}},
        {"bytes": -1},
        {"done": {"seconds": float("inf")}},
        {"sha256": {"1": "x"}},
        {"sha256": {"-1": "0" * 64}},
        {"cert": "-----BEGIN CERTIFICATE-----\nhello, world\n"},
        {"token": "short"},
        {"sha256": {"01": "0" * 64}},
        {"left": [{"node": "b", "why": "no data"}] * 33},
        {"wrong": [{"file": 3, "from": "a", "sha256": "0" * 64}] * 33},
        {"kept": ["/home/a/x.replaced"] * 33},
    ],
)
def test_what_no_worker_says_is_the_error_of_that_node(answer):
    with pytest.raises(CommandFailed, match=r"^d sent a malformed answer to stage"):
        checked(Said, answer, node="d", step="stage")


def test_a_job_has_the_same_key_on_every_run_and_a_list_of_one_line_for_each_file():
    assert key("files", "/w") == key("files", "/w") != key("image", "/w")
    assert files_path("~/.sparkcluster", "atlas", "0" * 16) == (
        "~/.sparkcluster/clusters/atlas/staging/0000000000000000/files.jsonl"
    )
    file = {"path": "a\nb", "size": 3, "mtime": 7, "sha256": None, "links": ["x"], "more": 1}
    lines = files_lines([file, file]).splitlines()
    assert json.loads(lines[1]) == {"path": "a\nb", "size": 3, "mtime": 7, "sha256": None, "links": ["x"]}
    assert len(lines) == 2


def test_a_worker_begins_with_what_it_listens_on():
    begin = Begin(node="a", key="0" * 16, listen=({"address": "10.1.0.11"},), token=TOKEN).model_dump(exclude_none=True)
    assert begin == {
        "do": "begin", "what": "files", "node": "a", "key": "0" * 16, "token": TOKEN,
        "listen": ({"address": "10.1.0.11", "tls": False},),
    }  # fmt: skip
