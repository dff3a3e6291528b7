"""The commands of every bundled playbook: ``tests/golden/playbooks/<name>/commands.yaml``.

On one Spark, on two if it allows two, and the changes by each of its overlays. The files were reviewed against the
guides they come from.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from sparkcluster import plan, topology
from sparkcluster.checks.disks import recorded_forecast
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec, library, load
from sparkcluster.spec.inventory import Inventory
from tests.unit import golden

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
GOLDEN = golden.ROOT / "playbooks"

BASE = "qwen3.5-122b-a10b-nvfp4"  # covers most: one Spark and two, and overlays
NAMES = [name for name in library.names() if not name.endswith("-cpu")]


def nodes(count, playbook):
    """Facts of one or two healthy Sparks that have the playbook's image."""
    case = golden.ROOT / "plan" / ("one-spark" if count == 1 else "two-sparks")
    ngc = (playbook.image or "").startswith("nvcr.io/")
    out = {}
    for name, own in golden.read(case / "facts.yaml").items():
        image = own["image"]
        image |= {"reference": playbook.image, "entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"] if ngc else ["vllm"]}
        image["label_version"] = "0.18.0" if ngc else None
        image["inside"] |= {"family": "ngc" if ngc else "upstream", "ray_version": None if ngc else "2.53.0"}
        out[name] = Facts.model_validate(own)
    return out


def commands(count, playbook, path):
    """The commands of every node, and of the engine in its container."""
    facts = nodes(count, playbook)
    inventory = Inventory.model_validate(
        {"cluster": "desk", "nodes": [{"host": name, "name": name} for name in facts], "playbook": playbook.name}
    )
    spec = Spec(inventory, playbook, Path("inventory.yaml"), path)
    made = plan.build(spec, facts, topology.build(spec, facts), release=1, bring_ray=count > 1).as_json()
    out = {}
    for name, node in made["nodes"].items():
        container = node["containers"][0]
        argv = [
            re.sub(r"^(io\.sparkcluster\.plan=)\w+", r"\1HASH", word).replace(
                f"/bundled/{playbook.name}/", "/bundled/NAME/"
            )
            for word in container["argv"]
        ]
        launcher = container["launcher"]
        out[name] = {"rank": node["rank"], "argv": argv, "setup": launcher["setup"], "engine": launcher["engine"]}
    return out


def lines(page):
    """Lines about each node on a page, one per flag."""
    return [
        f"{node} {part}: {line}"
        for node, parts in golden.packed(page).items()
        for part in ("argv", "setup", "engine")
        for line in parts[part]
    ]


def page(name):
    path = library.find(name, [PLAYBOOKS])
    playbook = load.read_playbook(path)[0]
    most = 2 if playbook.tensor_parallel in {"auto", 2} else 1
    least = 2 if playbook.tensor_parallel == 2 else 1
    words = {1: "one Spark", 2: "two Sparks"}
    out = {words[count]: commands(count, playbook, path) for count in range(least, most + 1)}
    plain = lines(out[words[least]])
    for overlay in playbook.overlays:
        with_it = lines(commands(least, load.read_playbook(path, [overlay])[0], path))
        out[f"+{overlay}"] = [line for line in difflib.ndiff(plain, with_it) if line[0] in "+-"]
    return out


@pytest.mark.parametrize("name", sorted(NAMES, key=lambda name: (name != BASE, name)))
def test_the_commands_match_their_golden_files(name):
    golden.check(GOLDEN / name / "commands.yaml", page(name), base=None if name == BASE else BASE)


@pytest.mark.parametrize("name", NAMES)
def test_a_playbook_has_a_description_a_source_and_figures(name):
    playbook = load.read_playbook(library.find(name, [PLAYBOOKS]))[0]
    assert playbook.name == name
    assert playbook.description
    assert playbook.source
    assert playbook.model.checkpoint
    assert playbook.verify.expect or playbook.verifying.kind != "chat"
    assert "image" in playbook.model_fields_set
    assert playbook.figures or name == "llama-3.3-70b-instruct"


def test_arguments_alone_distinguish_embedding_and_rerank_models():
    made = {name: load.read_playbook(library.find(name, [PLAYBOOKS]))[0] for name in NAMES}
    assert {playbook.verify.kind for playbook in made.values()} == {None}
    found = {name: playbook.verifying.kind for name, playbook in made.items()}
    assert {name for name, kind in found.items() if kind == "rerank"} == {"qwen3-reranker-4b", "qwen3-reranker-8b"}
    sizes = ("0.6b", "4b", "8b")
    assert {name for name, kind in found.items() if kind == "embeddings"} == {f"qwen3-embedding-{x}" for x in sizes}


@pytest.mark.parametrize("name", NAMES)
def test_it_starts_with_102_of_121_gib_free(name):
    """Some idle Sparks have no more free memory (SM121-131); by default vLLM uses 0.92."""
    path = library.find(name, [PLAYBOOKS])
    for overlays in ([], *([overlay] for overlay in load.read_playbook(path)[0].overlays)):
        playbook = load.read_playbook(path, overlays)[0]
        if playbook.model.file is not None:  # it takes the memory of the file
            memory = recorded_forecast(playbook)["memory"]
            assert memory["budget_bytes"] + memory["engine_host_bytes"] <= 102 * 2**30
            continue
        if "gpu-memory-utilization" not in playbook.args:  # it takes a share of the free memory
            found = recorded_forecast(playbook)
            taken = ("weights_bytes", "runtime_bytes", "engine_host_bytes")
            least = sum(found["memory"][each] for each in taken) + found["kv_cache"]["bytes_wanted"]
            assert least <= 102 * 2**30
            continue
        share = playbook.args["gpu-memory-utilization"]
        assert share == "auto" or share <= 0.82, overlays


def test_no_golden_page_of_a_removed_playbook_is_left():
    assert {path.name for path in GOLDEN.iterdir()} == set(NAMES)
