"""The lab's image registry, as seen by a client that pulls."""

import base64
import gzip
import hashlib
import http.client
import io
import json
import tarfile
from contextlib import closing

import pytest
from lab_registry import OCI, Registry

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
def registry(tmp_path):
    with Registry("127.0.0.1", tmp_path / "registry", port=0) as made:
        yield made


def blob(client, registry: Registry, name: str) -> str:
    """Path of the first layer of an image."""
    layer = client.json(f"/v2/{name}/manifests/1")["layers"][0]
    return f"/v2/{name}/blobs/{layer['digest']}"


def test_an_image_is_pulled_by_tag_and_every_digest_matches(registry, archive):
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


def test_a_pull_continues_at_its_offset(registry, archive):
    client = Client(registry)
    registry.add("stub", archive, level=0)
    path = blob(client, registry, "stub")
    before = registry.served_bytes
    status, headers, content = client.get(path, Range="bytes=100000-")
    assert (status, headers["Content-Range"]) == (206, f"bytes 100000-{len(LAYER) - 1}/{len(LAYER)}")
    assert content == LAYER[100000:]
    assert registry.served_bytes - before == len(LAYER) - 100000


def test_an_outage_ends_the_response_and_later_requests_until_it_is_over(registry, archive):
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


def test_a_login_is_required_and_accepted(registry, archive):
    client = Client(registry)
    registry.add("stub", archive)
    registry.login = ("someone", "secret")
    status, headers, content = client.get("/v2/")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="lab"')
    assert json.loads(content)["errors"][0]["code"] == "UNAUTHORIZED"
    word = base64.b64encode(b"someone:secret").decode()
    assert client.get("/v2/stub/manifests/1", Authorization=f"Basic {word}")[0] == 200
