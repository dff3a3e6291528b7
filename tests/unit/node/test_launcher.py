"""The launcher as sent: one file, run by a plain Python, with scripts that imitate programs of the image."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.hosts.program import standalone

LIMIT_S = 60
# Not the Python that runs the tests: it may have Ray installed.
PYTHON = getattr(sys, "_base_executable", sys.executable)


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


class Image:
    """A directory that imitates a rank's image, and the rank itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.site = root / "site"
        self.rank = root / "rank"
        for folder in (self.bin, self.site, self.rank):
            folder.mkdir()
        (self.rank / "entry.py").write_text(standalone("launcher", "vllm"))
        self.prefix: list[str] = []
        # arguments of the engine
        self.seen = root / "seen.json"
        script(
            self.bin / "vllm",
            f"""
            #!{PYTHON}
            import json, os, sys
            json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}}, open({str(self.seen)!r}, "w"))
            print("engine speaks", flush=True)
            """,
        )

    def ray(self, alive: list[list[str]], *, start_code: int = 0) -> None:
        """A Ray whose nodes become alive as in ``alive``, one list per second."""
        (self.site / "ray").mkdir(exist_ok=True)
        (self.site / "ray" / "__init__.py").write_text(
            textwrap.dedent(
                f"""
                ALIVE = {alive!r}
                def init(address, **_):
                    pass
                def nodes():
                    now = ALIVE.pop(0) if len(ALIVE) > 1 else ALIVE[0]
                    dead = [{{"NodeManagerAddress": "10.9.9.9", "Alive": False}}]
                    return dead + [{{"NodeManagerAddress": one, "Alive": True}} for one in now]
                """
            )
        )
        script(
            self.bin / "ray",
            f"""
            #!{PYTHON}
            import json, os, sys
            json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}}, open({str(self.root / "ray.json")!r}, "w"))
            print("ray says something")
            sys.exit({start_code})
            """,
        )

    def document(self, **more: Any) -> dict[str, Any]:
        return {
            "version": 1,
            "cluster": "c",
            "group": "c",
            "node": "n1",
            "rank": 0,
            "role": "head",
            "executor": "none",
            "address": "127.0.0.1",
            "members": ["127.0.0.1"],
            "ray": None,
            "join_timeout_s": 5,
            "engine": ["vllm", "serve", "/models/tiny"],
            "setup": [],
            "carry_over": ["NCCL_IB_HCA"],
            "ptxas": False,
            "ray_path": None,
            "runtime": "process",  # a container has a separate process namespace, this machine has other processes
            **more,
        }

    def ray_document(self, **more: Any) -> dict[str, Any]:
        start = ["ray", "start", "--head", "--node-ip-address=127.0.0.1", "--port=6379"]
        ray = {"port": 6379, "address": "127.0.0.1:6379", "start": start, "token": False}
        return self.document(**{"executor": "ray", "ray": ray, **more})

    def start(self, document: dict[str, Any], **env: str) -> subprocess.Popen[str]:
        (self.rank / "launcher.json").write_text(json.dumps(document))
        return subprocess.Popen(
            [*self.prefix, PYTHON, str(self.rank / "entry.py"), str(self.rank / "launcher.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "PYTHONPATH": str(self.site),
                "HOME": str(self.root),
                "TMPDIR": str(self.root),
                **env,
            },
        )

    def run(self, document: dict[str, Any], **env: str) -> tuple[int, list[str]]:
        with self.start(document, **env) as process:
            output = process.communicate(timeout=LIMIT_S)[0]
        return process.returncode, output.splitlines()

    @property
    def engine(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.seen.read_text())
        return document


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_the_launcher_execs_the_engine(image: Image) -> None:
    """The engine replaces the launcher's process, so its exit is the container's."""
    with image.start(image.document()) as process:
        output = process.communicate(timeout=LIMIT_S)[0].splitlines()
        assert process.returncode == 0
        assert image.engine["pid"] == process.pid
    assert output == ["[sparkcluster] phase=engine vllm", "engine speaks"]
    assert image.engine["argv"] == ["serve", "/models/tiny"]


def test_setup_lines_run_in_order_before_the_engine(image: Image) -> None:
    code, output = image.run(image.document(setup=["echo first", "echo second; echo third"]))
    assert code == 0
    assert output == [
        "[sparkcluster] phase=setup 1/2",
        "first",
        "[sparkcluster] phase=setup 2/2",
        "second",
        "third",
        "[sparkcluster] phase=engine vllm",
        "engine speaks",
    ]


def test_weights_unreadable_for_the_containers_user_are_reported(image: Image) -> None:
    folder = image.root / "hf" / "hub" / "models--owner--model"
    snapshot, blobs = folder / "snapshots" / "0123abc", folder / "blobs"
    for each in (snapshot, blobs, folder / "refs"):
        each.mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123abc")
    (blobs / "f00").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/f00")
    (snapshot / "missing.json").symlink_to("../../blobs/missing")
    document = image.document(model={"id": "owner/model", "revision": "main"}, runtime="docker")
    # root can open every file unless these capabilities are dropped
    image.prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    for closed, named in ((blobs / "f00", snapshot / "config.json"), (folder / "refs" / "main",) * 2, (folder,) * 2):
        mode = closed.stat().st_mode
        closed.chmod(0)
        code, lines = image.run(document, HF_HOME=str(image.root / "hf"))
        closed.chmod(mode)
        assert (code, lines[-1]) == (
            6,
            f"[sparkcluster] error: user {os.geteuid()} of the container cannot read {named}",
        )
    code, lines = image.run(document, HF_HOME=str(image.root / "hf"))
    assert code == 0, lines
    assert image.seen.exists()


def test_a_head_waits_for_every_member_by_its_address(image: Image) -> None:
    """Two nodes are alive from the start, but one of them is foreign: counting alone would proceed."""
    image.ray([["127.0.0.1", "10.0.0.99"], ["127.0.0.1", "10.0.0.99"], ["127.0.0.1", "10.0.0.99", "10.0.0.2"]])
    code, output = image.run(image.ray_document(members=["127.0.0.1", "10.0.0.2"]))
    told = [line for line in output if "bind" not in line]
    assert code == 0, output
    assert told[0].startswith("[sparkcluster] phase=carry-over ")
    assert told[1:] == [
        "[sparkcluster] phase=ray-start head 127.0.0.1:6379",
        "[sparkcluster] phase=ray-wait 0/2 missing 127.0.0.1 10.0.0.2",
        "[sparkcluster] phase=ray-wait 1/2 missing 10.0.0.2",
        "[sparkcluster] phase=ray-formed 2/2",
        "[sparkcluster] phase=engine vllm",
        "engine speaks",
    ]
    assert image.engine["env"]["RAY_ADDRESS"] == "127.0.0.1:6379"


def test_a_member_that_does_not_join_is_reported(image: Image) -> None:
    image.ray([["127.0.0.1"]])
    code, output = image.run(image.ray_document(members=["127.0.0.1", "10.0.0.2"], join_timeout_s=2))
    assert code == 4
    assert output[-1].endswith("has no 10.0.0.2 (alive: 127.0.0.1)")
    assert not image.seen.exists()


def test_output_of_a_ray_that_fails_to_start_is_shown(image: Image) -> None:
    image.ray([[]], start_code=1)
    code, output = image.run(image.ray_document())
    assert code == 5
    assert "[sparkcluster] error: ray start exited with 1: ray says something" in output


def test_a_token_is_required_and_never_printed(image: Image) -> None:
    image.ray([["127.0.0.1"]])
    document = image.ray_document()
    document["ray"]["token"] = True
    code, output = image.run(document, RAY_AUTH_TOKEN="s3cret" * 8)
    assert code == 0
    assert image.engine["env"]["RAY_AUTH_MODE"] == "token"
    started = json.loads((image.root / "ray.json").read_text())
    assert started["env"]["RAY_AUTH_MODE"] == "token"
    assert "s3cret" not in " ".join([*output, *started["argv"]])
    code, output = image.run(document)
    assert code == 5
    assert "RAY_AUTH_TOKEN" in output[-1]


def test_a_worker_joins_when_the_head_answers_and_runs_ray(image: Image) -> None:
    image.ray([[]])
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        port = head.getsockname()[1]
        start = ["ray", "start", f"--address=127.0.0.1:{port}", "--block"]
        ray = {"port": port, "address": f"127.0.0.1:{port}", "start": start, "token": False}
        document = image.ray_document(role="worker", ray=ray, address="127.0.0.2", members=["127.0.0.1", "127.0.0.2"])
        callers: list[str] = []

        def answer() -> None:
            connection, caller = head.accept()
            callers.append(caller[0])
            connection.close()

        with image.start(document) as process:
            assert process.stdout is not None
            seen = []
            for line in process.stdout:
                seen.append(line.strip())
                if "ray-join" in line:
                    head.listen()
                    threading.Thread(target=answer, daemon=True).start()
            assert process.wait(LIMIT_S) == 0
        assert callers == ["127.0.0.2"]
    assert seen[-2:] == ["[sparkcluster] phase=ray-start worker 127.0.0.2", "ray says something"]
    assert json.loads((image.root / "ray.json").read_text())["env"]["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"


ORDERLY = """
import json, os, signal, subprocess, sys, time
EVENTS, PYTHON, STUBBORN = json.loads(os.environ["TEST"])

def waits(name, seconds):
    def ended(*_):
        if name == "worker" and STUBBORN:
            return
        time.sleep(seconds)
        print(name, file=open(EVENTS, "a"), flush=True)
        os._exit(1)
    signal.signal(signal.SIGTERM, ended)
    os.write(1, b"up %s %d\\n" % (name.encode(), os.getpid()))  # at once: three processes write to this pipe
    while True:
        time.sleep(60)

if len(sys.argv) > 1 and sys.argv[1] in ("worker", "agent"):
    waits(sys.argv[1], 0.3)
subprocess.Popen(["ray::RayWorkerProc", __file__, "worker"], executable=PYTHON)
subprocess.Popen(["ray::DashboardAgent", __file__, "agent"], executable=PYTHON)
waits("ray", 0)
"""


@contextlib.contextmanager
def shutdown_order(image: Image, *, stubborn: bool = False) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """A worker whose Ray has started an engine process and an agent, and their names."""
    image.ray([[]])
    script(image.bin / "ray", f"#!{PYTHON}\n{ORDERLY}")
    pids: dict[str, int] = {}
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        ray = {"port": port, "address": f"127.0.0.1:{port}", "start": ["ray", "start"], "token": False}
        document = image.ray_document(role="worker", ray=ray, members=["127.0.0.1", "127.0.0.2"])
        process = image.start(document, TEST=json.dumps([str(image.root / "events"), PYTHON, stubborn]))
        assert process.stdout is not None
        while len(pids) < 3:
            line = process.stdout.readline()
            assert line, "the worker ended"
            if line.startswith("up "):
                _, name, pid = line.split()
                pids[name] = int(pid)
    try:
        yield process, pids
    finally:
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_a_worker_told_to_stop_ends_the_engine_before_ray(image: Image) -> None:
    """Ray kills the engine's processes after one second; they hold GPU memory, and need longer to release it."""
    with shutdown_order(image) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 143
    assert (image.root / "events").read_text().split()[:2] == ["worker", "ray"]


def test_a_worker_exits_with_its_ray(image: Image) -> None:
    with shutdown_order(image) as (process, pids):
        os.kill(pids["ray"], signal.SIGKILL)
        assert process.wait(LIMIT_S) == 128 + signal.SIGKILL


def test_the_sockets_of_rays_workers_are_confined_to_their_node(image: Image) -> None:
    """A raylet removes LD_PRELOAD from its workers, and vLLM copies the head's variables to them."""
    image.ray([["127.0.0.1", "127.0.0.2"]])
    code, output = image.run(image.ray_document(members=["127.0.0.1", "127.0.0.2"]))
    assert code == 0, output
    assert image.engine["env"]["RAY_LD_PRELOAD_ON_WORKERS"] == "1"
    kept = next(line.split()[-1] for line in output if "phase=carry-over" in line)
    names = set(json.loads(Path(kept).read_text()))
    assert {"LD_PRELOAD", "SPARKCLUSTER_BIND_ADDRESS", "SPARKCLUSTER_BIND_OPEN"} <= names


@pytest.mark.parametrize(("token", "code"), [(False, 5), (True, 0)])
def test_ray_without_a_token_is_not_started_if_its_sockets_cannot_be_confined(
    image: Image, token: bool, code: int
) -> None:
    image.ray([["127.0.0.1", "127.0.0.2"]])
    document = image.ray_document(members=["127.0.0.1", "127.0.0.2"])
    document["ray"]["token"] = token
    exit_code, output = image.run(document, PATH=str(image.bin), RAY_AUTH_TOKEN="s3cret" * 8)
    assert exit_code == code
    assert (image.root / "ray.json").exists() == token
    missing = "no C compiler (cc, gcc, clang, tcc)"
    if token:
        assert f"[sparkcluster] phase=bind missing: {missing}" in output
    else:
        assert output[-1] == f"[sparkcluster] error: Ray has no token and would listen on all addresses: {missing}"


def test_ray_without_a_token_ends_if_its_sockets_cannot_be_listed() -> None:
    program = (
        "import time; from sparkcluster.node import launcher; launcher.wildcards = None; "
        "launcher.watch_sockets({'executor': 'ray', 'ray': {}}, 'mark'); time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "[sparkcluster] error: sockets cannot be checked: " in done.stdout
    assert done.stdout.endswith(", and Ray has no token\n")


# Listens on all addresses past the library, as a program in Go does.
RAW = """
import ctypes, os, platform, socket, time
s, libc = socket.socket(), ctypes.CDLL(None)
bind, listen = {"x86_64": (49, 50), "aarch64": (200, 201)}[platform.machine()]
libc.syscall(bind, s.fileno(), bytes([2, 0]) + bytes(14), 16)
libc.syscall(listen, s.fileno(), 5)
os.write(1, b"engine listens on %d\\n" % s.getsockname()[1])  # as one, since another process writes there too
time.sleep(600)
"""


@pytest.mark.parametrize("token", [False, True])
def test_a_socket_on_all_addresses_ends_ray_without_a_token_and_is_reported_with_one(image: Image, token: bool) -> None:
    image.ray([["127.0.0.1", "127.0.0.2"]])
    script(image.bin / "vllm", f"#!{PYTHON}\n{RAW}")
    document = image.ray_document(members=["127.0.0.1", "127.0.0.2"], runtime="process")
    document["ray"]["token"] = token
    told: list[str] = []
    with image.start(document, RAY_AUTH_TOKEN="s3cret" * 8) as process:
        assert process.stdout is not None
        while len(told) < 2:  # by the engine and by the launcher
            line = process.stdout.readline()
            assert line
            told += [line] if "listens on" in line else []
        if token:
            process.kill()
        code = process.wait(LIMIT_S)
    engine, said = sorted(told, reverse=True)
    assert f"vllm listens on all addresses with port {engine.split()[-1]}" in said
    if token:
        assert said.startswith("[sparkcluster] phase=bind open: ")
    else:
        assert code in {-signal.SIGTERM, -signal.SIGKILL}
        assert said.startswith("[sparkcluster] error: ")
        assert said.endswith("and Ray has no token\n")
