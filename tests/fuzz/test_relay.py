"""Copies between nodes against peers and nodes that say anything: only listed files are written, and only inside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkcluster.errors import SparkclusterError
from sparkcluster.hosts.base import Stream
from sparkcluster.node import common, wire
from sparkcluster.node.tree import Tree
from sparkcluster.staging.copy import Failure, Step, follow
from sparkcluster.staging.manifest import BadAnswer, ListedFile, Manifest

from .conftest import cases, limited

REVISION = "0123456789abcdef0123456789abcdef01234567"
STEP = Step("stage weights", {}, lambda: False)

parts = st.sampled_from(["a", "b", "..", ".", "", "link", "up", ".ssh", "x.partial", "\0", "é", "\udc80", "a" * 300])
names = st.lists(parts, min_size=1, max_size=5).map("/".join) | st.text(max_size=8)
odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([1 << 70, "a/b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
sizes = st.integers(0, 3) | st.integers() | odd
blobs = st.none() | st.sampled_from(["c0", "c1", "0" * 64, "../x", "a/b", ""]) | odd
listed = st.fixed_dictionaries(
    {"name": st.sampled_from("abcd") | names | odd, "size": st.just(1) | sizes, "mtime": st.just(0) | sizes},
    optional={"blob": blobs, "sha256": st.just("0" * 64) | odd},
)


@pytest.fixture(autouse=True)
def mute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "emit", lambda _document: None)
    monkeypatch.setattr(wire, "STALL_S", 2.0)
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A directory with a tree in ``root``, links in it, and what must stay as it is outside."""
    (tmp_path / "template" / "a").mkdir(parents=True)
    (tmp_path / "template" / "a" / "up").symlink_to("..")
    (tmp_path / "template" / "link").symlink_to("../outside")
    (tmp_path / "template" / "up").symlink_to("../outside/x")
    (tmp_path / "template" / "b").write_text("1")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("ours")
    return tmp_path


@contextlib.contextmanager
def untouched(room: Path) -> Iterator[str]:
    """A fresh tree for one case; nothing beside it may change."""
    shutil.rmtree(room / "root", ignore_errors=True)
    shutil.copytree(room / "template", room / "root", symlinks=True)
    yield str(room / "root")
    assert [path.name for path in (room / "outside").iterdir()] == ["x"]
    assert (room / "outside" / "x").read_text() == "ours"
    assert {path.name for path in room.iterdir()} == {"template", "outside", "root"}


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 5)
        return near, listener.accept()[0]


@cases(100, 1000)
@given(files=st.lists(listed | odd, max_size=6), revision=st.sampled_from([None, REVISION]), verify=st.booleans())
def test_whatever_a_node_lists_is_refused_or_stays_inside(
    room: Path, files: list[Any], revision: str | None, verify: bool
) -> None:
    manifest = Manifest(revision, verify)
    with limited():
        for each in files:
            with contextlib.suppress(BadAnswer, ValidationError):
                manifest.add(ListedFile.model_validate(each))
    with untouched(room) as root:
        fresh = Tree(root + "/new")
        for file in manifest.files:
            with fresh.writer(file["path"]) as written:
                written.write(b"1")
            for link in file["links"]:
                fresh.link(link, os.path.relpath(file["path"], link.rpartition("/")[0]))
                assert os.path.realpath(f"{root}/new/{link}") == os.path.realpath(f"{root}/new/{file['path']}")
        assert len({file["path"] for file in manifest.files}) == len(manifest.files)
    json.dumps(manifest.files)


@cases(100, 1500)
@given(path=names, to=names, what=st.sampled_from(["writer", "link", "move", "size"]))
@example("link/x", "a/up/x", "writer")
@example("../outside/x", "b", "writer")
@example("up", "b", "writer")
@example("up", "b", "link")
@example("b", "up", "move")
def test_no_path_leads_out_of_a_tree(room: Path, path: str, to: str, what: str) -> None:
    with untouched(room) as root, contextlib.suppress(OSError, ValueError):
        tree = Tree(root)
        if what == "writer":
            with tree.writer(path) as file:
                file.write(b"evil")
        elif what == "link":
            tree.link(path, "x")
        elif what == "move":
            with tree.writer(f"{to[: to.rfind('/') + 1]}.new.partial") as file:
                file.write(b"evil")
            tree.move(".new.partial", to)
        else:
            tree.size(path)


@cases(60, 1500)
@given(data=st.binary(max_size=200), chunks=st.lists(st.integers(1, 64), max_size=4))
def test_no_greeting_without_the_token_is_accepted(data: bytes, chunks: list[int]) -> None:
    near, far = connected()
    greeters: dict[Any, Any] = {}
    wire._welcome(near, greeters)
    with near, far:
        far.recv(32)
        rest = data
        for size in [*chunks, len(data)]:
            far.sendall(rest[:size])
            rest = rest[size:]
        far.shutdown(socket.SHUT_WR)
        assert wire._knows(near, greeters[near][0], "token") is False


class Lines(Stream):
    """A program that has printed ``lines``."""

    _broken = (OSError,)

    def __init__(self, lines: list[bytes]) -> None:
        super().__init__("a", ["relay"])
        self._left = [line + b"\n" for line in lines]

    def _read(self, limit_s: float) -> bytes:
        return self._left.pop(0) if self._left else b""

    def _write(self, data: bytes) -> None:
        pass

    def _close_input(self) -> None:
        pass

    def _ended(self, deadline: float) -> tuple[int, bytes]:
        return 0, b"the end\n"

    def _lost(self, error: Exception | None) -> Any:
        return error

    def close(self) -> None:
        pass


keys = st.sampled_from(["port", "bytes", "total", "done", "failed", "refused", "kind", "file"])
documents = st.dictionaries(keys, odd | listed | st.integers(0, 9), max_size=4)
lines = st.lists(documents.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=20), max_size=5)


@cases(100, 3000)
@given(printed=lines, lists=st.booleans())
@example([b"[" * 200_000], False)
@example([b'{"bytes": 1' + b"0" * 5000 + b"}"], False)
def test_any_answer_of_a_relay_is_a_result_or_that_nodes_error(printed: list[bytes], lists: bool) -> None:
    manifest = Manifest() if lists else None
    with limited():
        done: Any = None
        try:
            done = follow(STEP, "a", Lines(printed), lambda done, total: None, manifest)
        except SparkclusterError as error:
            done = error
    assert done.node == "a" if isinstance(done, SparkclusterError | Failure) else done.bytes >= 0
