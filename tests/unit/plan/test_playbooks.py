"""Every playbook that comes along, as the commands it becomes: ``tests/golden/playbooks/<name>.txt``.

On one Spark, on two where it allows two, and with each of its overlays. The files were compared by eye with the
guides they came from; ``UPDATE_GOLDEN=1`` writes them anew.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path

import pytest

from sparkcluster import plan, topology
from sparkcluster.facts import Facts
from sparkcluster.spec import Spec, library, load
from sparkcluster.spec.inventory import Inventory

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
GOLDEN = Path(__file__).parents[2] / "golden" / "playbooks"
CASES = Path(__file__).parents[2] / "golden" / "plan"

NAMES = [name for name in library.names() if name != "tiny-llama-cpu"]


def nodes(count, playbook):
    """Facts of one or two healthy Sparks that have the playbook's image."""
    case = CASES / ("one-spark" if count == 1 else "two-sparks")
    ngc = (playbook.image or "").startswith("nvcr.io/")
    out = {}
    for name, own in json.loads((case / "facts.json").read_text()).items():
        image = own["image"]
        image |= {"reference": playbook.image, "entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"] if ngc else ["vllm"]}
        image["inside"] |= {"family": "ngc" if ngc else "upstream", "ray_version": None if ngc else "2.53.0"}
        out[name] = Facts.model_validate(own)
    return out


def rendered(count, playbook, path):
    """The commands of every node, a flag a line."""
    facts = nodes(count, playbook)
    inventory = Inventory.model_validate(
        {"cluster": "desk", "nodes": [{"host": name, "name": name} for name in facts], "playbook": playbook.name}
    )
    spec = Spec(inventory, playbook, Path("inventory.yaml"), path)
    made = plan.build(spec, facts, topology.build(spec, facts), release=1, bring_ray=count > 1).as_json()
    lines = []
    for name, node in made["nodes"].items():
        container = node["containers"][0]
        lines += [f"# {name}, rank {node['rank']}", *broken(container["argv"])]
        launcher = container["launcher"]
        lines += [f"inside: {line}" for line in launcher["setup"]]
        lines += ["inside:", *broken(launcher["engine"]), ""]
    return [re.sub(r"io\.sparkcluster\.plan=\w+", "io.sparkcluster.plan=HASH", line) for line in lines]


def broken(argv):
    """A command with every flag on a line of its own."""
    lines = [[]]
    for word in argv:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(word)
    return ["  " * bool(at) + " ".join(words) for at, words in enumerate(lines)]


def page(name):
    path = library.find(name, [PLAYBOOKS])
    playbook = load.load_playbook(path)
    most = 2 if playbook.tensor_parallel in {"auto", 2} else 1
    least = 2 if playbook.tensor_parallel == 2 else 1
    out = []
    for count in range(least, most + 1):
        out += [f"===== {'one Spark' if count == 1 else 'two Sparks'}", "", *rendered(count, playbook, path)]
    plain = rendered(least, playbook, path)
    for overlay in playbook.overlays:
        with_it = rendered(least, load.load_playbook(path, [overlay]), path)
        changed = [
            line
            for line in difflib.unified_diff(plain, with_it, lineterm="", n=0)
            if line[:2] not in {"--", "++", "@@"}
        ]
        out += [f"===== +{overlay}", "", *changed, ""]
    return "\n".join(out)


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_are_those_that_were_read_by_eye(name):
    made = page(name)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(made)
    assert made == golden.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is_for_whose_it_is_and_what_to_expect(name):
    playbook = load.load_playbook(library.find(name, [PLAYBOOKS]))
    assert playbook.name == name
    assert playbook.description
    assert playbook.source
    assert playbook.model.checkpoint
    assert playbook.verify.expect
    assert "image" in playbook.model_fields_set
    assert playbook.figures or name == "llama-3.3-70b-instruct"


def test_every_overlay_is_taken_by_some_playbook():
    taken = {one for name in NAMES for one in load.load_playbook(library.find(name, [PLAYBOOKS])).overlays}
    assert taken == set(library.overlays())


def test_no_golden_page_is_left_of_a_playbook_that_is_gone():
    assert {path.stem for path in GOLDEN.iterdir()} == set(NAMES)
