"""An image that passes through workers' stores: from one engine to the next, and on from there while it is loaded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.hosts import program
from sparkcluster.node import docker_copy
from sparkcluster.staging.order import key
from tests.unit.staging.archives import ImageMade, tar
from tests.unit.staging.workers import chain, eventually

OLD = ImageMade([b"base" * 200_000, b"top" * 1000])
NEW = ImageMade([OLD.layers[0], os.urandom(1 << 20) * 3])

# Serves its image to standard output, which it receives from standard input before unless it has it.
PROGRAM = f"""
import json, sys, threading
sys.path.insert(0, {str(Path(docker_copy.__file__).parents[2])!r})
from sparkcluster.node import programs, wire
from sparkcluster.node.image_store import Image
request = json.loads(sys.argv[1])
store = Image(request, lambda: None)
print(json.dumps([list(store.missing()), store.needed()["lacks"]]), file=sys.stderr, flush=True)
writing = store.write(0) if list(store.missing()) else None
window = store.served(0)
window.follow("next", 0)
def serve():
    offset = 0
    while offset != window.size:
        there = window.wait(offset, 1.0)
        data = window.read(offset, min(there - offset, 65536))
        sys.stdout.buffer.write(data)
        offset += len(data)
        window.free("next", offset)
    sys.stdout.buffer.close()
serving = threading.Thread(target=serve)
serving.start()
try:
    if writing is not None:
        for data in iter(lambda: sys.stdin.buffer.read1(100_000), b""):
            writing.write(memoryview(data))
        writing.size = writing.at
        assert writing.finish() == ""
except programs.Failed as error:
    writing.stream.window.end()
    print("failed", error.kind, error, file=sys.stderr)
