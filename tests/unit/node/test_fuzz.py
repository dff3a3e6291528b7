"""Whatever files, programs and the Docker engine answer: the probe ends, and what makes no sense is Unread."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import Facts
from sparkcluster.facts.parse import parse, parse_engine
from sparkcluster.node import container_facts, gpu, image, network, probe, system
from sparkcluster.node.machine import Machine, Unreadable

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**40, 1e308, float("inf"), "", "x", "9" * 5000, "\u0663", "\ud800", "a\0b", [], {}, [None], [[]],
    {"a": None}, ["x"], {"Source": "cdi"}, {"Config": 3}, {"Id": []},
)  # fmt: skip


def deep(levels: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def spoilt_bytes(chance: random.Random, content: bytes) -> bytes:
    """``content`` as a disk, an OEM, another version or a hostile hand might leave it."""
    where = chance.randrange(len(content) + 1)
    ways = (
        lambda: content,
        lambda: b"",
        lambda: content[:where],
        lambda: chance.randbytes(chance.randrange(200)),
        lambda: content[:where] + chance.randbytes(8) + content[where + 8 :],
        lambda: content.replace(b"0", b"99999999999999999999999"),
        lambda: content.replace(b":", b""),
        lambda: content.replace(b"\n", b"\r\n\0"),
        lambda: content * 3,
        lambda: b"[" * 3000,
        lambda: json.dumps(chance.choice(ODD)).encode(),
    )
    return chance.choice(ways)()


def spoilt(chance: random.Random, value: Any) -> Any:
    """A JSON document of which some values are something else."""
    if chance.random() < 0.08:
        return chance.choice((*ODD, deep(300)))
    if isinstance(value, dict):
        return {key: spoilt(chance, each) for key, each in value.items() if chance.random() > 0.05}
    if isinstance(value, list):
        return [spoilt(chance, each) for each in value]
    return value


class Spoilt(Machine):
    """A machine like ``whole``, whose every answer may be spoilt, each by itself and the same each time."""

    def __init__(self, whole: Any, seed: int) -> None:
        super().__init__(whole.root)
        self.whole = whole
        self.seed = seed
        for name in ("addresses", "listening", "space", "identity", "resolve", "reached_at"):
            setattr(self, name, getattr(whole, name))

    def chance(self, subject: str) -> random.Random:
        """What decides how the answer about ``subject`` is spoilt; half of all are left whole."""
        return random.Random(f"{self.seed} {subject}")

    def bytes(self, path: str) -> bytes:
        chance, content = self.chance(path), super().bytes(path)
        return spoilt_bytes(chance, content) if chance.random() < 0.5 else content

    def names(self, path: str) -> list[str]:
        chance, found = self.chance("names " + path), super().names(path)
        if chance.random() < 0.2:
            return sorted([*found, chance.choice(("odd", "99999999999999999999", "-1", "\udcff", "x" * 300, "1.json"))])
        return found

    def run(self, argv: list[str], limit_s: float = 3.0) -> tuple[int, str]:
        chance, (exit_code, output) = self.chance(" ".join(argv)), self.whole.run(argv, limit_s)
        if chance.random() < 0.5:
            output = spoilt_bytes(chance, output.encode()).decode("utf-8", "replace")
            exit_code = chance.choice((0, exit_code, 1, 127, 255))
        return exit_code, output

    def docker(self, path: str) -> tuple[int, Any]:
        chance, (status, document) = self.chance(path), self.whole.docker(path)
        if chance.random() < 0.7:
            return chance.choice((status, status, 200, 500)), spoilt(chance, document)
        return status, document


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**48), which=st.integers(0, 4))
def test_the_probe_gives_facts_for_any_input(machines: list[Any], seed: int, which: int) -> None:
    machine = Spoilt(machines[which], seed)
    document = probe.main({**machine.whole.case["request"], "kernel_log": True}, machine=machine)
    facts = parse("spark", json.loads(json.dumps(document)))
    assert isinstance(facts, Facts)
    assert facts.probe_s < 3
    for interface in [] if isinstance(facts.interfaces, Unread) else facts.interfaces:
        interface.ipv4()
    for hca in [] if isinstance(facts.hcas, Unread) else facts.hcas:
        hca.roce_v2_index("192.168.177.11")
    json.loads(facts.model_dump_json())


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_any_output_of_an_image_gives_facts_or_a_reason(machines: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    answer = {"python": "python3", "python_version": "3.12", "platform": "p", "flags": ["host"], "version": "0.32"}
    printed = "sparkcluster-engine " + json.dumps(spoilt(chance, answer))
    machine = Spoilt(machines[0], seed)
    machine.run = lambda argv, limit_s=3.0: (0, printed)  # type: ignore[method-assign]
    state = f"/tmp/{seed}"
    document = image.main({"state_dir": state, "image_id": "sha256:" + "5f" * 32, "keep": False}, machine=machine)
    parse_engine(json.loads(json.dumps(document)))


def machine_printing(text: str) -> Machine:
    """A machine whose every program succeeds and prints ``text``."""
    machine = Machine("/nowhere")
    machine.run = lambda *_: (0, text)  # type: ignore[method-assign,assignment]
    return machine


READERS = (
    lambda text: gpu.gpus(machine_printing(text)),
    gpu.loaded,
    system.meminfo,
    system.dgx_release,
    system.os_release,
    system.kernel_lines,
    network.listener,
    lambda text: container_facts.cdi_devices([text]),
    lambda text: container_facts.cdi_driver([text]),
    lambda text: system._login_setting(text, "RemoveIPC", True),
)
LINES = st.text() | st.lists(
    st.sampled_from(
        [
            "NVIDIA GB10, 12.1, 580.95.05, [N/A], 4.36, 208, 0, 42, 9A.0B.25.00.00", "a,b,c,d,e,f,g", ",,,,,,,,",
            "MemTotal: 99999999999999999999999999 kB", "MemTotal: -1 kB", "CmaTotal: 0 kB", "[Login]", "RemoveIPC=perhaps",
            "DGX_NAME=", 'DGX_NAME="', "NVRM version: x", "kind: nvidia.com/gpu", "  name: \u0663", "/libcuda.so.580.95",
            "   0: 00000000:0016 0:0 0A 0 0 0 0 0 12", "   0: ZZ:0016 0:0 0A 0 0 0 x 0 12", "   0: :: 0 0A 0 0 0 0 0 1",
        ]
    )
).map("\n".join)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(text=LINES, which=st.integers(0, len(READERS) - 1))
def test_readers_of_text_answer_or_raise_unreadable(text: str, which: int) -> None:
    with contextlib.suppress(Unreadable):
        READERS[which](text)
