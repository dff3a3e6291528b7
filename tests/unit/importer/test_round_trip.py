"""A playbook written as a command line and imported is the same playbook: 2,000 random ones in eight forms of text."""

from __future__ import annotations

import json
import random
import shlex

import pytest

from sparkcluster.engines.vllm import ENGINE, flags
from sparkcluster.importer import convert
from sparkcluster.spec import Playbook
from sparkcluster.spec.document import parse
from sparkcluster.spec.secret_patterns import names_secret

KEYS = {"model", "revision", "served-model-name", "config", "tensor-parallel-size", "pipeline-parallel-size"}
OTHERS = {"distributed-executor-backend", "uds", "headless", "hf-token", "api-key"}
FLAGS = [
    flag for flag in flags.table().values()
    if flag.name not in KEYS | OTHERS and flag.name not in ENGINE.arguments and not names_secret(flag.name)
]  # fmt: skip
LETTERS = "abcxyzABC019._/:@ '\"$`\\{}[]=,~#;&|<>*?!äß-%^()"
ENTRYPOINT = "vllm/vllm-openai:v0.26.0"
IMAGES = (ENTRYPOINT, "nvcr.io/nvidia/vllm:26.04-py3", "localhost:5000/own/build:1", f"ghcr.io/o/i@sha256:{'ab' * 32}")


def text(rng):
    while True:
        made = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 12)))
        # JSON is read as such, and numbers as numbers: these have separate generators
        if made.strip() == made and not made.startswith("-") and made[0] not in "{[" and not made[0].isdigit():
            return made


def scalar(rng, kind):
    if kind in {"int", "size"}:
        return rng.randint(0, 10**6)
    if kind == "float":
        return rng.randint(1, 99) / 100
    return text(rng)


def value(rng, flag):
    if flag.kind == "bool":
        return rng.random() < 0.7
    if flag.kind == "flag":
        return True
    if flag.kind == "list":
        values = [scalar(rng, flag.type) for _ in range(rng.randint(1, 3))]
        return values if len(values) > 1 else values[0]
    if flag.type == "json":
        return {text(rng): rng.choice([1, True, None, text(rng), {"a": [1, "b"]}]) for _ in range(rng.randint(1, 3))}
    return scalar(rng, flag.type)


def playbook(rng):
    """A random playbook with all features of a command line."""
    image = rng.choice(IMAGES)
    document = {"name": "made", "model": {"id": f"org/m-{rng.randint(1, 99)}"}, "image": image}
    if rng.random() < 0.3:
        document["model"]["revision"] = rng.choice(["v1.0", "0a1b2c3d", "refs/pr/1"])
    document["tensor_parallel"] = rng.randint(1, 4)
    optional = {
        "served_name": lambda: f"name-{rng.randint(1, 9)}",
        "pipeline_parallel": lambda: rng.randint(1, 2),
        "executor": lambda: rng.choice(["ray", "native"]),
        "args": lambda: {flag.name: value(rng, flag) for flag in rng.sample(FLAGS, rng.randint(1, 8))},
        "env": lambda: {f"APP_{letter}": text(rng) for letter in rng.sample("ABCDEF", rng.randint(1, 3))},
        "secrets": lambda: ["MY_API_KEY"],
        "mounts": lambda: [
            {"source": f"/data/{n}", "target": f"/opt/{n}", **rng.choice([{}, {"read_only": False}])}
            for n in range(rng.randint(1, 2))
        ],
        "container": lambda: rng.choice(
            [{"cap_add": ["SYS_NICE"]}, {"ulimits": {"nofile": 4096}}, {"user": "1000:100"}, {"devices": ["/dev/gdrdrv"], "cap_add": ["IPC_LOCK"]}]
        ),
    }  # fmt: skip
    document |= {key: make() for key, make in optional.items() if rng.random() < 0.5}
    if "served_name" in document and rng.random() < 0.5:
        document["aliases"] = ["second", "third"][: rng.randint(1, 2)]
    if image != ENTRYPOINT and rng.random() < 0.4:
        document["setup"] = [shlex.join(["pip", "install", text(rng)]) for _ in range(rng.randint(1, 2))]
    return document


def words_of(name, value):
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]


