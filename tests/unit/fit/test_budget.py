"""Which models fit together on one Spark, by their sizes."""

from __future__ import annotations

import pytest

from sparkcluster.fit.budget import Part, add_up
from sparkcluster.fit.source import spark

GB = 10**9


def part(model, weights_gb, kv_gb=1.0, **more):
    return Part(model, int(weights_gb * GB), int(kv_gb * GB), 2 * GB, **more)


def judged(*parts):
    return add_up({"spark-1": parts}, spark())


# Published weights of the models that the guide combines.
GPT_OSS, FLASH, CODER, RERANKER = (
    part("gpt-oss-120b", 65.3, 2.4),
    part("flash", 19),
    part("coder", 18),
    part("rank", 8.5),
)
LLAMA = part("llama-8b", 8.5)


@pytest.mark.parametrize(
    ("parts", "fits"),
    [
        ((GPT_OSS, CODER, FLASH), False),  # A
        ((GPT_OSS, CODER, FLASH, RERANKER), False),
        ((part("nano", 19.3), CODER, FLASH, RERANKER), True),  # B
        ((GPT_OSS, FLASH, LLAMA), None),  # D, which is uncertain
        ((GPT_OSS, FLASH, LLAMA, RERANKER), False),
    ],
)
def test_the_combinations_of_the_guide(parts, fits):
    assert judged(*parts).fits is fits


def test_an_overcommitted_spark_is_one_sentence_with_the_sets_that_can_run():
    found = judged(GPT_OSS, part("chat", 40), part("embed", 8, 5))
    (problem,) = found.problems
    assert problem == (
        "spark-1: gpt-oss-120b 75.7 GB, chat 49.0 GB, embed 21.0 GB, the system's 5.37 GB and 10.0 GB kept free"
        " are 30.5 GB more than 130.6 GB"
    )
    assert found.together == {"spark-1": [("gpt-oss-120b", "embed"), ("chat", "embed")]}
    assert found.free_bytes("spark-1") < 0


def test_each_model_on_demand_must_fit_in_addition_to_always_on_models():
    small, large = part("small", 20, on_demand=True), part("large", 50, on_demand=True)
    found = judged(GPT_OSS, small, part("other", 18, on_demand=True))
    assert (found.problems, found.free_bytes("spark-1")) == (
        [],
        judged(GPT_OSS, LLAMA).free_bytes("spark-1") + LLAMA.bytes,
    )
    assert found.together == {"spark-1": [("gpt-oss-120b", "small"), ("gpt-oss-120b", "other")]}
    (problem,) = judged(GPT_OSS, small, large).problems
    assert problem.startswith("spark-1: gpt-oss-120b 75.7 GB, large 59.0 GB, the system's")


def test_a_model_whose_start_peak_exceeds_the_remaining_memory_is_a_doubt():
    """Largest first: its own peak fits, the peak of the next one does not (vllm#46307)."""
    found = judged(part("next", 40), part("big", 40, 9))
    assert (found.fits, found.problems) == (None, [])
    assert found.doubts == [
        "spark-1: next may briefly need 16.0 GB more while it starts, but only 9.20 GB is free then"
    ]
    assert judged(part("big", 60), part("small", 8)).fits is True


def test_an_unknown_size_has_no_number_and_is_not_refused():
    found = judged(GPT_OSS, Part("mine", kind="unknown", doubts=("its memory use is unknown",)))
    assert (found.fits, found.as_json()["sparks"][0]["parts"][1]["bytes"]) == (None, None)
    most = Part("mine", step_bytes=80 * GB, kind="at most", doubts=("its model is unknown",))
    found = judged(GPT_OSS, most)
    assert (found.fits, found.problems) == (None, [])
    assert "mine up to 86.0 GB" in found.doubts[1]


def test_a_single_model_on_its_spark_has_no_budget():
    """It may leave less: `fit PLAYBOOK` shows whether it fits."""
    assert judged(part("one", 100, 9)).fits is True
