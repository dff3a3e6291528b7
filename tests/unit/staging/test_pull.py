"""Pulls by the Docker engine's API, in a process that outlives the operator's connection. A server imitates the engine."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path

import pytest

from sparkcluster.errors import LeaseLost, StageError
from sparkcluster.hosts.program import stream
from sparkcluster.staging import outside
from sparkcluster.staging.copy import Done, Failure, Step
from sparkcluster.staging.outside import run_job
from tests.unit.docker_engine import DONE, layer
from tests.unit.staging.conftest import BreakingStream

MB = 1_000_000


class Pull:
    """A pull on node ``a``, its reports, and a lease."""

    def __init__(self, host, lease) -> None:
        self.host, self.engine = host, host.engine
        self.request = {"reference": "vllm:v1"}
        self.lease = lease
        self.step = Step("stage image", lambda _: lease.document(), lambda: False)

    def __call__(self, report=None) -> Done | Failure:
        return run_job(self.step, self.host, "pull", self.request, report or (lambda _done, _total: None))

    def files(self) -> list[Path]:
        return [*Path(self.lease.state_dir).glob("pulls/*/state.json")]

    def begin(self):
        """The program that follows it."""
        return stream(self.host, "pull", {**self.request, **self.lease.document(), "do": "run"})


@pytest.fixture
def pulled(node, lease):
    return Pull(node("a"), lease)


def slow(pieces: int, pause_s: float = 0.3) -> list:
    """One layer of ``pieces`` MB that arrives slowly."""
    parts = [[layer("a1", "Downloading", number * MB, pieces * MB), pause_s] for number in range(1, pieces + 1)]
    return [
        layer("a1", "Pulling fs layer"),
        *(each for part in parts for each in part),
        layer("a1", "Download complete"),
    ]


def test_a_pull_without_progress_times_out(pulled, monkeypatch):
    monkeypatch.setattr("sparkcluster.staging.copy._STUCK_S", 2)
    pulled.engine.scripts = [
        [layer("a1", "Downloading", MB, 7 * MB), 1.0, layer("a1", "Downloading", MB, 7 * MB), 30.0]
    ]
    with pytest.raises(StageError, match="stage image on a: no progress for "):
        pulled()
    assert pulled.engine.left.wait(60), "the engine pulls while the connection is open"


def test_a_pull_outlives_the_operators_connection_and_the_next_run_follows_it(pulled):
    more = threading.Event()
    pulled.engine.scripts = [[*slow(1, 0), more, *DONE]]
    running = pulled.begin()
    next(running.lines(60))
    running.close()
    assert not pulled.engine.left.wait(0.5)
    assert pulled(lambda *_: more.set()) == Done(bytes=MB)
    assert len(pulled.engine.pulls) == 1


def test_ctrl_c_ends_the_pull_on_the_node(pulled):
    pulled.engine.scripts = [[*slow(1, 0), 30.0]]

    def interrupt(done, _total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pulled(interrupt)
    assert pulled.engine.left.wait(60)


def test_a_broken_connection_ends_the_command_and_not_the_pull(pulled, monkeypatch):
    done = threading.Event()
    pulled.engine.scripts = [[*slow(5, 0.1), done, *DONE]]
    monkeypatch.setattr(outside, "stream", lambda *each: BreakingStream(stream(*each), "a"))
    with pytest.raises(StageError, match="stage image on a: connection to a broke") as caught:
        pulled()
    assert caught.value.hint == "the pull continues on a: retry to follow it"
    monkeypatch.setattr(outside, "stream", stream)
    assert pulled(lambda *_: done.set()) == Done(bytes=5 * MB)
    assert len(pulled.engine.pulls) == 1


def test_an_error_of_the_docker_engine_is_not_retried(pulled):
    """By then it has tried each layer five times."""
    pulled.engine.scripts = [
        [{"error": "read tcp: connection reset", "errorDetail": {"message": "read tcp: connection reset"}}]
    ]
    assert pulled() == Failure("a", "registry", "read tcp: connection reset")
    assert len(pulled.engine.pulls) == 1


def test_an_engine_that_exits_is_not_treated_as_success(pulled):
    pulled.engine.scripts = [[layer("a1", "Pulling fs layer")]]
    assert pulled() == Failure("a", "docker", "Docker ended the pull without a result")


def test_the_users_login_is_sent_to_the_registry_and_never_stored(pulled):
    folder = pulled.host.home / ".docker"
    folder.mkdir()
    pulled.request["reference"] = "nvcr.io/nvidia/vllm:25.10"
    secret = base64.b64encode(b"$oauthtoken:very-secret").decode()
    (folder / "config.json").write_text(json.dumps({"auths": {"nvcr.io": {"auth": secret}}}))
    pulled()
    ((query, header),) = pulled.engine.pulls
    assert query == {"fromImage": "nvcr.io/nvidia/vllm", "tag": "25.10"}
    assert json.loads(base64.urlsafe_b64decode(header)) == {
        "username": "$oauthtoken", "password": "very-secret", "serveraddress": "nvcr.io",
    }  # fmt: skip
    (file,) = pulled.files()
    assert "secret" not in file.read_text()


def test_an_expired_epoch_starts_no_pull(pulled):
    pulled.step = Step("stage image", lambda _: pulled.lease.document(epoch=6), lambda: False)
    with pytest.raises(LeaseLost, match="epoch 6 is over"):
        pulled()
    assert pulled.engine.pulls == []
