"""What bench-staging and lab tests of staging measure with."""

import hashlib
import json
import subprocess
import sys

import staging_lab


def test_a_payload_is_a_repository_as_the_hubs_client_leaves_it(tmp_path):
    top = tmp_path / "models--lab--large"
    texts = ('{"a": 1}', '{"b": 2}')
    subprocess.run([sys.executable, "-c", staging_lab.WRITE, str(top), "3", "3000000", *texts], check=True)
    blobs = {path.name: path.read_bytes() for path in (top / "blobs").iterdir()}
    assert all(hashlib.sha256(content).hexdigest() == name for name, content in blobs.items())
    snapshot = top / "snapshots" / (top / "refs" / "main").read_text()
    files = {path.name: path for path in snapshot.iterdir()}
    assert all(path.is_symlink() and path.resolve().parent == top / "blobs" for path in files.values())
    shards = set(json.loads(files["model.safetensors.index.json"].read_text())["weight_map"].values())
    assert shards == {name for name in files if name.endswith(".safetensors")}
    assert len(shards) == 3
    assert len(blobs) == 6  # no two shards are the same
    assert (files["config.json"].read_text(), files["tokenizer.json"].read_text()) == texts


def test_the_span_of_a_payload_leaves_out_what_is_no_payload():
    few = staging_lab.FEW_BYTES
    samples = [(1, 0), (2, few // 2), (3, few * 2), (4, few * 8), (5, few * 9), (6, few * 9 + 10), (7, few * 9 + 20)]
    assert staging_lab.span(samples) == (3, 5)
    assert staging_lab.span([]) == (0.0, 0.0)
