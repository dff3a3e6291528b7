"""A rank that shares its node with other models: it exits with its engine, and before the node runs out of memory."""

import contextlib
import os
import signal
import time

import pytest

from sparkcluster.node.victim import is_due
from tests.unit.node.test_launcher import PYTHON, Image, image, script

__all__ = ["image"]

ALL, NOTHING = 1 << 60, 1
"""More bytes than any machine has available, and fewer than every machine has."""


@pytest.mark.parametrize(
    ("below_gib", "order", "due"),
    [
        ([], 0, False),
        ([4.9], 0, True),
        ([4.9] * 8, 1, False),
        ([4.9] * 9, 1, True),
        ([4.9] * 9, 2, False),
        ([3, *[each / 10 for each in range(30, 50)]], 1, False),  # memory is coming back
        ([4.9, 1.9], 1, False),
        ([4.9, 1.9, 1.9], 1, True),  # remaining processes disappear within a second
    ],
)
def test_each_rank_in_the_order_waits_for_earlier_ones(below_gib, order, due):
    assert is_due([int(each * 2**30) for each in below_gib], order) is due


def test_the_victim_wrapper_exits_like_its_engine(image: Image) -> None:
    document = image.document(victim={"order": 0, "floor_bytes": NOTHING})
    assert image.run(document) == (0, ["[sparkcluster] phase=engine vllm", "engine speaks"])
    script(image.bin / "vllm", f"#!{PYTHON}\nraise SystemExit(7)")
    assert image.run(document)[0] == 7


def test_the_victim_wrapper_forwards_a_stop_request(image: Image) -> None:
    script(
        image.bin / "vllm",
        f"""
        #!{PYTHON}
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(3))
        print("up", flush=True)
        time.sleep(60)
        """,
    )
    with image.start(image.document(victim={"order": 0, "floor_bytes": NOTHING})) as process:
        while process.stdout.readline() != "up\n":
            continue
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 3


def test_below_the_floor_the_child_is_killed_with_a_message_and_a_distinct_exit_code(image: Image) -> None:
    """Also a daemon in a separate session, and an engine that ignores SIGTERM."""
    pids = image.root / "pids"
    script(
        image.bin / "vllm",
        f"""
        #!{PYTHON}
        import os, signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        daemon = subprocess.Popen(["setsid", "--fork", "sh", "-c", "echo $$ >> {pids}; exec sleep 60"])
        open({str(pids)!r}, "a").write("%d\\n" % os.getpid())
        time.sleep(60)
        """,
    )
    with image.start(image.document(victim={"order": 1, "floor_bytes": ALL})) as process:
        output = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 90
    assert output[-1].startswith("[sparkcluster] phase=victim killed to protect the machine: MemAvailable was ")
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    until = time.monotonic() + 10
    while any(map(alive, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, started))


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False
