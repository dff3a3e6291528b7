"""The probe as a whole: it travels, it never fails as a whole, and it never waits longer than its limit."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkcluster.engines.vllm import node
from sparkcluster.facts.base import Unread
from sparkcluster.facts.parse import parse
from sparkcluster.hosts.program import command, source
from sparkcluster.node import common, gpu, interpreter, network, probe, storage, system
from sparkcluster.node.machine import Machine, Unreadable, absolute
from sparkcluster.node.readings import Readings

REQUEST = {
    "cluster": "pair",
    "state_dir": "~/state",
    "hf_home": "~/hf",
    "image": None,
    "model": None,
    "runtime": "docker",
    "python": None,
}


def test_it_travels_and_answers_facts_of_this_machine() -> None:
    argv, stdin = command(
        "probe", {**REQUEST, "model": {"id": "a/b", "revision": None, "path": None}}, python=sys.executable
    )
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
    facts = parse("here", json.loads(done.stdout))
    assert facts.memory.total_bytes > 0  # type: ignore[union-attr]
    assert facts.weights.path is None  # type: ignore[union-attr]
    assert not done.stderr


def test_the_source_that_travels_stays_small() -> None:
    """It reads the lease of staging, layers of images, mounts, what guards say, and host keys: 5 kB more than without."""
    _, stdin = command("probe", REQUEST)
    assert len(stdin) < 53_000


def test_what_travels_is_python_3_8() -> None:
    """DGX OS brings 3.12, but a Spark may be reached by whatever python3 its user put first."""
    for name in (
        "common",
        "machine",
        "ranks",
        "readings",
        "network",
        "container_facts",
        "engine",
        "gpu",
        "interpreter",
        "storage",
        "system",
        "probe",
        "image",
    ):
        ast.parse(source(name), feature_version=(3, 8))
    ast.parse(interpreter.snippet(node.INSPECTION), feature_version=(3, 8))


def test_a_crashing_reader_affects_only_its_own_reading(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_machine: Machine) -> None:
        raise ZeroDivisionError("never seen before")

    for name in ("interfaces", "hcas", "listeners"):
        monkeypatch.setattr(network, name, crash)
    machine = make_machine("founders-p1")
    facts = parse("spark", probe.main(machine.case["request"], machine=machine))
    assert facts.interfaces == Unread(unread="ZeroDivisionError: never seen before")
    assert facts.docker.version == "29.1.3"  # type: ignore[union-attr]


def test_every_reading_may_fail_and_facts_remain(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is unread still makes a document of the right shape."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unreadable("permission denied: /x")

    machine = make_machine("founders-p1")
    for name in ("bytes", "names", "run", "docker", "addresses", "space"):
        monkeypatch.setattr(machine, name, refuse)
    facts = parse("spark", probe.main(machine.case["request"], machine=machine))
    assert facts.memory == Unread(unread="permission denied: /x")
    assert facts.disks == Unread(unread="permission denied: /x")
    assert facts.infiniband_devices is False


def test_a_hanging_reading_is_abandoned(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 0.2)
    monkeypatch.setattr(probe, "_GRACE_S", 0.0)
    release = threading.Event()
    machine = make_machine("founders-p1")
    monkeypatch.setattr(storage, "weights", lambda *_: release.wait(30))
    facts = parse("spark", probe.main(machine.case["request"], machine=machine))
    release.set()
    assert facts.weights == Unread(unread="no answer within 0.2 s")
    assert facts.probe_s < 5


def test_cuda_of_a_known_driver_branch_needs_no_process(make_machine: Any) -> None:
    machine = make_machine("founders-p1")
    probe.main(machine.case["request"], machine=machine)
    assert [argv[0] for argv in machine.ran].count("nvidia-smi") == 1


def test_a_hanging_resolver_affects_only_its_name(make_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_NAME_S", 0.2)
    monkeypatch.setattr(probe, "_GRACE_S", 0.0)
    machine = make_machine("founders-p1")
    release = threading.Event()
    resolve = machine.resolve
    monkeypatch.setattr(
        machine, "resolve", lambda name: resolve(name) if name == "spark-1a2b" else release.wait(30) and []
    )
    facts = parse("spark", probe.main(machine.case["request"], machine=machine))
    release.set()
    assert facts.names == {"spark-1a2b": ("127.0.1.1",), "spark-3c4d.local": Unread(unread="no answer within 0.2 s")}
    assert facts.probe_s < 5
    assert facts.docker.version == "29.1.3"  # type: ignore[union-attr]


def test_a_lease_with_a_holder_is_reported_and_not_taken(make_machine: Any) -> None:
    machine = make_machine("serving")
    state_dir = "/home/nvidia/.local/state/sparkcluster"
    path = Path(machine.at(state_dir)) / "clusters/pair/lease.lock"
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert storage.lease(machine, state_dir, "pair") == {"epoch": 7, "held": True, "operator": "ann@desk"}
    with path.open("rb") as next_one:
        fcntl.flock(next_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(next_one, fcntl.LOCK_UN)
    assert storage.lease(machine, state_dir, "pair")["held"] is False  # type: ignore[index]
    assert storage.lease(machine, state_dir, "unknown") is None


def test_the_lease_of_staging_is_read_beside_the_other(make_machine: Any) -> None:
    machine = make_machine({"files": {"state/clusters/pair/staging.json": {"epoch": 2, "operator": "ann"}}})
    assert storage.lease(machine, "/state", "pair") is None
    assert storage.lease(machine, "/state", "pair", "staging") == {"epoch": 2, "held": False, "operator": "ann"}


def test_a_job_of_a_staging_that_nobody_holds_is_reported(make_machine: Any) -> None:
    lease = {"epoch": 2, "operator": "ann"}
    machine = make_machine({
        "files": {
            "state/clusters/pair/staging.json": lease,
            "state/downloads/a1/job.json": {"leases": {"pair staging": {"epoch": 2}}},
            "state/downloads/a1/lock": "",
            "state/pulls/b2/job.json": {"leases": {"other staging": {"epoch": 9}}},
            "state/pulls/b2/lock": "",
        }
    })  # fmt: skip
    idle = {"epoch": 2, "held": False, "operator": "ann"}
    assert storage.staging(machine, "/state", "pair") == idle
    with Path(machine.at("/state/pulls/b2/lock")).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert storage.staging(machine, "/state", "pair") == idle
    with Path(machine.at("/state/downloads/a1/lock")).open("rb") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        assert storage.staging(machine, "/state", "pair") == {**idle, "at_work": True}


def test_a_damaged_field_of_a_lease_is_no_reason_to_lose_the_others(make_machine: Any) -> None:
    lease = {"epoch": 7, "operator": ["ann"], "operation": None, "since": "noon"}
    machine = make_machine({"files": {"state/clusters/pair/lease.json": lease}})
    assert storage.lease(machine, "/state", "pair") == {"epoch": 7, "held": False, "operator": "['ann']"}


def test_file_names_that_are_not_utf8(make_machine: Any) -> None:
    machine = make_machine("founders-p1")
    folder = machine.at("/models/odd")
    Path(folder).mkdir(parents=True)
    (Path(folder) / "bad\udcff.bin").write_bytes(b"x")
    request = {**machine.case["request"], "model": {"id": "odd", "revision": None, "path": "/models/odd"}}
    facts = parse("spark", json.loads(json.dumps(probe.main(request, machine=machine))))
    assert [file.name for file in facts.weights.files] == ["bad?.bin"]  # type: ignore[union-attr]
    assert facts.weights.missing == ("config.json", "tokenizer.json")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("~", "/home/a"), ("~/x", "/home/a/x"), ("/x/../y", "/y"), ("x", "/home/a/x"), ("/a~b", "/a~b")],
)
def test_paths_are_made_absolute_on_the_node(path: str, expected: str) -> None:
    assert absolute(path, "/home/a") == expected


def test_model_directory_of_the_user_and_files_it_needs(make_machine: Any, tmp_path: Path) -> None:
    machine = make_machine("founders-p1")
    folder = Path(machine.at("/models/m"))
    folder.mkdir(parents=True)
    (folder / "params.json").write_text("{}")
    (folder / "tekken.json").write_text("{}")
    model = {"id": "m", "revision": None, "path": "/models/m"}
    assert storage.weights(machine, model, "/hf")["missing"] == ["model.safetensors"]
    (folder / "consolidated.safetensors").write_bytes(b"\xff" * 64)
    assert storage.weights(machine, model, "/hf")["truncated"] == ["consolidated.safetensors"]
    (folder / "consolidated.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    found = storage.weights(machine, model, "/hf")
    assert (found["missing"], found["truncated"], found["path"]) == ([], [], "/models/m")
    (folder / "model.safetensors.index.json").write_text("[]")
    assert storage.weights(machine, model, "/hf")["missing"] == ["model.safetensors.index.json"]


def test_shards_that_a_download_did_not_get_to_are_missing_though_there_is_no_index_yet(
    make_machine: Any,
) -> None:
    machine = make_machine("founders-p1")
    folder = Path(machine.at("/models/m"))
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "model-00002-of-00003.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    found = storage.weights(machine, {"id": "m", "revision": None, "path": "/models/m"}, "/hf")
    assert found["missing"] == ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"]


@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "tokenizer.model", "tokenizer.model.v3", "spiece.model", "vocab.txt", "qwen.tiktoken",
     "tiktoken.model", "sentencepiece.bpe.model"],
)  # fmt: skip
def test_a_tokenizer_that_the_models_own_code_reads_is_one(make_machine: Any, name: str) -> None:
    """Kimi K2 has ``tiktoken.model`` alone, which its ``tokenization_kimi.py`` reads."""
    machine = make_machine("founders-p1")
    folder = Path(machine.at("/models/m"))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    model = {"id": "m", "revision": None, "path": "/models/m"}
    assert storage.weights(machine, model, "/hf")["missing"] == ["tokenizer.json"]
    (folder / name).write_text("x")
    assert storage.weights(machine, model, "/hf")["missing"] == []


def test_only_what_is_served_is_counted_and_needed(make_machine: Any) -> None:
    machine = make_machine("founders-p1")
    folder = Path(machine.at("/models/m"))
    (folder / "original").mkdir(parents=True)
    whole = b"\2\0\0\0\0\0\0\0{}"
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-1.bin"}}')
    (folder / "model-1.safetensors").write_bytes(whole)
    (folder / "consolidated.safetensors").write_bytes(b"cut off")
    (folder / "original" / "consolidated.00.pth").symlink_to("nowhere")
    model = {"id": "m", "revision": None, "path": "/models/m", "choice": {"include": [], "exclude": [], "format": None}}
    found = storage.weights(machine, model, "/hf")
    assert (found["missing"], found["truncated"], found["left_out_bytes"]) == ([], [], len(b"cut off"))
    assert "consolidated.safetensors" not in [file["name"] for file in found["files"]]
    model["choice"]["format"] = "mistral"
    assert storage.weights(machine, model, "/hf")["truncated"] == ["consolidated.safetensors"]
    model["choice"] = {"include": ["*.json"], "exclude": ["model-*"], "format": None}
    assert storage.weights(machine, model, "/hf")["missing"] == ["model.safetensors"]
    (folder / "model-1.safetensors").unlink()
    model["choice"] = {"include": [], "exclude": [], "format": None}
    assert storage.weights(machine, model, "/hf")["missing"] == ["model-1.safetensors"]


def test_complete_snapshots_of_other_commits_are_named_where_the_wanted_one_is_missing(make_machine: Any) -> None:
    machine = make_machine("founders-p1")
    snapshots = Path(machine.at("/hf/hub/models--a--m/snapshots"))
    for place, name in enumerate(
        ["0" * 40, "1" * 40, "2" * 40, "main", *(f"{n:040x}" for n in range(0xE << 156, (0xE << 156) + 99))]
    ):
        (snapshots / name).mkdir(parents=True)
        for file in ("config.json", "tokenizer.json", "model.safetensors")[: 2 if name == "1" * 40 else 3]:
            (snapshots / name / file).write_bytes(b"\2\0\0\0\0\0\0\0{}" if place else b"\xff" * 64)
    (snapshots / ("3" * 40)).symlink_to("nowhere")
    model = {"id": "a/m", "revision": "f" * 40, "path": None}
    found = storage.weights(machine, model, "/hf")
    assert (found["path"], found["other_revisions"]) == (None, ["2" * 40])
    request = {**machine.case["request"], "model": model}
    facts = {**json.loads(json.dumps(probe.main(request, machine=machine))), "weights": found}
    assert parse("spark", facts).weights.other_revisions == ("2" * 40,)  # type: ignore[union-attr]
    assert "other_revisions" not in storage.weights(machine, {**model, "revision": "2" * 40}, "/hf")


def test_a_companion_needs_neither_config_nor_tokenizer(make_machine: Any) -> None:
    """A drafter has no tokenizer, an adapter no config.json, a tokenizer no weights."""
    machine = make_machine("founders-p1")
    snapshot = Path(machine.at("/hf/hub/models--a--d/snapshots/main"))
    blobs = snapshot.parents[1] / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    companion = {"id": "a/d", "revision": "main", "path": None, "companion": True}

    def lacks() -> tuple[list[str], list[str]]:
        found = storage.weights(machine, companion, "/hf")
        return found["missing"], found["truncated"]

    (snapshot / "adapter_config.json").write_text("{}")
    assert lacks() == ([], [])
    (blobs / "aa.incomplete").touch()
    assert lacks() == (["weights"], ["aa.incomplete"])
    (snapshot / "adapter_model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    assert lacks() == ([], [])
    (snapshot / "adapter_model.safetensors").write_bytes(b"\xff" * 64)
    assert lacks() == ([], ["adapter_model.safetensors"])


def test_what_is_beside_the_model_is_read_by_its_name(make_machine: Any) -> None:
    machine = make_machine("founders-p1")
    snapshot = Path(machine.at("/hf/hub/models--a--d/snapshots/main"))
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    companions = [{"id": name, "revision": "main", "path": None, "companion": True} for name in ("a/d", "a/none")]
    request = {**machine.case["request"], "hf_home": "/hf", "companions": companions}
    found = parse("spark", json.loads(json.dumps(probe.main(request, machine=machine)))).companions
    assert {name: weights.complete for name, weights in found.items()} == {"a/d": True, "a/none": False}  # type: ignore[union-attr]


def test_the_engine_is_inspected_by_its_interpreter() -> None:
    found = probe._engine(Machine(), sys.executable)
    assert found["python"] == sys.executable
    assert found["platform"].split("_")[0] in ("manylinux", "linux")
    assert found["family"] == "other"
    with pytest.raises(Unreadable, match="/no/python is not installed"):
        probe._engine(Machine(), "/no/python")


def test_loopback_listeners_of_both_families() -> None:
    v4 = "   0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 0 0 99 1"
    v6 = "   0: 00000000000000000000000001000000:1F90 0:0 0A 0:0 00:0 0 0 0 98 1"
    mapped = "   0: 0000000000000000FFFF00000100007F:1F90 0:0 0A 0:0 00:0 0 0 0 97 1"
    addresses = [network._address(network.listener(line)[0]) for line in (v4, v6, mapped)]  # type: ignore[index]
    assert addresses == ["127.0.0.1", "::1", "127.0.0.1"]
    assert network.listener(v4.replace(" 0A ", " 01 ")) is None


TEXT = st.text(max_size=200)


@given(TEXT)
def test_parsers_of_files_refuse_with_a_reason_or_answer(text: str) -> None:
    """No text that a kernel, an OEM or a driver prints makes a traceback."""
    system.os_release(text)
    network.listener(text)
    for parser in (system.dgx_release, system.meminfo, gpu.loaded, interpreter.parse):
        with contextlib.suppress(Unreadable):
            parser(text)


@given(st.integers(0, 255), TEXT)
def test_parsers_of_programs_refuse_with_a_reason_or_answer(exit_code: int, text: str) -> None:
    machine = Machine("/nowhere")
    machine.run = lambda *_: (exit_code, text)  # type: ignore[method-assign,assignment]
    with contextlib.suppress(Unreadable):
        gpu.gpus(machine)
    with contextlib.suppress(Unreadable):
        gpu.cuda(machine, {"unread": "no module"})
    listed = Readings(10)
    listed.start("gpus", lambda: gpu.gpus(machine))
    answer = gpu.driver({"unread": "no module"}, listed.value("gpus"))
    assert isinstance(answer, (str, dict))


@given(
    st.lists(
        st.sampled_from(['DGX_OTA_VERSION="7.5.0"', "DGX_NAME=DGX Spark", "", "junk", "DGX_X='", "=", 'A="b']),
        max_size=8,
    )
)
def test_dgx_release_takes_the_last_update(lines: list[str]) -> None:
    lines = [*lines, "DGX_OTA_VERSION=7.6.0"]
    assert system.dgx_release("\n".join(lines))["ota_version"] == "7.6.0"


def test_a_zombie_is_not_a_running_rank(make_machine: Any) -> None:
    machine = make_machine({"files": {"proc/7/stat": "7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0"}})
    assert common.ticks_of(machine.text("/proc/7/stat")) is None
