"""The list of playbooks, and for how many Sparks each is."""

from __future__ import annotations

from sparkcluster.inspect import playbooks


def test_playbooks_that_can_be_served_on_a_number_of_sparks():
    """Divisible ranks and heads, and sufficient memory: 141 GB on two Sparks, not on one."""
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


def test_the_short_list_has_one_playbook_per_model():
    found = {each.playbook.name for each in playbooks.one_of_each(playbooks.offers())}
    assert {"qwen3.6-35b-a3b-nvfp4", "gpt-oss-20b"} <= found
    assert not {"qwen3.6-35b-a3b-256k", "nemotron-3-nano-30b-a3b-32gb", "tiny-llama-cpu"} & found
