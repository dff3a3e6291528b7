"""Nodes on one machine: each with a home directory, a file-based Docker engine, and one lease."""

from __future__ import annotations

import fcntl
import hashlib
import http.server
import json
import os
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.errors import HostLost
from sparkcluster.facts import collect
from sparkcluster.hosts.base import Stream
from sparkcluster.hosts.local import LocalHost
from sparkcluster.report import Report, Transfer
from sparkcluster.staging import transfers
from tests.unit.docker_engine import Engine, end_pullers
from tests.unit.staging.archives import ImageMade, tar
from tests.unit.staging.workers import Proxy, Worker
from tests.unit.staging.world import REVISION, World

# It stores archives as they were loaded, by the ID of each image in them, and moves tags as Docker does.
# A node has no programs of this machine's Python environments, such as hf of huggingface_hub.
PATH = ":".join(each for each in os.environ["PATH"].split(":") if not (Path(each).parent / "pyvenv.cfg").exists())
DOCKER = f"""#!{sys.executable} -IS
import gzip, hashlib, io, json, os, sys, tarfile
place = os.environ["FAKE_DOCKER"]
path = lambda *parts: os.path.join(place, *parts)
reference = lambda name: path("refs", name.replace("/", "%"))
sha = lambda data: "sha256:" + hashlib.sha256(data).hexdigest()
def known(name):
    if os.path.exists(reference(name)):
        return open(reference(name)).read()
    return name if os.path.exists(path("images", name)) else None
def fail(text):
    sys.stderr.write(text + "\\n"); sys.exit(1)
def member(archive, name):
    try:
        return archive.extractfile(name).read()
    except (AttributeError, KeyError):
        fail("open /var/lib/docker/tmp/" + name + ": no such file or directory")
def content(archive, name):
    data = member(archive, name)
    return gzip.decompress(data) if data[:2] == b"\\x1f\\x8b" else data
def lent(diffs, place, name):  # a layer that is not in the archive: below are the same layers, or that file is there
    for each in [] if os.path.exists(path("forgetful")) else os.listdir(path("images")):
        archive = tarfile.open(path("images", each))
        if os.path.exists(path("containerd")):
            if name in archive.getnames():
                return member(archive, name)
            continue
        found = json.loads(member(archive, "manifest.json"))[0]
        if (json.loads(member(archive, found["Config"]))["rootfs"]["diff_ids"] or [])[:place + 1] == diffs[:place + 1]:
            return content(archive, found["Layers"][place])
    fail("open /var/lib/docker/tmp/" + name + ": no such file or directory")
def whole(data):
    archive, made = tarfile.open(fileobj=io.BytesIO(data)), io.BytesIO(data)
    there = set(archive.getnames())
    files = {{name: member(archive, name) for name in there}}
    for each in json.loads(member(archive, "manifest.json")):
        diffs = json.loads(member(archive, each["Config"]))["rootfs"]["diff_ids"] or []
        for place, name in enumerate(each["Layers"]):
            if name not in there:
                files[name] = lent(diffs, place, name)
    if len(files) == len(there):
        return data
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, text in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return made.getvalue()
def loaded(data):
    try:
        archive = tarfile.open(fileobj=io.BytesIO(data))
    except tarfile.TarError:
        fail("archive/tar: invalid tar header")
    for each in json.loads(member(archive, "manifest.json")):
        text = member(archive, each["Config"])
        layers = [content(archive, name) for name in each["Layers"]]
        config = json.loads(text)
        if [sha(layer) for layer in layers] != (config["rootfs"]["diff_ids"] or []):
            fail("invalid diffID for layer 0")
        yield sha(text), config, each["RepoTags"]
with open(path("calls"), "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
verb = sys.argv[1]
if verb == "save":
    data = open(path("sent" if os.path.exists(path("sent")) else "images/" + known(sys.argv[2])), "rb").read()
    if os.path.exists(path("broken")):
        sys.stdout.buffer.write(data[:100000]); sys.stdout.flush(); fail("no space left on device")
    sys.stdout.buffer.write(data)
elif verb == "load":
    data = sys.stdin.buffer.read()
    open(path("received"), "wb").write(data)
    if os.path.exists(path("full")):
        fail("write /layer.tar: no space left on device")
    if os.path.exists(path("down")):
        fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    if os.path.exists(path("killed")):
        os.kill(os.getpid(), 9)
    if os.path.exists(path("says")):
        print(open(path("says")).read()); sys.exit()
    data = whole(data)
    for name, _, tags in list(loaded(data)):
        open(path("images", name), "wb").write(data)
        for tag in tags or []:
            open(reference(tag), "w").write(name)
            print("Loaded image: " + tag)
        if not tags:
            print("Loaded image ID: " + name)
elif verb == "tag":
    open(reference(sys.argv[3]), "w").write(known(sys.argv[2]))
elif verb == "image":
    name = known(sys.argv[3])
    if name is None:
        fail("Error response from daemon: No such image: " + sys.argv[3])
    for found, config, _ in loaded(open(path("images", name), "rb").read()):
        if found == name:
            print(json.dumps([{{"Id": name, "RootFS": {{"Layers": config["rootfs"]["diff_ids"]}},
                               "Config": config["config"]}}]))
elif verb == "build":
    flag = lambda name: sys.argv[sys.argv.index(name) + 1]
    seen = {{"dockerfile": open(flag("--file")).read(), "files": sorted(os.listdir(sys.argv[-1])),
            "environ": {{name: text for name, text in os.environ.items() if name.startswith("BUILD")}}}}
    open(path("seen"), "w").write(json.dumps(seen))
    for number in range(40):
        print("#%d step" % number, flush=True)
    import time
    time.sleep(60 if os.path.exists(path("endless")) else 0)
    if os.path.exists(path("failing")):
        fail("ERROR: failed to solve: process did not complete successfully: exit code: 2")
    data = open(path("prepared"), "rb").read()
    for name, _, _ in loaded(data):
        open(path("images", name), "wb").write(data)
        open(reference(flag("--tag")), "w").write(name)
elif verb == "run":
    open(path("environ"), "w").write(json.dumps(dict(os.environ)))
    fail(open(path("says")).read() if os.path.exists(path("says")) else "403 Forbidden: hub says no")
"""