def engine(rng, document):
    model, out = document["model"], []
    head = [model["id"]] if rng.random() < 0.7 else ["--model", model["id"]]
    if "revision" in model:
        out.append(["--revision", model["revision"]])
    if "served_name" in document:
        out.append(["--served-model-name", document["served_name"], *document.get("aliases", [])])
    if document["tensor_parallel"] != 1 or rng.random() < 0.5:
        out.append([rng.choice(["-tp", "--tensor-parallel-size"]), str(document["tensor_parallel"])])
    if "pipeline_parallel" in document:
        out.append(["--pipeline-parallel-size", str(document["pipeline_parallel"])])
    if "executor" in document:
        out.append(["--distributed-executor-backend", "ray" if document["executor"] == "ray" else "mp"])
    out += [words_of(name, each) for name, each in document.get("args", {}).items()]
    return head, out


def container(rng, document):
    out = [["--gpus", "all"], [rng.choice(["--rm", "-d", "-it"])]]
    for name, each in document.get("env", {}).items():
        out.append([rng.choice(["-e", "--env"]), f"{name}={each}"])
    out += [["-e", f"{name}=s3cr3t"] for name in document.get("secrets", [])]
    for mount in document.get("mounts", []):
        ending = "" if mount.get("read_only") is False else ":ro"
        out += [["-v", f"{mount['source']}:{mount['target']}{ending}"]]
    given = document.get("container", {})
    out += [["--user", given["user"]]] if "user" in given else []
    out += [["--cap-add", name] for name in given.get("cap_add", [])]
    out += [["--ulimit", f"{name}={limit}"] for name, limit in given.get("ulimits", {}).items()]
    out += [["--device", name] for name in given.get("devices", [])]
    return out


def script(rng, document):
    """A text that starts the playbook."""
    head, flags_ = engine(rng, document)
    serve = ["vllm", "serve"] if document["image"] != ENTRYPOINT else []
    options = container(rng, document)
    run = [*(["sudo"] if rng.random() < 0.2 else []), "docker", "run"]
    if "setup" in document:
        lines = [*document["setup"], shlex.join([*serve, *head, *(word for part in flags_ for word in part)])]
        return shlex.join([*run, *(word for part in options for word in part), document["image"], "bash", "-c", " && ".join(lines)])  # fmt: skip
    shape = rng.randrange(7)
    if shape == 0:  # one line
        return shlex.join([*run, *(word for part in options for word in part), document["image"], *serve, *head, *(word for part in flags_ for word in part)])  # fmt: skip
    join = " \\\n    ".join
    quoted = [shlex.join(part) for part in options], [shlex.join(part) for part in [head, *flags_]]
    image = shlex.quote(document["image"])
    if shape == 1:  # continued
        return join([" ".join(run), *quoted[0], image, *([" ".join(serve)] if serve else []), *quoted[1]])
    if shape == 2:  # variables
        return f"IMAGE={image}\nexport TP=unused\n{join([' '.join(run), *quoted[0], chr(34) + '${IMAGE}' + chr(34), *serve, *quoted[1]])}"
    if shape == 3:  # arrays
        arrays = f"OPTIONS=(\n  {chr(10).join(quoted[0])}\n)\nARGS=({' '.join(quoted[1][1:])})\n"
        return f'{arrays}{" ".join(run)} "${{OPTIONS[@]}}" {image} {" ".join(serve)} {quoted[1][0]} "${{ARGS[@]}}"'
    if shape == 4:  # a function with arguments
        return f'start() {{\n  {" ".join([*run, *quoted[0]])} {image} {" ".join(serve)} "$@"\n}}\nstart {" ".join(quoted[1])}'
    if shape == 5:  # a branch; the other branch starts something else
        other = "docker run other/image:1 vllm serve org/other"
        return f'MODE=${{MODE:-one}}\nif [ "$MODE" = two ]; then\n  {other}\nelse\n  {join([" ".join(run), *quoted[0], image, *serve, *quoted[1]])}\nfi'
    # by ssh, which starts another shell
    return shlex.join(["ssh", "spark", " ".join([*run, *quoted[0], image, *serve, *quoted[1]])])


@pytest.mark.parametrize("seed", range(1))
def test_the_command_line_of_a_playbook_imports_as_that_playbook(seed):
    rng = random.Random(seed)
    for number in range(500):
        document = playbook(rng)
        written = script(rng, document)
        made = convert(written, "x.sh", name="made")
        assert made.document == document, (number, written)
        Playbook.model_validate(parse(made.text, "x").data)
        assert "s3cr3t" not in made.text
        assert number % 10 or convert(written, "x.sh", name="made").text == made.text
