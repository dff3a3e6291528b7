"""Example records of two Sparks: a sweep with ten minutes of samples, and an A/B of three runs."""

from __future__ import annotations

import dataclasses
import math
import random

from sparkcluster.bench.record import Measured, Record

DEPTHS, CONCURRENCIES = (0, 4096, 16384), (1, 2, 4, 8, 16)


def cell(
    depth: int = 0, concurrency: int = 1, *, began_s: float = 0.0, speed: float = 1.0, chance: random.Random
) -> Measured:
    """A cell of three passes, as a 120B model with 5B active parameters decodes on two Sparks."""

    def passes(value: float) -> list[float]:
        return [value * chance.uniform(0.985, 1.015) for _ in range(3)]

    slower = 1 / (1 + depth / 60_000)
    decode = 52.0 * speed * slower * concurrency**0.62 * (0.97 if concurrency == 16 else 1)
    prefill = 3900.0 / (1 + depth / 40_000) * (1 + 0.06 * math.log2(concurrency))
    first = (2048 + depth) / prefill
    requests = 3 * concurrency
    acceptance = 0.71 - 0.02 * math.log2(concurrency) - depth / 250_000
    return Measured(
        prompt=2048,
        answer=128,
        depth=depth,
        concurrency=concurrency,
        began_s=began_s,
        ended_s=began_s + 38,
        figures={
            "prefill": passes(prefill),
            "decode": passes(decode),
            "decode_user": [decode / concurrency * chance.uniform(0.97, 1.03) for _ in range(requests)],
            "ttft_s": [first * (1 + at % concurrency) * chance.uniform(0.98, 1.02) for at in range(requests)],
            "prompt_tokens": [2048 + depth] * requests,
            "answer_tokens": [128] * requests,
        },
        engine={"acceptance": acceptance, "accepted_length": 1 + 3 * acceptance, "hits": 0.0, "preemptions": 0.0},
    )


def samples(seconds: int, *, chance: random.Random) -> dict[str, dict[str, object]]:
    """One sample per second of two Sparks: memory falls as the KV cache fills, the clock follows the load."""
    found = {}
    for name, base in (("spark-1", 21.5), ("spark-2", 26.0)):
        busy = [at % 40 > 3 for at in range(seconds)]
        found[name] = {
            "at_s": [float(at) for at in range(seconds)],
            "available_gib": [base - 4 * min(1, at / 200) + chance.uniform(-0.05, 0.05) for at in range(seconds)],
            "power_w": [(78 if each else 22) + chance.uniform(-6, 6) for each in busy],
            "system_w": [None] * seconds,
            "sm_clock_mhz": [(2405 if each else 1100) - chance.uniform(0, 60) for each in busy],
            "temperature_c": [48 + 22 * (1 - math.exp(-at / 120)) + chance.uniform(-0.5, 0.5) for at in range(seconds)],
            "throttle": [0] * seconds,
            "rdma_bytes": [at * 400_000_000 for at in range(seconds)],
            "swapped_pages": [0] * seconds,
        }
    return found


def sweep(**changed: object) -> Record:
    """A sweep over three depths; one cell was disturbed."""
    chance = random.Random(7)
    places = [(depth, number) for depth in DEPTHS for number in CONCURRENCIES]
    cells = [cell(*place, began_s=40.0 * at + 2, chance=chance) for at, place in enumerate(places)]
    cells[7] = dataclasses.replace(cells[7], marks=["disturbed"])
    record = Record(
        cluster="atlas",
        model="openai/gpt-oss-120b",
        playbook="gpt-oss-120b",
        profile="sweep",
        runs=3,
        kind="chat",
        group="a",
        nodes=["spark-1", "spark-2"],
        id="atlas-7",
        at=1_790_000_000.0,
        release=12,
        versions={
            "plan_hash": "3f" * 32,
            "image": "sparkarena/engine:mxfp4",
            "digest": "sparkarena/engine@sha256:" + "d1" * 32,
            "engine": "0.31.0",
            "driver": "580.142",
            "sparkcluster": "0.9.0",
            "llama_benchy": "0.4.0",
        },
        args={"max-model-len": 131072, "gpu-memory-utilization": 0.8, "kv-cache-dtype": "fp8"},
        client={"host": "desk", "path": "engine", "latency_ms": 0.4},
        cells=cells,
        samples=samples(600, chance=chance),
        ended="complete",
    )
    return dataclasses.replace(record, **changed)


def pair() -> list[Record]:
    """A, B and A of a disabled drafter: decode is slower without it, prefill is the same."""
    found = []
    for number, speed in enumerate((1.0, 0.76, 1.0), start=1):
        chance = random.Random(number)
        places = [(depth, at_once) for depth in (0, 16384) for at_once in (1, 8)]
        cells = [cell(*place, began_s=40.0 * at, speed=speed, chance=chance) for at, place in enumerate(places)]
        names = ["atlas-8", "atlas-9", "atlas-10"]
        found.append(
            sweep(
                id=f"atlas-{7 + number}",
                cells=cells,
                samples=samples(160, chance=chance),
                pair=names,
                change="args.speculative-config=null" if number == 2 else "",
                args={"max-model-len": 131072} | ({} if number == 2 else {"speculative-config": {"method": "eagle3"}}),
            )
        )
    return found
