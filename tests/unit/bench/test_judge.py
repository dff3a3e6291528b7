"""When a cell is invalid, when a change is more than noise, and to which figures a run is compared."""

from __future__ import annotations

import dataclasses

import pytest

from sparkcluster.bench import judge
from sparkcluster.bench.record import Measured
from sparkcluster.errors import UsageError
from sparkcluster.spec.playbook import Playbook
from tests.unit.bench import sample
from tests.unit.vitals_samples import sampled

GPU = {"utilization_percent": 96.0, "power_w": 84.0, "sm_clock_mhz": 2400.0, "throttle": 0}
SHORT = GPU | {"power_w": 15.0, "sm_clock_mhz": 507.0}
RULES = {"runs": 3, "caching": False, "template_tokens": 24, "busy": False}
CELL = Measured(2048, 4, 0, 2, began_s=10, ended_s=20, engine={"hits": 0, "generated": 24})


def samples(at_s=15.0, gpu=GPU, **engine):
    return {"a": node(at_s, gpu, engine=engine or None)}


def node(at_s=15.0, gpu=GPU, *, swaps=0, moves=None, **more):
    """Three samples of a node that swaps pages and sends bytes in between; None without an HCA."""
    idle = dict.fromkeys(("utilization_percent", "power_w", "sm_clock_mhz", "throttle"))
    found = []
    for step in range(3):
        rdma = {"a": {"sent_bytes": 7 + moves[0] * step, "received_bytes": 0}} if moves else {}
        found.append(sampled(at_s + 0.1 * step, swapped_pages=swaps * step, rdma=rdma, **{**idle, **gpu, **more}))
    return found


def request(run, start_s, first_s, last_s, *, tokens=9, first_tokens=1):
    known = {"prompt_tokens": 100, "tokens": tokens, "first_tokens": first_tokens, "error": None}
    return {"run": run, "phase": "prompt", "start_s": start_s, "first_s": first_s, "last_s": last_s, **known}


def test_decode_excludes_the_tokens_of_the_first_chunk_and_prefill_ends_with_the_last_first_token():
    two = [request(1, 0.0, 1.0, 3.0, first_tokens=3), request(1, 0.5, 2.0, 4.0, first_tokens=1)]
    found = judge.figures([request(2, 9.0, 9.5, 11.5), *two])
    assert found["prefill"] == [200 / 2.0, 100 / 0.5]
    assert found["decode"] == [(6 + 8) / 3.0, 8 / 2.0]
    assert found["decode_user"] == [3.0, 4.0, 4.0]
    assert found["ttft_s"] == [1.0, 1.5, 0.5]
    assert found["answer_tokens"] == [9] * 3


def test_an_answer_in_one_chunk_has_no_decode_speed_and_an_embedding_only_texts():
    assert "decode" not in judge.figures([request(1, 0.0, 1.0, 1.0, first_tokens=9)])
    texts = [request(run, float(run), run + 0.5, run + 0.5, tokens=0, first_tokens=0) for run in (1, 1, 2)]
    assert judge.figures(texts) == {"texts": [4.0, 2.0]}


