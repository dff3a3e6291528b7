"""Which playbooks there are, for how many Sparks, and which nodes have their weights."""

from __future__ import annotations

from sparkcluster.errors import HostTimeout
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import playbooks
from sparkcluster.spec import Inventory


def test_what_serves_on_so_many_sparks():
    """Ranks that come out, heads that can be shared, and memory that is there: 141 GB on two, not on one."""
    found = {each.playbook.name: each for each in playbooks.offers()}
    assert found["gpt-oss-120b"].sparks == (1, 2, 4, 8)
    assert found["gpt-oss-20b"].sparks == (1,)
    llama = found["llama-3.3-70b-instruct"]
    assert (llama.sparks, llama.weights) == ((2,), "141 GB")
    assert playbooks.offers(3) == []
    assert [found[name].speed for name in ("gpt-oss-120b", "qwen3.6-27b-nvfp4", "gpt-oss-20b")] == [
        "60/s",
        "~11/s",
        "-",
    ]


def test_of_each_model_the_short_list_has_one():
    found = {each.playbook.name for each in playbooks.one_of_each(playbooks.offers())}
    assert {"qwen3.6-35b-a3b-nvfp4", "gpt-oss-20b"} <= found
    assert not {"qwen3.6-35b-a3b-256k", "nemotron-3-nano-30b-a3b-32gb", "tiny-llama-cpu"} & found


REVISION = playbooks.offer("gpt-oss-120b").playbook.model.revision
WHOLE = {"repository": "openai/gpt-oss-120b", "path": "/m", "bytes": 65_300_000_000, "commits": ["f" * 40, REVISION]}
TINY = {"path": "/tiny", "bytes": 900_000, "asked": ["~/.cache/sparkcluster/models/tiny-llama"]}


def test_weights_count_where_revision_and_bytes_are_there():
    there = {
        "whole": [WHOLE, TINY],
        "part": [{**WHOLE, "bytes": 40_000_000_000}],
        "other": [{**WHOLE, "commits": ["f" * 40]}],
        "empty": [],
    }
    hosts = {name: FakeHost(name).program("models", {"models": models}) for name, models in there.items()}
    lost = hosts["lost"] = FakeHost("lost")
    lost.run = lost.stream = lambda *_, **__: (_ for _ in ()).throw(HostTimeout("lost: no answer", node="lost"))
    nodes = [{"host": f"10.0.0.{number}", "name": name} for number, name in enumerate(hosts, 1)]
    inventory = Inventory.model_validate({"cluster": "c", "playbook": "p", "nodes": nodes})
    offers = [playbooks.offer(name) for name in ("gpt-oss-120b", "tiny-llama-cpu", "gpt-oss-20b")]

    found, errors = playbooks.staged(Fleet(hosts), inventory, offers)

    assert [each.staged for each in found] == [("whole",), ("whole",), ()]
    assert errors == {"lost": "no answer"}
    assert playbooks.staged(Fleet({"lost": lost}), inventory, offers)[0] == offers