serving.join()
print(json.dumps([store.have(), list(store.missing())]), file=sys.stderr)
"""


@pytest.fixture
def worker(lease):
    """Starts a store on a node, between these streams."""

    def start(node, request, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE):
        whole = {**request, **lease.document(), "state_dir": str(node.home / "state"), "images_dir": str(node.home)}
        argv = [*node._before, sys.executable, "-IS", "-c", PROGRAM, json.dumps(whole)]
        return running.enter_context(subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE))

    with contextlib.ExitStack() as running:
        yield start


def test_an_image_passes_through_one_node_to_the_next_without_the_layers_that_both_have(node, worker):
    a, b, c = (node(name) for name in "abc")
    a.add_image(NEW, "vllm:v1")
    for each in (b, c):
        each.add_image(OLD, "vllm:v0")
    request = NEW.request(have=["", None])
    first = worker(a, request)
    second = worker(b, request, stdin=first.stdout)
    last = worker(c, request, stdin=second.stdout)
    sent, errors = last.communicate(timeout=60)
    assert [each.wait(60) for each in (first, second)] == [0, 0], errors
    assert b"failed" not in errors
    assert len(NEW.layers[1]) < len(sent) < len(NEW.layers[1]) + 20_000
    assert {name: each.images()["vllm:v1"] for name, each in zip("abc", (a, b, c), strict=True)} == dict.fromkeys(
        "abc", NEW.id
    )
    assert all(NEW.layers[0] not in (each.docker / "received").read_bytes() for each in (b, c))
    assert [json.loads(line)[0] for line in errors.decode().splitlines()] == [[0], 2_500_000]


def test_a_node_that_has_the_image_gives_it_the_name_and_a_stream_of_its_own(node, worker):
    a = node("a")
    a.add_image(NEW, "other:v9")
    sent, errors = worker(a, NEW.request()).communicate(timeout=60)
    assert sent == tar(NEW.oci())
    assert a.images() == {"other:v9": NEW.id, "vllm:v1": NEW.id}
    assert [json.loads(line) for line in errors.decode().splitlines()] == [
        [[], {"files": 0, "bytes": 0}], [2_500_000, []]
    ]  # fmt: skip


@pytest.mark.parametrize(("have", "kind"), [(["", None], "partial"), ([None, None], "blobs")])
def test_what_another_node_cannot_load_is_an_error_with_its_kind(node, worker, have, kind):
    """And no image; what arrived was passed on all the same."""
    a, b = node("a"), node("b")
    a.add_image(NEW, "vllm:v1")
    lacking = tar([entry for entry in NEW.oci() if entry[0] != "blobs/sha256/" + NEW.diffs[0][7:]])
    (a.docker / "sent").write_bytes(lacking)
    first = worker(a, NEW.request(have=have))
    sent, errors = worker(b, NEW.request(have=have), stdin=first.stdout).communicate(timeout=60)
    assert first.wait(60) == 0
    assert sent == lacking
    assert f"failed {kind} the image's archive lacks" in errors.decode()
    assert (b.images(), b.image_ids()) == ({}, set())


# the same between real workers

MB = 1_000_000
LARGE = ImageMade([OLD.layers[0], *(os.urandom(8 * MB) for _ in range(3))])
SENT = sum(len(layer) for layer in LARGE.layers[1:])


@pytest.fixture
def engines(node, workers):
    return begun(node, workers)


def begun(node, workers, limit_bytes_s=10 * MB):
    """Workers a to d, of which a has an image, and the others its lowest layer; and their nodes."""
    made = workers(*"abcd")
    nodes = [node(name) for name in "abcd"]
    nodes[0].add_image(LARGE, "vllm:v1")
    for each in nodes[1:]:
        each.add_image(OLD, "vllm:v0")
    request = LARGE.request(size=30 * MB, bytes=SENT, have=["", None, None, None], images_dir=str(nodes[0].home))
    for number, (each, engine) in enumerate(zip(made, nodes, strict=True)):
        own = dict(word.split("=", 1) for word in engine._before[1:] if "=" in word)
        each.env = {**os.environ, **own}
        each.key = key("image", "vllm:v1")
        each.begin(**request, **({} if number else {"limit_bytes_s": limit_bytes_s}))
    assert [each.wait("lacks")["files"] for each in made] == [0, 1, 1, 1]
    chain(made)
    return made, nodes


def arrived(worker, node):
    done = worker.wait("done")
    assert SENT < done["bytes"] < SENT + 50_000
    assert done["peak_bytes"] < 64 << 20
    assert node.images() == {"vllm:v0": OLD.id, "vllm:v1": LARGE.id}


def test_one_docker_save_reaches_all_nodes(engines):
    made, nodes = engines
    for worker, node in zip(made[1:], nodes[1:], strict=True):
        arrived(worker, node)
    assert nodes[0].docker_calls().count(["save", LARGE.id]) == 1
    assert ["save", LARGE.id] not in [call for node in nodes[1:] for call in node.docker_calls()]
    assert made[0].said["served"].keys() == {"b"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_node_goes_on_in_the_same_stream_without_the_one_before_it(engines, number):
    made, nodes = engines
    eventually(lambda: made[3].said.get("bytes", 0) > SENT / 4)
    made[1].kill(number)
    for place in (2, 3):
        arrived(made[place], nodes[place])
    assert [each["node"] for each in made[2].said["left"]] == ["b"]
    assert made[3].said["left"] == []
    assert nodes[1].images() == {"vllm:v0": OLD.id}
    assert nodes[0].docker_calls().count(["save", LARGE.id]) == 1


@pytest.fixture
def short(set_source):
    """Workers and kernels with little memory for what passes, which wait a second for a node that says nothing."""
    real = program.source.__wrapped__

    def source(module, engine):
        text = real(module, engine).replace("WINDOW_BYTES = 32 << 20", "WINDOW_BYTES = 2 << 20")
        text = text.replace("LEFT_S = 15.0", "LEFT_S = 0.1").replace("_ALIVE_S = 10.0", "_ALIVE_S = 1.0")
        small = "unproved.callback(sock.close); sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)"
        text = text.replace("unproved.callback(sock.close)", small)
        return text.replace("_READS_S = 30.0", "_READS_S = 1.0")

    set_source(source)


@pytest.fixture
def slow(node):
    """A node of which Docker reads nothing for 2.5 s."""

    def make(name):
        made = node(name)
        if name == "c":
            (made.docker / "slow").touch()
        return made

    return make


def test_a_docker_that_loads_nothing_for_longer_than_a_dead_node_may_holds_the_others_up_and_ends_no_copy(
    short, slow, workers
):
    made, nodes = begun(slow, workers, limit_bytes_s=None)
    for worker, each in zip(made[1:], nodes[1:], strict=True):
        arrived(worker, each)
        assert worker.said["left"] == []
    assert nodes[0].docker_calls().count(["save", LARGE.id]) == 1


@pytest.mark.parametrize(("mark", "kind"), [("broken", "docker"), ("headless", "blobs")])
def test_a_node_that_cannot_save_its_image_says_why(node, workers, mark, kind):
    """Its worker ends, so that the others go on with another one."""
    a, b = workers("a", "b")
    nodes = [node(each.name) for each in (a, b)]
    nodes[0].add_image(LARGE, "vllm:v1")
    (nodes[0].docker / mark).touch()
    for each, engine in zip((a, b), nodes, strict=True):
        each.env = {**os.environ, **dict(word.split("=", 1) for word in engine._before[1:] if "=" in word)}
        each.begin(**LARGE.request(images_dir=str(engine.home)))
    chain((a, b))
    a.wait("failed")
    assert a.said["kind"] == kind
    assert a.said["failed"].startswith("docker save: ")
    assert nodes[1].image_ids() == set()


def test_the_node_that_sends_needs_room_for_what_docker_save_writes(node, workers):
    (a,) = workers("a")
    engine = node("a")
    a.env = {**os.environ, **dict(word.split("=", 1) for word in engine._before[1:] if "=" in word)}
    engine.add_image(LARGE, "vllm:v1")
    a.begin(**LARGE.request(images_dir=str(engine.home), spool=7 * MB))
    assert a.wait("room")["needed"] == 7 * MB


def test_an_image_that_was_removed_before_it_is_sent_is_an_error_of_that_node(node, workers):
    (a,) = workers("a")
    engine = node("a")
    a.env = {**os.environ, **dict(word.split("=", 1) for word in engine._before[1:] if "=" in word)}
    a.begin(**LARGE.request(images_dir=str(engine.home), spool=0))
    assert a.wait("failed") == "Docker does not have the image any longer"
    assert a.said["kind"] == "blobs"