@pytest.mark.parametrize(
    ("changed", "seen", "rules", "marks"),  # lists in the changes are figures
    [
        ({}, samples(running=2), {}, []),
        ({"answer_tokens": [2] * 6}, {}, {}, ["miscounted"]),  # chunks of two tokens were counted
        ({"answer_tokens": [4] * 8}, {}, {}, ["miscounted"]),  # so was the pass that warms up
        ({"engine": {"hits": 6 * 24 + 1, "generated": 24}}, {}, {}, ["cached"]),
        ({"engine": {"hits": 6 * 24, "generated": 24}}, {}, {}, []),  # the template, a prefix of every prompt
        ({"engine": {"hits": 12288, "generated": 24}}, {}, {"caching": True}, []),
        # two of six prompts with the same prefix by chance do not indicate a cache
        ({"prompt_tokens": [40960] * 6, "engine": {"hits": 6 * 24 + 2048, "generated": 24}}, {}, {}, []),
        ({"engine": {}}, {}, {}, ["unchecked"]),
        ({"engine": {"generated": 24 + 16}}, {}, {}, []),
        ({"engine": {"generated": 24 + 17}}, {}, {}, ["disturbed"]),
        ({"depth": 4096, "engine": {"generated": 48}}, {}, {"caching": True}, []),  # the context is answered too
        ({}, samples(running=3), {}, ["disturbed"]),
        ({}, samples(at_s=30.0, running=3), {}, []),  # of another cell
        ({}, {}, {"busy": True}, ["disturbed"]),
        ({}, samples(gpu=GPU | {"throttle": 0x40}), {}, ["throttled"]),
        ({}, samples(gpu=GPU | {"throttle": 0x4}), {}, []),  # the power cap, where every GPU works
        ({}, samples(gpu=SHORT), {}, ["throttled"]),
        ({}, samples(gpu={}), {}, []),
        # one of eight GPUs is stuck
        ({}, {**{str(at): node(moves=[9]) for at in range(7)}, "h": node(gpu=SHORT, moves=[9])}, {}, ["throttled"]),
        ({}, {"a": node(swaps=1)}, {}, ["swapped"]),
        ({}, {"a": node(moves=[0]), "b": node(moves=[0])}, {}, ["no-rdma"]),
        ({}, {"a": node(moves=[0]), "b": node(moves=[9])}, {}, []),
        ({}, {"a": node(), "b": node()}, {}, []),  # not known
        ({}, {"a": node(moves=[0])}, {}, []),  # alone
        ({"prompt_tokens": [1638] * 6}, {}, {}, ["miscounted"]),  # four of five tokens of the prompt
        ({"prompt_tokens": [1639] * 6}, {}, {}, []),
        ({"prompt_tokens": [2048] * 6, "depth": 4096}, {}, {}, ["miscounted"]),
        ({"prompt_tokens": [2048] * 6, "depth": 4096}, {}, {"caching": True}, []),
        ({"answer_tokens": [], "texts": [9.0], "engine": {"hits": 16, "generated": 0}}, {}, {"template_tokens": 0}, []),
    ],
)
def test_marks_of_cells(changed, seen, rules, marks):
    figures = {"answer_tokens": [4] * 6} | {name: value for name, value in changed.items() if isinstance(value, list)}
    others = {name: value for name, value in changed.items() if name not in figures}
    assert judge.marks(dataclasses.replace(CELL, figures=figures, **others), seen, **RULES | rules) == marks


def verdicts(found, metric="decode"):
    return {each["verdict"] for each in found["cells"] if each["metric"] == metric}


def test_b_is_better_worse_or_noise_depending_on_the_spread_of_each_side():
    a, b, again = sample.pair()
    found = judge.compare([a, again], [b])
    assert (found["a"], found["b"]) == (["atlas-8", "atlas-10"], ["atlas-9"])
    assert verdicts(found) == {"worse"}
    assert verdicts(judge.compare([b], [a])) == {"better"}
    assert verdicts(judge.compare([a], [again])) == verdicts(found, "prefill") == {"noise"}
    assert set(found["cells"][0]) >= {"prompt", "answer", "depth", "concurrency", "phase", "metric", "change", "band"}


def test_a_later_first_token_counts_as_worse():
    a, b = sample.pair()[0], sample.pair()[0]
    for each in b.cells:
        each.figures["ttft_s"] = [2 * value for value in each.figures["ttft_s"]]
    assert verdicts(judge.compare([a], [b]), "ttft_s") == {"worse"}


def each(record, **changed):
    return dataclasses.replace(record, cells=[dataclasses.replace(cell, **changed) for cell in record.cells])


@pytest.mark.parametrize(
    "other",
    [
        sample.sweep(client={"host": "desk", "path": "gateway"}),
        sample.sweep(kind="embeddings"),
        sample.sweep(cells=[]),
        each(sample.sweep(), prompt=58),
        each(sample.sweep(), marks=["cached"]),
        each(sample.sweep(), figures={"prefill": [1.0], "decode": [1.0]}),
        sample.sweep(profile="arena"),  # its contexts are cached
    ],
)
def test_incomparable_runs_are_refused(other):
    with pytest.raises(UsageError) as refused:
        judge.compare([sample.sweep()], [other])
    assert refused.value.hint


