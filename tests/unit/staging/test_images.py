"""Which layers can be skipped, from what nodes report about their images; and the messages about it."""

from __future__ import annotations

import pytest

from sparkcluster.facts.layers import left_out_bytes, shared
from tests.unit.conftest import IMAGE, describe

A, B, C, D = (f"sha256:{letter * 64}" for letter in "abcd")
STORE = {**describe()["docker"], "version": "28.5.2", "containerd_store": True}
GB = 10**9


@pytest.fixture
def image(spark):
    """An image of the layers A, B and C; its node reports no files."""
    return spark(image={**IMAGE, "layers": [A, B, C], "size_bytes": 30 * GB}).image


def files(*digests, sizes=(5 * GB, 10 * GB, 15 * GB)):
    return {
        "files": [
            {"digest": digest and digest[-64:], "bytes": size} for digest, size in zip(digests, sizes, strict=False)
        ]
    }


def blobs(**layers):
    named = {"a": A, "b": B, "c": C}
    return {"blobs": [{"layer": named[name], "digest": digest * 64, "bytes": GB} for name, digest in layers.items()]}


@pytest.mark.parametrize(
    ("receivers", "found"),
    [
        ([{"layers": {"chains": [[A], [A, B, D], [D, B, C]]}}], {A: "", B: ""}),
        ([{"layers": {"chains": [[B, C]]}}], {}),
        ([{"layers": {"unread": "no"}}], {}),
        ([{"layers": {"files": []}, "image": {**IMAGE, "layers": [A, B, D]}}], {A: "", B: ""}),
        ([{"layers": blobs(a="1", c="3"), "docker": STORE}], {A: "1" * 64, C: "3" * 64}),
        ([{"layers": {"chains": [[A, B]]}}, {"layers": blobs(b="2", c="3"), "docker": STORE}], {B: "2" * 64}),
        ([{"layers": blobs(a="1"), "docker": STORE}, {"layers": blobs(a="2"), "docker": STORE}], {}),
    ],
)
def test_layers_that_all_receivers_have(spark, image, receivers, found):
    assert shared(image, [spark(**{"image": None, **each}) for each in receivers]) == found


def test_a_layer_repeated_above_a_different_one_is_sent(spark, image):
    twice = image.model_copy(update={"layers": (A, B, A)})
    assert shared(twice, [spark(image=None, layers={"chains": [[A, B]]})]) == {B: ""}


@pytest.mark.parametrize(
    ("source", "receiver", "expected"),
    [
        (files(A, B, C), {"layers": {"chains": [[A, B]]}}, 15 * GB),
        (files(A, B, C), {"layers": blobs(a="1", c="c"), "docker": STORE}, 15 * GB),
        (files(None, None, None), {"layers": {"chains": [[A, B]]}}, 15 * GB),
        (None, {"layers": {"chains": [[A, B]]}}, 0),
    ],
)  # fmt: skip
def test_bytes_of_skipped_layers(spark, image, source, receiver, expected):
    assert left_out_bytes(image, spark(layers=source), [spark(**{"image": None, **receiver})]) == expected
    assert left_out_bytes(image, spark(layers=source), []) == 0
