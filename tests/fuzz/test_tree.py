"""Paths of files from another node are written only inside the tree."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from sparkcluster.node.tree import Tree

from .conftest import cases

parts = st.sampled_from(["a", "b", "..", ".", "", "link", "up", ".ssh", "x.partial", "\0", "é", "\udc80", "a" * 300])
names = st.lists(parts, min_size=1, max_size=5).map("/".join) | st.text(max_size=8)


def a_tree(below: Path) -> str:
    """A new tree with links that lead outside."""
    root = below / "root"
    shutil.rmtree(root, ignore_errors=True)
    (root / "a").mkdir(parents=True)
    (root / "a" / "up").symlink_to("..")
    (root / "link").symlink_to("../outside")
    (root / "up").symlink_to("../outside/x")
    (root / "b").write_text("1")
    return str(root)


@cases(100, 1500)
@given(path=names, to=names, what=st.sampled_from(["writer", "link", "move", "size"]))
@example("link/x", "a/up/x", "writer")
@example("../outside/x", "b", "writer")
@example("up", "b", "writer")
@example("up", "b", "link")
@example("b", "up", "move")
def test_no_path_leads_outside_a_tree(tmp_path: Path, path: str, to: str, what: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "x").write_text("ours")
    tree = Tree(a_tree(tmp_path))
    with contextlib.suppress(OSError, ValueError):
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
    assert [each.name for each in outside.iterdir()] == ["x"]
    assert (outside / "x").read_text() == "ours"
    assert {each.name for each in tmp_path.iterdir()} == {"outside", "root"}