def playbook(*figures, **keys):
    known = {"name": "gpt", "model": {"id": "a/gpt"}, "image": "x:y", "nodes": {"min": 1, "max": 8}}
    known |= {"args": sample.sweep().args, **keys}
    return Playbook.model_validate(
        {**known, "figures": [{"source": "https://a.example/b", **each} for each in figures]}
    )


def figure(value, **keys):
    return {"what": "decode", "value": value, "unit": "tok/s", **keys}


def test_a_run_is_as_expected_slower_or_not_comparable():
    run = sample.sweep()
    assert judge.expectation(run, playbook(figure([50, 55], when="one stream"), figure(9))).startswith("as expected: ")
    assert "50 to 55 tok/s: one stream" in judge.expectation(run, playbook(figure([50, 55], when="one stream")))
    assert judge.expectation(run, playbook(figure(40))).startswith("as expected: ")
    assert judge.expectation(run, playbook(figure(60))).startswith("slower: ")
    assert judge.expectation(run, playbook({"what": "prefill", "value": 9, "unit": "tok/s"})).startswith(
        "not comparable: "
    )
    assert judge.expectation(run, None).startswith("not comparable: ")
    for changed in (
        {"selected": {"args.kv-cache-dtype": "fp8"}},
        {"args": {"enforce-eager": True}},  # another playbook of that name
        {"nodes": ["a"] * 9},
        {"cells": []},
        {"cells": [dataclasses.replace(run.cells[0], marks=["cached"])]},
    ):
        assert judge.expectation(sample.sweep(**changed), playbook(figure(50))).startswith("not comparable: ")


def test_a_slower_run_shows_what_was_sampled():
    run = sample.sweep()
    assert "the samples show no reason" in judge.expectation(run, playbook(figure(90)))
    run.cells[0] = dataclasses.replace(run.cells[0], marks=["throttled", "swapped"])
    assert "throttled, swapped" in judge.expectation(run, playbook(figure(90)))


def test_the_guides_figures_are_shown_next_to_those_of_its_scenarios():
    cells = [dataclasses.replace(sample.sweep().cells[0], prompt=1834, answer=32)]
    names, rows, legend = judge.table(sample.sweep(profile="guide", cells=cells))
    assert rows[0][names.index("GUIDE")] == "1,636 / 23.7 / 1.12"
    assert "Nemotron" in legend
    names, _, legend = judge.table(sample.sweep())
    assert "GUIDE" not in names
    assert "Nemotron" not in legend


def test_empty_columns_are_omitted_and_the_others_explained():
    names, rows, legend = judge.table(sample.sweep())
    assert not {"TEXTS", "ACCEPTED"} & set(names)
    assert rows[0][names.index("PER USER")] == ""  # with one request it equals DECODE
    assert "TTFT: seconds" in legend
    names, rows, legend = judge.table(sample.sweep(), judge.FIGURES)
    assert rows[0][names.index("ACCEPTED")] == "71%"
    assert "ACCEPTED" in legend
    assert "PREEMPTED" not in legend
    assert judge.table(sample.sweep(cells=[]))[:2] == ([], [])


def test_notes_name_the_pair_the_knee_skipped_cells_and_how_the_run_ended():
    assert "atlas-8, atlas-9, atlas-10" in judge.notes(sample.pair()[0], None)[0]
    knees = judge.notes(sample.sweep(), None)[:-1]
    assert knees[0] in {"knee: concurrency 8 at depth 0", "knee: concurrency 16 at depth 0"}
    assert not any("knee" in each for each in judge.notes(sample.sweep(cells=[]), None))
    found = judge.notes(sample.sweep(profile="quick", skipped=["x"], ended="time"), None)
    assert found[:-1] == ["skipped: x", "ended early: --minutes exceeded"]
    assert found[-1].startswith("not comparable: ")
