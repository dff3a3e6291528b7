"""The log of a launch shows its phase, for every supported vLLM."""

from pathlib import Path

import pytest

from sparkcluster.engines.phase import Phase, Progress, phase
from sparkcluster.engines.vllm import ENGINE

LOGS = Path(__file__).parents[3] / "golden" / "logs"


def progress_of(name: str) -> tuple[list[str], Progress]:
    progress = Progress(ENGINE)
    texts = [now.text for line in (LOGS / name).read_text().splitlines() if (now := progress.feed(line))]
    return texts, progress


def test_the_log_of_a_ray_head_is_shown_in_order() -> None:
    """Recorded from vLLM 0.32 with Ray, two ranks, eager: with colours and lines of other ranks."""
    texts, progress = progress_of("vllm-0.32-ray-tp2-head.log")
    assert texts == [
        "starting the engine",
        "loading weights 0 %",
        "loading weights 100 %",
        "KV cache, 2,097,152 tokens",
        "warming up",
        "API ready",
    ]
    assert progress.ready


def test_the_log_of_a_cuda_engine_is_shown_in_order() -> None:
    """Lines from noonghunna/club-3090#75 and #142, with the lines around them from vLLM's sources."""
    texts, _ = progress_of("vllm-0.20-cuda.log")
    assert texts == [
        "starting the engine",
        "loading weights 0 %",
        "loading weights 45 %",
        "loading weights 100 %",
        "compiling",
        "KV cache, 123,456 tokens",
        "capturing graphs 0/67",
        "capturing graphs 30/67",
        "capturing graphs 67/67",
        "warming up",
        "API ready",
    ]


@pytest.mark.parametrize(
    ("line", "expected", "text"),
    [
        ("[sparkcluster] phase=setup 1/3", Phase("setup", 1, 3), "setup 1/3"),
        (
            "[sparkcluster] phase=ray-wait 1/2 missing 192.168.177.12",
            Phase("ray-wait", 1, 2, "missing 192.168.177.12"),
            "Ray 1/2, missing 192.168.177.12",
        ),
        ("2026-11-21 03:16:03,911\tSUCC scripts.py:1251 -- Ray runtime started.", Phase("ray-formed"), "Ray formed"),
        ("Multi-thread loading shards:  27% Completed | 3/11 [00:00<00:02,  3.93it/s]", Phase("weights", 27), None),
        ('INFO:     127.0.0.1:43026 - "GET /health HTTP/1.1" 200 OK', None, None),
    ],
)
def test_phases_of_single_lines(line: str, expected: Phase | None, text: str | None) -> None:
    found = phase(line, ENGINE)
    assert found == expected
    if text is not None:
        assert found is not None
        assert found.text == text


def test_lines_of_a_slower_rank_do_not_move_a_node_to_an_earlier_phase() -> None:
    """The head's log repeats its workers' lines, in any order."""
    progress = Progress(ENGINE)
    assert progress.feed("Loading safetensors checkpoint shards:  80% Completed | 8/10 [00:00<00:00]")
    assert progress.feed("Loading safetensors checkpoint shards:  20% Completed | 2/10 [00:00<00:00]") is None
    assert progress.feed("[sparkcluster] phase=ray-wait 1/2 missing 10.0.0.2") is None
    assert progress.text == "loading weights 80 %"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "INFO 11-02 [gpu_model_runner.py:5150] Model loading took 21.94 GiB memory and 61.2 seconds",
            {"load_gib": 21.94},
        ),
        ("Initial free memory 98.21 GiB, reserved 4.69 GiB memory for KV Cache as specified by", {"kv_gib": 4.69}),
        ("GPU KV cache size: 4,843,965 tokens, Maximum concurrency 3", {"kv_tokens": 4_843_965}),
        ("GPU KV cache size: 9,999,999,999,999,999,999 tokens", {}),
        ("Available KV cache memory: -3.20 GiB", {}),
    ],
)
def test_the_memory_of_a_rank_is_read_from_its_log(line, found):
    """No figure is larger than a record may contain."""
    progress = Progress(ENGINE)
    progress.feed(line)
    assert progress.footprint == found


def test_a_head_repeats_its_workers_logs_and_the_rank_with_the_least_memory_counts():
    progress = Progress(ENGINE)
    for line in (
        "\x1b[36m(EngineCore pid=7)\x1b[0m Model loading took 30.1 GiB memory and 9.1 seconds",
        "(RayWorkerWrapper pid=9, ip=10.0.0.2) Model loading took 29.9 GiB memory and 9.4 seconds",
        "Available KV cache memory: 40.25 GiB",
        "(RayWorkerWrapper pid=9, ip=10.0.0.2) Available KV cache memory: 39.5 GiB",
        "Graph capturing finished in 1 secs, took 0.5 GiB",
    ):
        progress.feed(line)
    assert progress.footprint == {"load_gib": 30.1, "kv_gib": 39.5, "graphs_gib": 0.5}
