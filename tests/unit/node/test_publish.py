"""Files that become visible in several threads at once."""

from __future__ import annotations

import threading
import time

from sparkcluster.node.file_list import Listed
from sparkcluster.node.publish import Publisher
from sparkcluster.node.tree import Tree
from sparkcluster.staging.order import files_lines


def test_each_file_that_is_set_aside_is_named(tmp_path, monkeypatch):
    """Four streams and the small files meet in it."""
    root = tmp_path / "model"
    root.mkdir()
    names = [f"{number}.bin" for number in range(8)]
    for name in names:
        (root / name).write_text("the user's own")
    (tmp_path / "files.jsonl").write_bytes(
        files_lines([{"path": name, "size": 1, "mtime": 0, "sha256": None, "links": []} for name in names])
    )
    real = Tree.set_aside

    def slowly(tree, path):
        time.sleep(0.05)
        return real(tree, path)

    monkeypatch.setattr(Tree, "set_aside", slowly)
    request = {"state_dir": str(tmp_path / "state"), "cluster": "atlas"}
    publisher = Publisher(request, Listed(str(tmp_path / "files.jsonl"), None), Tree(str(root)), bool, bool)
    threads = [threading.Thread(target=publisher._set_aside, args=(f"{n}.bin", n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(publisher.kept) == [str(root / f"{name}.replaced") for name in names]
