"""Which playbooks there are, and for how many Sparks."""

from __future__ import annotations

from sparkcluster.inspect import playbooks


def test_what_serves_on_so_many_sparks():
    """Ranks that come out, heads that can be shared, and memory that is there: 141 GB on two, not on one."""
    found = {each.playbook.name: each for each in playbooks.offers()}
    assert found["gpt-oss-120b"].sparks == (1, 2, 4, 8)
    assert found["gpt-oss-20b"].sparks == (1,)
    llama = found["llama-3.3-70b-instruct"]
    assert (llama.sparks, llama.weights) == ((2,), "~141 GB")
    assert [found[name].weights for name in ("gpt-oss-120b", "gemma-4-12b-coder")] == ["65 GB", "?"]
    assert playbooks.offers(3) == []
    assert [found[name].speed for name in ("gpt-oss-120b", "qwen3.6-27b-nvfp4", "gpt-oss-20b")] == [
        "60/s",
        "~11/s",
        "-",
    ]
    assert found["gpt-oss-120b-sglang-two"].speed == "-"  # only known for many requests


def test_of_each_model_the_short_list_has_one():
    found = {each.playbook.name for each in playbooks.one_of_each(playbooks.offers())}
    assert {"qwen3.6-35b-a3b-nvfp4", "gpt-oss-20b"} <= found
    assert not {"qwen3.6-35b-a3b-256k", "nemotron-3-nano-30b-a3b-32gb", "tiny-llama-cpu"} & found