# Downloads like hf, as seen by the hub and the cache; with the file "liar" in its home it reports denied access.
HF = f"""#!{sys.executable} -IS
import os, sys, urllib.error, urllib.request
name, files, revision = sys.argv[2], sys.argv[3:-2], sys.argv[-1]
request = urllib.request.Request(os.environ["HF_ENDPOINT"] + "/" + name + "/resolve/" + revision + "/config.json")
if os.environ.get("HF_TOKEN"):
    request.add_header("Authorization", "Bearer " + os.environ["HF_TOKEN"])
    open(os.path.expanduser("~/stolen"), "w").write(os.environ["HF_TOKEN"])
try:
    urllib.request.urlopen(request).close()
except urllib.error.HTTPError as error:
    sys.exit("GatedRepoError: %d Client Error" % error.code)
if os.path.exists(os.path.expanduser("~/liar")):
    sys.exit("GatedRepoError: 401 Client Error")
folder = os.path.join(os.environ["HF_HOME"], "hub", "models--" + name.replace("/", "--"))
snapshot = os.path.join(folder, "snapshots", "0123456789abcdef0123456789abcdef01234567")
os.makedirs(snapshot)
os.makedirs(os.path.join(folder, "refs"))
open(os.path.join(folder, "refs", revision), "w").write(os.path.basename(snapshot))
for file in files or ("config.json", "tokenizer.json", "model.bin"):
    open(os.path.join(snapshot, file), "wb").write(bytes([2]).ljust(8, bytes(1)) * ("safe" in file) + b"{{}}")
"""


