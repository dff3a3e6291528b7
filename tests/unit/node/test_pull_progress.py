"""How far a pull is, by the documents of Docker's stream as overlay2 and containerd's image store write it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from sparkcluster.node.pull_progress import STALL_S, UNPACK_STALL_S, Progress
from tests.unit.docker_engine import DONE, layer

MB = 1_000_000
GOLDEN = Path(__file__).parents[2] / "golden" / "pulls"


def fed(*documents, each_s: float = 1.0) -> Progress:
    progress = Progress(0.0)
    for place, document in enumerate(documents, 1):
        progress.feed(document, place * each_s)
    return progress


def test_the_tag_is_no_layer_and_the_last_line_is_known():
    progress = fed({"status": "Pulling from library/vllm", "id": "v1"})
    assert (progress.phase, progress.status, progress.as_json(1)["layers_total"]) == ("resolve", "", 0)
    progress.feed(DONE[-1], 2)
    assert progress.status == "Status: Downloaded newer image for vllm:v1"


def test_bytes_layers_and_phases_of_overlay2():
    progress = fed(
        layer("a", "Pulling fs layer"), layer("b", "Pulling fs layer"), layer("b", "Waiting"), layer("c", "Already exists"),
        layer("a", "Downloading", 3 * MB, 10 * MB),
    )  # fmt: skip
    assert progress.total_bytes is None, "the size of b is not known yet"
    progress.feed(layer("b", "Downloading", 5 * MB, 20 * MB), 6)
    found = progress.as_json(6)
    assert (found["phase"], found["bytes"], found["total"]) == ("download", 8 * MB, 30 * MB)
    assert (found["layers"], found["layers_total"]) == (1, 3)
    for name in "ab":
        progress.feed(layer(name, "Verifying Checksum"), 7)
        progress.feed(layer(name, "Download complete"), 7)
    progress.feed(layer("a", "Extracting", 5 * MB, 10 * MB), 8)
    progress.feed(layer("a", "Pull complete"), 8)
    found = progress.as_json(8)
    assert (found["phase"], found["bytes"], found["layers"], found["layers_total"]) == ("unpack", 30 * MB, 2, 3)


def test_layers_that_came_at_once_need_no_size():
    progress = fed(layer("a", "Downloading", MB, 4 * MB), layer("b", "Download complete"))
    assert (progress.done_bytes, progress.total_bytes) == (MB, 4 * MB)


def test_a_resumed_request_reports_what_remains_and_nothing_is_lost():
    """A registry that was away for three seconds, with overlay2: by Range, ``total`` is the rest."""
    progress = fed(layer("a", "Downloading", 7_700_000, 42 * MB), layer("a", "Downloading", 100_000, 34_300_000))
    assert (progress.done_bytes, progress.total_bytes, progress.restarted) == (7_800_000, 42 * MB, 0)


def test_a_layer_that_starts_over_counts_from_its_first_byte():
    progress = fed(layer("a", "Downloading", 30 * MB, 42 * MB), layer("a", "Downloading", 1 * MB, 42 * MB))
    assert (progress.done_bytes, progress.restarted) == (MB, 1)


def test_rate_and_remaining_time_are_of_the_last_half_minute():
    progress = Progress(0.0)
    for second in range(1, 121):
        step = 1 if second <= 60 else 10
        progress.feed(layer("a", "Downloading", (min(second, 60) + step * max(0, second - 60)) * MB, 3660 * MB), second)
        found = progress.as_json(second)
    assert found["rate_bytes_s"] == pytest.approx(10 * MB, rel=0.05)
    assert found["remaining_s"] == pytest.approx(300, rel=0.06)


def test_an_unknown_size_is_none_and_bytes_still_count():
    progress = fed({"status": "Downloading", "id": "a", "progressDetail": {"current": 5 * MB}})
    assert (progress.done_bytes, progress.total_bytes, progress.moved_at) == (5 * MB, None, 1.0)


@pytest.mark.parametrize("document", [{"status": "Retrying in 5 seconds", "id": "a"}, {"status": "x"}, {}, {"id": "a"}])
def test_lines_without_bytes_are_no_progress(document):
    progress = fed(layer("a", "Downloading", MB, 4 * MB))
    progress.feed(document, 100)
    assert progress.moved_at == 1.0


def test_a_download_is_stalled_by_its_bytes():
    progress = fed(layer("a", "Downloading", MB, 4 * MB))
    assert progress.stalled(1 + STALL_S, 0) is None
    assert progress.stalled(2 + STALL_S, 2 + STALL_S) == "no byte came for 300 s"


def test_an_unpacking_engine_is_stalled_only_if_free_space_stays_too():
    """containerd's store of Docker 26.1 says nothing between the last byte and the end."""
    progress = fed(layer("a", "Downloading", MB, 4 * MB), layer("a", "Download complete"))
    late = 3 + UNPACK_STALL_S
    assert progress.stalled(late, late - 5) is None
    assert progress.stalled(late, 0) == "nothing was unpacked for 1200 s"


def test_seconds_of_docker_28_are_life_and_no_bytes():
    progress = fed(layer("a", "Downloading", MB, 4 * MB), layer("a", "Download complete"))
    progress.feed(layer("a", "Extracting", 7, units="s"), 900)
    progress.feed({"status": "Extracting", "id": "a", "progressDetail": {"current": 8, "units": "s"}}, 901)
    assert (progress.done_bytes, progress.moved_at) == (4 * MB, 901)


def recorded(name: str) -> tuple[Progress, list[dict]]:
    """Progress after a recorded stream of Docker 26.1 or 28.5, and how it was reported on the way."""
    progress, reports = Progress(0.0), []
    for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines():
        document = json.loads(line)
        progress.feed(document, document["t"])
        reports.append(progress.as_json(document["t"]))
    return progress, reports


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.jsonl")))
def test_recorded_streams_end_whole_and_go_through_the_phases_in_order(name):
    progress, reports = recorded(name)
    assert progress.status.startswith("Status: Downloaded newer image for registry/")
    phases = [key for key, _ in itertools.groupby(each["phase"] for each in reports)]
    assert phases == ["resolve", "download", "unpack"]
    assert progress.done_bytes == (progress.total_bytes or 0)
    silent = name in {"containerd-26", "containerd-again-26"}  # about unpacking
    assert reports[-1]["layers"] == (0 if silent else reports[-1]["layers_total"])


def test_a_recorded_cut_loses_no_byte_and_changes_no_size():
    _, reports = recorded("overlay2-cut-26")
    done = [each["bytes"] for each in reports]
    assert done == sorted(done)
    assert {each["total"] for each in reports} == {0, 3016559}


def test_a_recorded_second_pull_of_containerd_begins_where_the_first_one_ended():
    _, reports = recorded("containerd-again-26")
    assert next(each["bytes"] for each in reports if each["bytes"]) == 1 << 20


def test_a_recorded_second_pull_of_overlay2_begins_at_the_first_byte():
    _, reports = recorded("overlay2-again-26")
    assert 0 < next(each["bytes"] for each in reports if each["bytes"]) < 100_000
