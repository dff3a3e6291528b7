"""How far a pull is, by the documents of Docker's stream as overlay2 and containerd's image store write it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from sparkcluster.node.pull_progress import STALL_S, UNPACK_STALL_S, Progress
from tests.unit.docker_engine import layer

MB = 1_000_000
GOLDEN = Path(__file__).parents[2] / "golden" / "pulls"


def fed(*documents, each_s: float = 1.0) -> Progress:
    progress = Progress(0.0)
    for place, document in enumerate(documents, 1):
        progress.feed(document, place * each_s)
    return progress


def test_a_download_is_stalled_by_its_bytes():
    progress = fed(layer("a", "Downloading", MB, 4 * MB))
    assert progress.stalled(1 + STALL_S) is None
    assert progress.stalled(2 + STALL_S) == "no byte came for 300 s"


def test_an_engine_has_longer_to_unpack():
    """containerd's store of Docker 26.1 says nothing between the last byte and the end."""
    progress = fed(layer("a", "Downloading", MB, 4 * MB), layer("a", "Download complete"))
    assert progress.stalled(2 + UNPACK_STALL_S) is None
    assert progress.stalled(3 + UNPACK_STALL_S) == "nothing was unpacked for 1200 s"


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
