"""FIT: whether the model on a node fits its memory."""

from __future__ import annotations

import pytest

from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import Memory
from sparkcluster.facts.weights import WeightFile, Weights
from tests.unit.fit.llama import LLAMA_70B

GIB = 1 << 30


def weights(gib, config=LLAMA_70B):
    file = WeightFile(name="model.safetensors", size_bytes=gib * GIB)
    return Weights(path="/models/llama", config=config, files=(file,))


def memory(gib, free=None):
    size, left = gib * GIB, (gib if free is None else free) * GIB
    return Memory(
        total_bytes=size, free_bytes=left, available_bytes=left, cached_bytes=0, swap_total_bytes=0, swap_free_bytes=0
    )


@pytest.fixture
def fitted(see):
    """``fitted(weights, playbook, memory=…, names=…)``: (code, severity, node) and text of FIT's findings."""

    def do(held, args=None, *, gib=121, free=None, names=("alpha",), changed=None, **playbook):
        changes = {name: {"weights": held, "memory": memory(gib, free), **(changed or {})} for name in names}
        utilization = {} if changed else {"gpu-memory-utilization": 0.85}
        written = {"args": {**utilization, **(args or {})}, "env": {}, **playbook}
        return [finding for finding in see(changes, names=names, playbook=written) if finding.code.startswith("FIT")]

    return do


def test_a_model_that_fits_has_no_finding(fitted):
    assert fitted(weights(60), {"max-model-len": 8192}) == []


def test_a_model_that_is_too_large_is_an_error_with_the_setting_to_change(fitted):
    (found,) = fitted(weights(130), {"max-model-len": 8192})
    assert (found.code, found.severity, found.node) == ("FIT-001", "error", "alpha")
    assert "139.6 GB" in found.seen
    assert "129.9 GB in all" in found.seen
    assert any("2 Sparks" in line for line in found.remedy)
    assert fitted(weights(130), {"max-model-len": 8192}, names=("alpha", "beta")) == []
    assert fitted(weights(60), {"max-model-len": 8192}, gib=64)[0].code == "FIT-001", "by the node's own memory"


def test_the_weights_of_a_drafter_are_counted(fitted):
    """The weights of that node only, and only if complete: unknown until they are staged."""
    args = {"max-model-len": 8192, "speculative-config": {"method": "eagle3", "model": "a/drafter"}}
    whole = weights(40, None)
    broken = whole.model_copy(update={"truncated": ("model.safetensors",)})
    assert fitted(weights(80), args) == []
    assert fitted(weights(80), args, changed={"companions": {"a/other": whole}}) == []
    assert fitted(weights(80), args, changed={"companions": {"a/drafter": broken}}) == []
    set_apart = {**args, "gpu-memory-utilization": 0.85}
    (found,) = fitted(weights(80), set_apart, changed={"companions": {"a/drafter": whole}})
    assert (found.code, found.severity, found.node) == ("FIT-001", "error", "alpha")
    assert "128.8 GB" in found.seen


def test_a_context_that_is_too_long_is_an_error_if_a_shorter_one_fits(fitted):
    (found,) = fitted(weights(80), {"max-model-len": 131072})
    assert "one request of 131,072 tokens needs" in found.seen
    assert any("set max-model-len to" in line or "set gpu-memory-utilization" in line for line in found.remedy)
    assert fitted(weights(80), {"max-model-len": 16384}) == []


def test_a_node_whose_memory_other_programs_use_is_an_error_that_no_flag_fixes(fitted):
    (found,) = fitted(weights(60), {"max-model-len": 8192}, free=50)
    assert (found.code, found.severity, found.node) == ("FIT-003", "error", "alpha")
    assert found.seen.startswith("53.7 of 129.9 GB free, 7")
    assert fitted(weights(60), {"max-model-len": 8192}, free=70) == []


@pytest.mark.parametrize("held", [None, Unread(unread="no answer"), Weights(path=None)])
def test_unknown_models_have_no_finding_about_memory(fitted, held):
    assert fitted(held) == []
    assert fitted(weights(60), changed={"memory": Unread(unread="no answer")}) == []


def test_a_model_without_a_record_is_an_info_finding(fitted):
    found = fitted(weights(60, {}), names=("alpha", "beta"))
    assert [(finding.code, finding.severity) for finding in found] == [("FIT-002", "info")]


def test_a_model_that_is_too_close_to_say_is_a_warning_with_a_safe_value(fitted):
    """0.85 of 121 GiB is 102.9: 97 GiB of weights leave 5.9 for a step and the 1.3 GiB that a request needs."""
    (found,) = fitted(weights(97), {"max-model-len": 4096})
    assert (found.code, found.severity) == ("FIT-001", "warning")
    assert "GB are left" in found.seen
