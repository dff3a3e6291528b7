"""The vocabulary that gpt-oss's parser would download is on every node before the engine starts."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import threading

import pytest

from sparkcluster.engines.base import Vocabulary
from sparkcluster.errors import LeaseLost, StageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.staging import small_files
from sparkcluster.staging.transfers import Transfers
from sparkcluster.topology import vocabularies

CONTENT = b"IQ== 0\nIg== 1\n"
OURS = Vocabulary(
    "o200k_base.tiktoken", "", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "TIKTOKEN_ENCODINGS_BASE"
)


@pytest.fixture
def blob(monkeypatch, tmp_path):
    """A server with the file; ``asked`` are the requests."""

    class Handler(http.server.BaseHTTPRequestHandler):
        asked: list[str] = []
        content = CONTENT

        def do_GET(self) -> None:
            self.asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.content)

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        Handler.file = dataclasses.replace(OURS, url=f"http://127.0.0.1:{server.server_port}/encodings/x")
        yield Handler
        server.shutdown()
        thread.join()


def test_a_node_with_the_vocabulary_or_an_image_that_contains_it_lacks_none(spark, cluster):
    spec = cluster({"solo": "h"}, playbook={"model": {"id": "openai/gpt-oss-20b"}})
    plain = spark()
    has = plain.model_copy(update={"vocabularies": ("446a9538cb6c348e/o200k_base.tiktoken",)})
    ngc = plain.model_copy(update={"image": plain.image.model_copy(update={"env_names": ("TIKTOKEN_RS_CACHE_DIR",)})})
    assert len(vocabularies.lacking(spec, plain)) == 1
    assert (vocabularies.lacking(spec, has), vocabularies.lacking(spec, ngc)) == ((), ())
    assert len(vocabularies.brought(spec, has)) == 1
    found = small_files.find_missing(spec, {"a": plain, "b": has, "c": plain})
    assert [staging.missing for staging in found] == [(("a", "missing"), ("c", "missing"))]


def test_the_vocabulary_is_fetched_once_and_sent_to_nodes_that_lack_it(blob, node, lease):
    hosts = {name: node(name) for name in "ab"}
    epoch = 7
    run = Transfers(Fleet(hosts), {}, None, lambda _: lease.document(epoch=epoch), lambda *_: None)
    for name, host in hosts.items():
        run.send("vocabulary", name, small_files.of_vocabulary(blob.file, str(host.home / "state")), len(CONTENT))
    assert [(each.node, each.source, each.bytes) for each in run.copied] == [
        ("a", "controller", 14),
        ("b", "controller", 14),
    ]
    for host in hosts.values():
        file = host.home / "state" / "vocabularies" / OURS.sha256[:16] / "o200k_base.tiktoken"
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (CONTENT, 0o644)
        assert file.parent.stat().st_mode & 0o755 == 0o755, "a container of another user reads it"
        assert len(list(file.parent.iterdir())) == 1
    assert blob.asked == ["/encodings/x"]
    epoch = 6
    with pytest.raises(LeaseLost, match="a refused the change: epoch 6 is over"):
        run.send("vocabulary", "a", small_files.of_vocabulary(blob.file, str(hosts["a"].home / "state")), len(CONTENT))


def fetched(wanted):
    ((path, _),) = small_files.of_vocabulary(wanted, "/state")
    return path


def test_a_file_with_an_unexpected_hash_is_not_staged(blob):
    blob.content = CONTENT + b"x"
    with pytest.raises(StageError, match="another SHA-256 than expected") as caught:
        fetched(blob.file)
    assert caught.value.hint.startswith("on a machine with Internet access: curl -O http")
    blob.content = CONTENT
    path = fetched(blob.file)
    path.write_bytes(b"damaged")
    assert fetched(blob.file).read_bytes() == CONTENT


def test_without_a_network_the_command_to_type_is_shown(blob, monkeypatch):
    gone = dataclasses.replace(blob.file, url="http://127.0.0.1:9/x")
    with pytest.raises(StageError, match=r"which the engine needs to start: .*refused"):
        fetched(gone)