class Node(LocalHost):
    """A node with a separate home and Docker engine."""

    def __init__(self, name: str, home: Path, tools: Path, sockets: Path) -> None:
        super().__init__(name)
        self.home = home
        self.docker = home / "docker"
        for folder in ("images", "refs"):
            (self.docker / folder).mkdir(parents=True)
        self.engine = Engine(sockets / name)
        self.engine.documents = self._document
        self._before = [
            "env", "-u", "HF_TOKEN", "-u", "DOCKER_CONFIG", f"HOME={home}", f"FAKE_DOCKER={self.docker}",
            f"DOCKER_HOST=unix://{self.engine.socket}", f"PATH={tools}:{PATH}",
        ]  # fmt: skip

    def _start(self, argv: list[str], limit_s: float | None = None) -> Stream:
        return super()._start([*self._before, *argv], limit_s)

    @property
    def hf_home(self) -> Path:
        return self.home / ".cache" / "huggingface"

    def _document(self, path: str) -> Any:
        """The API's answer about the engine: containerd's store if the test created a file of that name."""
        if path == "/info":
            stored = [["driver-type", "io.containerd.snapshotter.v1"]] if (self.docker / "containerd").exists() else []
            return {"ServerVersion": "28.2.2", "DriverStatus": stored}
        if path == "/images/json":
            return [{"Id": name, "Created": 1} for name in self.image_ids()]
        image_id, _, what = path.removeprefix("/images/").partition("/")
        if image_id not in self.image_ids():
            return None
        with tarfile.open(self.docker / "images" / image_id) as archive:

            def text(name: str) -> Any:
                found = archive.extractfile(name)
                assert found is not None
                return json.load(found)

            (listed,) = text("manifest.json")
            config = text(listed["Config"])
            sizes = [archive.getmember(name).size for name in listed["Layers"]]
        if what == "history":
            return [{"Size": 0}, *({"Size": size} for size in reversed(sizes))]
        return {"Id": image_id, "RootFS": {"Layers": config["rootfs"]["diff_ids"] or []}, "Config": config["config"]}

    def add_image(self, image: ImageMade, reference: str) -> str:
        entries = image.oci(compressed=(self.docker / "containerd").exists())
        (self.docker / "images" / image.id).write_bytes(tar(entries))
        (self.docker / "refs" / reference.replace("/", "%")).write_text(image.id)
        return image.id

    def images(self) -> dict[str, str]:
        """Image IDs by tag."""
        return {path.name.replace("%", "/"): path.read_text() for path in (self.docker / "refs").iterdir()}

    def image_ids(self) -> set[str]:
        return {path.name for path in (self.docker / "images").iterdir()}

    def docker_calls(self) -> list[list[str]]:
        calls = self.docker / "calls"
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


class BreakingStream:
    """A stream from ``node`` that breaks after its first line."""

    def __init__(self, running, node):
        self.running, self.node = running, node

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.close()

    def lines(self, silence_s):
        yield next(self.running.lines(silence_s))
        raise HostLost(f"connection to {self.node} broke", node=self.node)


class RecordingReport(Report):
    """A Report that records."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.transfers: list[Transfer] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def transfer(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)


class Hub:
    """A hub on loopback that has every model; ``gated`` models need ``token``.

    Attributes:
        address: value for HF_ENDPOINT.
        requests: model and token (None without a token) of each request.
        files: the public list of files of every model, with their sizes; None for no list.
    """

    token = "hf_very_secret"

    def __init__(self) -> None:
        self.gated: set[str] = set()
        self.requests: list[tuple[str, str | None]] = []
        self.files: dict[str, int] | None = None
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/api/"):
                    self._list(hub.files)
                    return
                model, _, _ = self.path[1:].partition("/resolve/")
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
                hub.requests.append((model, token))
                denied = model in hub.gated and token != hub.token
                self.send_response(401 if denied else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def _list(self, files: dict[str, int] | None) -> None:
                if files is None:
                    self.send_error(404)
                    return
                siblings = [{"rfilename": name, "size": size} for name, size in files.items()]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"siblings": siblings}).encode())

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def node(tmp_path):
    """Creates a node by name; paths of sockets are short (108 bytes)."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "docker").write_text(DOCKER)
    (tools / "docker").chmod(0o755)
    made = []

    def make(name):
        made.append(Node(name, tmp_path / name, tools, Path(sockets)))
        return made[-1]

    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        yield make
        end_pullers(tmp_path / "state")
        for each in made:
            each.engine.close()


