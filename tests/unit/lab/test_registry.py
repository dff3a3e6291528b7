"""The lab's image registry, as a client that pulls sees it."""

import base64
import gzip
import hashlib
import http.client
import io
import json
import socket
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from sparkcluster.lab.registry import OCI, Registry

LAYER = bytes(range(256)) * 400


class Client:
    """A connection to a registry; ``get`` gives status, headers and content."""

    def __init__(self, registry: Registry) -> None:
        self.host = registry.address

    def get(self, path: str, method: str = "GET", **headers: str):
        with closing(http.client.HTTPConnection(self.host, timeout=10)) as connection:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def json(self, path: str):
        status, _, content = self.get(path)
        assert status == 200
        return json.loads(content)


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture
def archive(tmp_path):
    config = {"os": "linux", "architecture": "arm64", "rootfs": {"type": "layers", "diff_ids": [digest(LAYER)]}}
    config["history"] = [{}]
    manifest = [{"Config": "c.json", "RepoTags": None, "Layers": ["l/layer.tar"]}]
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as file:
        for name, content in (
            ("c.json", json.dumps(config).encode()),
            ("l/layer.tar", LAYER),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def registry(tmp_path, pauses):
    with Registry("127.0.0.1", tmp_path / "registry", port=0, clock=lambda: 0.0, sleep=pauses.append) as made:
        yield made


def blob(client, registry: Registry, name: str) -> str:
    """Path of the first layer of an image."""
    layer = client.json(f"/v2/{name}/manifests/1")["layers"][0]
    return f"/v2/{name}/blobs/{layer['digest']}"


def test_an_image_is_pulled_by_its_tag_and_every_digest_is_true(registry, archive):
    client = Client(registry)
    assert registry.add("stub", archive) == f"{registry.address}/stub:1"
    assert client.get("/v2/")[0] == 200
    status, headers, content = client.get("/v2/stub/manifests/1", "HEAD")
    assert (status, headers["Content-Type"], content) == (200, f"{OCI}.manifest.v1+json", b"")
    _, _, content = client.get(f"/v2/stub/manifests/{headers['Docker-Content-Digest']}")
    assert digest(content) == headers["Docker-Content-Digest"]
    manifest = json.loads(content)
    for described in (manifest["config"], *manifest["layers"]):
        _, _, content = client.get(f"/v2/stub/blobs/{described['digest']}")
        assert (digest(content), len(content)) == (described["digest"], described["size"])
    assert gzip.decompress(content) == LAYER
    assert registry.served_bytes == sum(described["size"] for described in (manifest["config"], *manifest["layers"]))


def test_the_same_layer_compressed_otherwise_is_another_blob_of_the_same_content(registry, archive):
    client = Client(registry)
    found = {}
    for level in (0, 1, 9):
        registry.add(f"p{level}", archive, level=level)
        _, _, content = client.get(blob(client, registry, f"p{level}"))
        found[level] = content
    assert found[0] == gzip.decompress(found[1]) == gzip.decompress(found[9]) == LAYER
    assert len({digest(content) for content in found.values()}) == 3


def test_one_more_layer_makes_another_image_with_the_first_ones_layers(registry, archive):
    client = Client(registry)
    for name, more in (("plain", None), ("more", "text")):
        registry.add(name, archive, more=more)
    plain, more = (client.json(f"/v2/{name}/manifests/1") for name in ("plain", "more"))
    assert more["layers"][:-1] == plain["layers"]
    config = client.json(f"/v2/more/blobs/{more['config']['digest']}")
    _, _, content = client.get(f"/v2/more/blobs/{more['layers'][-1]['digest']}")
    assert config["rootfs"]["diff_ids"] == [digest(LAYER), digest(gzip.decompress(content))]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as layer:
        assert layer.extractfile("more").read() == b"text"


def test_an_image_of_two_platforms_is_an_index_whose_second_entry_is_the_machines(registry, archive):
    client = Client(registry)
    registry.add("two", archive, platforms=True)
    index = client.json("/v2/two/manifests/1")
    assert index["mediaType"] == f"{OCI}.index.v1+json"
    assert [entry["platform"]["architecture"] for entry in index["manifests"]] == ["amd64", "arm64"]
    foreign, native = (client.json(f"/v2/two/manifests/{entry['digest']}") for entry in index["manifests"])
    assert (len(foreign["layers"]), len(native["layers"])) == (2, 1)
    config = client.json(f"/v2/two/blobs/{native['config']['digest']}")
    assert (config["architecture"], config["rootfs"]["diff_ids"]) == ("arm64", [digest(LAYER)])


def test_a_pull_goes_on_where_it_ended(registry, archive):
    client = Client(registry)
    registry.add("stub", archive, level=0)
    path = blob(client, registry, "stub")
    before = registry.served_bytes
    status, headers, content = client.get(path, Range="bytes=100000-")
    assert (status, headers["Content-Range"]) == (206, f"bytes 100000-{len(LAYER) - 1}/{len(LAYER)}")
    assert content == LAYER[100000:]
    assert registry.served_bytes - before == len(LAYER) - 100000


def test_the_rate_holds_for_all_layers_together(registry, archive, pauses):
    client = Client(registry)
    registry.add("stub", archive, level=0)
    registry.rate_bytes_s = 1000
    for _ in range(2):
        client.get(blob(client, registry, "stub"))
    assert max(pauses) == pytest.approx(2 * len(LAYER) / 1000)


def test_a_cut_ends_the_response_and_what_comes_after_until_it_is_up_again(registry, archive):
    client = Client(registry)
    registry.add("stub", archive, level=0)
    path = blob(client, registry, "stub")
    registry.cut_after_bytes = 50000
    with pytest.raises(http.client.IncompleteRead) as cut:
        client.get(path)
    assert 50000 <= len(cut.value.partial) < len(LAYER)
    assert registry.down
    with pytest.raises(http.client.RemoteDisconnected):
        client.get("/v2/")
    registry.down, registry.cut_after_bytes = False, None
    assert client.get(path)[2] == LAYER


def test_a_client_that_tries_tls_learns_that_this_is_http(registry):
    host, _, port = registry.address.partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"\x16\x03\x01\x00\x05\x01\n\x00")
        assert connection.recv(5) == b"HTTP/"


def test_a_login_is_asked_for_and_taken(registry, archive):
    client = Client(registry)
    registry.add("stub", archive)
    registry.login = ("someone", "secret")
    status, headers, content = client.get("/v2/")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="lab"')
    assert json.loads(content)["errors"][0]["code"] == "UNAUTHORIZED"
    word = base64.b64encode(b"someone:secret").decode()
    assert client.get("/v2/stub/manifests/1", Authorization=f"Basic {word}")[0] == 200


@pytest.mark.parametrize("path", ["manifests/2", "manifests/sha256:00", "blobs/..%2fimage.tar", "blobs/sha256:00"])
def test_what_is_not_there_is_unknown(registry, archive, path):
    client = Client(registry)
    registry.add("stub", archive)
    status, _, content = client.get(f"/v2/stub/{path}")
    assert status == 404
    assert json.loads(content)["errors"][0]["code"].endswith("_UNKNOWN")


def test_a_registry_that_has_ended_leaves_its_port(tmp_path: Path):
    with Registry("127.0.0.1", tmp_path / "one", port=0) as registry:
        port = int(registry.address.rpartition(":")[2])
    with Registry("127.0.0.1", tmp_path / "two", port=port) as registry:
        assert Client(registry).get("/v2/")[0] == 200