@pytest.fixture
def hub(node, monkeypatch, tmp_path):
    """A hub that nodes and this machine reach, and ``hf`` on the nodes."""
    made = Hub()
    (tmp_path / "tools" / "hf").write_text(HF)
    (tmp_path / "tools" / "hf").chmod(0o755)
    monkeypatch.setenv("HF_ENDPOINT", made.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-login"))
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


class HeldLease:
    """The lease of cluster ``atlas`` with epoch 7, held by the test."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = str(state_dir)
        place = state_dir / "clusters" / "atlas"
        place.mkdir(parents=True)
        self._record = place / "lease.json"
        self.record()
        self._lock = place / "lease.lock"
        self.take()

    def take(self) -> None:
        self._file = self._lock.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def document(self, epoch: int = 7) -> dict:
        return {"state_dir": self.state_dir, "cluster": "atlas", "epoch": epoch}

    def record(self, **changes: Any) -> None:
        self._record.write_text(json.dumps({"epoch": 7, "operator": "test", "granted": True, **changes}))

    def let_go(self) -> None:
        self._file.close()


@pytest.fixture
def lease(tmp_path):
    held = HeldLease(tmp_path / "state")
    yield held
    held.let_go()


def write_model(hf_home: Path, model: str = "Qwen/Qwen3-8B", *, weights: bytes = b"w" * 3_000_000) -> dict[str, int]:
    """A model in Hugging Face's cache format; returns sizes by name."""
    root = hf_home / "hub" / ("models--" + model.replace("/", "--"))
    snapshot = root / "snapshots" / REVISION
    (snapshot / "sub").mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(REVISION)
    files = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": weights, "sub/empty.txt": b""}
    for name, content in files.items():
        blob = root / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        up = "../" * (2 + name.count("/"))
        (snapshot / name).symlink_to(f"{up}blobs/{blob.name}")
    return {name: len(content) for name, content in files.items()}


def tree(folder: Path) -> dict[str, bytes | str]:
    """Files with their content and links with their target below ``folder``."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def model():
    """Functions that write a model into a cache and read a tree back, and the revision."""
    return write_model, tree, REVISION


@pytest.fixture
def names():
    """The nodes of ``world``."""
    return "abc"


@pytest.fixture
def world(names, node, spark, cluster, lease, monkeypatch):
    """A cluster of nodes that report the holdings set by the test."""
    made = World([node(name) for name in names], spark, cluster, lease)
    monkeypatch.setattr(transfers, "collect_facts", made.collected)
    monkeypatch.setattr(collect, "listed_twice", lambda _spec, _facts: {})  # all of them are this machine
    return made


@pytest.fixture
def really(world, monkeypatch):
    """After a copy the nodes of ``world`` report the model files that they have."""
    monkeypatch.setattr(transfers, "collect_facts", world.really)


@pytest.fixture
def workers(tmp_path):
    """Creates workers of nodes by name."""
    made = []

    def make(*names):
        made.extend(Worker(name, tmp_path) for name in names)
        return made[-len(names) :]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def proxy():
    """Creates a proxy between two nodes."""
    made = []

    def make(*args, **more):
        made.append(Proxy(*args, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()
