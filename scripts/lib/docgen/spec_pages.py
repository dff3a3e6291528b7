"""JSON Schemas of inventory and playbook for editors, and the reference of every key."""

from __future__ import annotations

import json
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sparkcluster import engines
from sparkcluster.spec import variables, variants
from sparkcluster.spec.base import Section
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import VARIANT, Playbook

ALL_KEYS = Path(__file__).parents[3] / "inventory/all-keys.yaml"
"""An inventory with every key."""

_MODELS: dict[str, type[Section]] = {"inventory": Inventory, "playbook": Playbook}

_INTRO = {
    "inventory": """# Inventory

What a cluster **is**: its Sparks, how to reach them, their interconnect, and the playbook they serve.
Start from one of the [examples](../inventory); `sparkcluster lint FILE` checks it without contacting a
node.

Editors with YAML schema support complete and check the keys if the file starts with

```yaml
# yaml-language-server: $schema=../docs/inventory.schema.json
```

with the path of [the schema](inventory.schema.json) relative to your file.
""",
    "playbook": """# Playbook

What a cluster **serves**: model, image, engine arguments, environment, and how the endpoint is verified.
`sparkcluster playbooks` lists the bundled ones; an inventory names one of them, its model on Hugging Face, or the path
of your own.

Editors with YAML schema support complete and check the keys if the file starts with

```yaml
# yaml-language-server: $schema=../docs/playbook.schema.json
```

with the path of [the schema](playbook.schema.json) relative to your file.
""",
}

_OUTRO = {
    "inventory": """
## Rules

- A duplicate key, an unknown key or a value of the wrong type is an error with file, line and column;
  all errors are reported at once. `1.10` is a number and `no` is false: quote strings that look like
  either.
- An empty key counts as absent.
- Every node is a machine with its own address. With `groups`, every node belongs to one of them;
  the first node of a group is its head.
- With `models`, each entry is a cluster of its own: the first one without a `name` has the name of the
  inventory's `cluster`, every other one `CLUSTER-NAME`. Entries without `port` get the free
  ports from `api.port` on, in their order. See [models](models.md).
- The `ssh` section of a node overrides that of the inventory; keys that neither sets come from
  `~/.ssh/config`.
- Anchors and aliases are supported; tags (`!…`) and merge keys (`<<`) are not.

## What a playbook may have

A playbook can come from anywhere, so it gets what serving needs and nothing else: its model, models of the hub below
`hf_home` read-only, caches below `state_dir`, and the capability SYS_NICE. Everything else is refused, with the
playbook's line, until the inventory names it:

```yaml
permit:
  mounts: [/data/templates, "/scratch:rw"]     # a directory and all below it; writable only with :rw
  capabilities: [IPC_LOCK]
  devices: [/dev/gdrdrv]
  secrets: [WANDB_API_KEY]                     # variables of your environment
  builds: [./mod]                              # what an image is built of, as the playbook names it
```

The message has the line to write. `model.path` needs it for a hidden directory. Nothing permits `/`, system
directories, Docker's socket, home directories as a whole, `.ssh`, the hub's token in `hf_home`, `state_dir`, or the
capability ALL. `plan` and `up` compare with the directories of each node's user as well. Before a container is
started, links are resolved on the node: what lies outside of the permitted directory, or of a repository's folder in
the hub's cache, is not mounted. The directory and the folder may be links themselves.

`lint`, `plan` and `import` end with a list of what the playbook can do. Lines with `!` are more than serving:

- setup lines, a `command`, arguments and variables that may do more than tune
- an image of a repository that no bundled playbook has
- a `build`, which also needs a permission: what it runs is root in a container of a node
- root as `container.user`, which may not be the image's user
- a `model.path` outside of the hub's cache, every entry of `mounts`, and `caches` other than the engine's
- everything that needs a permission.

If there are such lines and the playbook is not bundled, `up`, `stage` and `preflight --deep` show the list and ask
before they contact a node. They ask once: your yes is stored for this content of the playbook and this cluster, in
`~/.local/state/sparkcluster/accepted`. A changed playbook is asked about again, unless
only a length or an amount in `args` changed (`max-…`, `gpu-memory-utilization`). `--yes` accepts without being asked.
Without a terminal, or with `--json`, they do not ask: without `--yes` they exit with code 2. `preflight --deep` asks
since its containers have the playbook's image, `env` and capabilities, the GPUs and the network of the node.

## What an inventory may ask for

An inventory that someone else wrote can do something on your machine. `lint` lists these lines of it, and every
command that contacts nodes asks about them before:

| line | what it does |
|---|---|
| `after_ready` | runs on your machine |
| `on_event` | runs on a head, as its user, when [something happened to a group](enable.md#a-command-that-hears-of-it) |
| `api.key`, unless `~/.config/sparkcluster/CLUSTER.key`, `$SPARK_API_KEY`, `$SPARKCLUSTER_…` | is given to the engine |
| `identity`, `jump`, `known_hosts` unless `~/.ssh/known_hosts…`, `host_keys: accept-new` | how SSH connects |
| `hf_home`, `state_dir` | what is there counts as the model, and as compiled |
| `runtime.python` | runs on the nodes, without a container |
| `ignore` of a code that protects from playbooks, such as NET-020 | is only a warning then |
| `permit` | what the playbook may have |
| `env` of a node that may do more than tune | is set in its containers |

`image` and `set` are judged as the playbook's own lines. With `kind: process`, a bundled playbook is judged as any
other, since no container holds it. Your yes is stored for each line, not for the file: another inventory with the same
line is not asked about, and a changed line is. The same command of `after_ready` in another directory, or with other
content of a file there that it names, may be another program, so it is asked about; what that file runs in turn is not
compared. What `discover` and `key` wrote
here is accepted. Without a terminal, type `sparkcluster preflight INVENTORY --yes` once.
Tokens of accounts, such as `HF_TOKEN`, `AWS_SECRET_ACCESS_KEY` or `GITHUB_TOKEN`, are refused as API key.

## Commands after it is ready

`after_ready` lists commands that run on your machine after an `up`, `upgrade` or `rollback` that changed something,
once every group has answered and is recorded: to register the model in a proxy, say, or to send a message.

```yaml
after_ready:
  - ./register.sh --quiet
  - [sh, -c, 'curl -sf "$SPARKCLUSTER_ENDPOINT/models" > models.json']
```

- A string is split as a shell splits it, but no shell runs it: no variables, pipes or `~`. A list is taken as it is.
- They start in the inventory's directory, one after the other, with the environment of sparkcluster and these:
  `SPARKCLUSTER_ENDPOINT` (of the first group; it ends in `/v1`), `SPARKCLUSTER_ENDPOINTS` (of all groups, separated by
  spaces), `SPARKCLUSTER_MODEL`, `SPARKCLUSTER_CLUSTER` and `SPARKCLUSTER_RELEASE`. They get no API key but what your
  environment has. With `api: {host: 127.0.0.1}`, the default, the endpoint can be reached on the head only.
- Each may take `after_ready_timeout_s`, and is then stopped with its children. Its output goes to stderr at its end.
- A command that fails is a warning: the cluster serves, and the exit code is that of the cluster, 0. The next command
  runs all the same. `after_ready` in the output of `--json` says how each ended.
- They do not run where an `up` changed nothing, where an upgrade failed and the release before serves again (exit code
  4), or when a [guard](enable.md) restarts a group.
- `plan` and `up --dry-run` show them. They are [asked about once](#what-an-inventory-may-ask-for). A playbook cannot
  have them, since it may be a stranger's.
""",
    "playbook": """
## Engine arguments

`args` takes the engine's own flag names without the dashes in front. `true` is the bare flag, `false` its
negation (`--no-…`), a list several values, a section JSON. What follows from other keys is refused
there, and the message names the key: `tensor_parallel`, `served_name`, `executor`, or the inventory's
`api` and `groups`.

## Environment and secrets

`env` holds for every rank, so what differs from node to node is refused, since sparkcluster sets it for each node:
{PER_NODE}. Other variables of one node are `env` of the node in the inventory.

Secrets are listed by name under `secrets`, and read from the environment in which sparkcluster runs. The inventory must
[permit](inventory.md#what-a-playbook-may-have) them, and mounts and capabilities likewise.
The API key is named in the inventory. Neither is ever written to a command line, a plan or a log. `HF_TOKEN`
cannot be listed: engines get no Hugging Face token, since weights are staged before the start.

## Files of the model

In a container, `/sparkcluster/model` links to the model's directory, whatever its revision. So a parser, a patch or
a draft model that comes with the weights can be used: `reasoning-parser-plugin: /sparkcluster/model/parser.py`, or in
`setup` a line that copies a file over the image's.

Of the node's Hugging Face cache the container sees the repositories that are served, read-only: the model's, and those
that arguments name beside it, which are staged too. In vLLM these are the draft model of `speculative-config`,
`lora-modules`, `tokenizer` and `hf-config-path`. `HF_HOME` itself is a directory of the container, and what the engine
writes there ends with it. Any other repository that the engine loads, such as one with the code of another, is listed
under `mounts`: source `~/.cache/huggingface/hub/models--ORG--NAME` (below `hf_home`), target
`/root/.cache/huggingface/hub/models--ORG--NAME`.

Files of your own come from beside the playbook: a `source` that begins with `./` is a file or directory where the
playbook's file is (or the one it `extends`, if that has the line), such as a parser plugin or a patched loader:

```yaml
mounts:
  - {source: ./parsers, target: /opt/parsers}
args: {tool-parser-plugin: /opt/parsers/mine.py}
```

`stage` and `up` copy it to `state_dir/files` of every node, by the hash of its content, and it is mounted read-only
from there. Hidden files are left out; links that lead out of it, and more than 256 MiB or 1000 files, are refused. It
is shown and asked about as other mounts are, and again when its content changed.

## An image that is built

`build` makes the image that runs of the playbook's `image` and a directory beside the playbook:

```yaml
image: vllm/vllm-openai:v0.20.0
build: {context: ./mod}                        # ./mod/Dockerfile, with: ARG BASE, then FROM $BASE
# or: {context: ./mod, script: install.sh}     # run in the image, in a copy of the directory
```

Where no node has the image, `stage`, `up` and `upgrade` send the directory to one node, which runs `docker build`
there with `--build-arg BASE=IMAGE`, and copy the result to the others. Its name, which `plan` shows, is
`sparkcluster-build:HASH`, of the content of the directory, `image`, and the file that is run: as long as these are the
same nothing is built again, and any change is another image. It is never pulled from a registry. A `BASE` by a tag that
was moved is not built again: name it by digest. The build has Docker's default network, no GPU, and `timeout_s`. Like
a pull it goes on where your connection breaks, and the next run follows it.

If it fails you see its last lines, the exit code is 1, and what serves goes on. What a release needs to be started
again is its image: `rollback` builds nothing. Images that no release runs any more stay on the nodes until you remove
them (`docker image ls sparkcluster-build`). Files are sent without those that are hidden and without their modes, so
that scripts are run as `sh FILE`; the limits are those of mounts. The directory has to be inside of the playbook's, and
the inventory must [permit](inventory.md#what-a-playbook-may-have) it.

## User and entry point of the container

Ranks run as the user of the image, mostly root; `container: {user: "1000:1000"}` sets another. Numbers need quotes.
Users other than root have `/sparkcluster/home` as their home, with the caches below it, which are kept apart for each
user. Files of the model need to be readable for all: a rank that cannot read one ends with its path, before the engine
starts. The same holds for what `mounts` lists. Secrets come as variables and need no permission. Docker gives
`cap_add` to root alone, so that both together are an error. With runtime `process` ranks run as the node's user.

There is no key for the size of `/dev/shm`: ranks use the node's (`docker run --ipc host`), which is half of its memory.
There is none for an entry point. sparkcluster starts its own launcher in every rank, which joins the ranks and then
becomes the engine; NVIDIA's entrypoint, `nvidia_entrypoint.sh`, is kept before it, and any other is replaced. Of a
recipe with `--entrypoint`, the program and its arguments are `args`, or `command` if it is not the engine's own; what a
script does before it starts the engine are lines of `setup`, each in a shell of its own; and what it exports is `env`.

## Extending playbooks

`extends: NAME` starts from another playbook, whose keys this one overrides. Sections (`args`, `env`, `verify`, ...) are
merged key by key, `mounts`, `setup`, `secrets` and `allow` are concatenated, everything else is replaced, and `null`
removes a key.

An overlay is a part of a playbook that fits several, such as speculative decoding: a file in `overlays/` that starts
with `overlay: NAME` instead of a name and a model. It is applied by `playbook: NAME+OVERLAY` in the inventory,
`--playbook NAME+OVERLAY` or `extends: NAME+OVERLAY`, if the playbook lists it under `overlays`.

`--set KEY=VALUE` of `up`, `plan`, `preflight`, `doctor`, `stage`, `upgrade`, `fit` and `lint` sets one key for this
run, over all files: `--set args.max-model-len=65536`, `--set env.VLLM_LOGGING_LEVEL=DEBUG`. Dots lead into sections
and mappings (`args.speculative-config.num_speculative_tokens=2`); lists are set as a whole (`'setup=[pip list]'`). A
value is written as in YAML, but unless it begins with a quote or bracket it is taken to its end; `null` removes the
key. The inventory has the same keys under `set`; `upgrade --set KEY=VALUE --save` writes them there. The release
records the playbook with what was set; a later `up` without it shows the difference and changes nothing. A bundled
playbook with another value is asked about as any other.

What a playbook extends is a bundled one, or a file in the directory of the first playbook or below. Any other file is
an error, also by a link: a playbook from elsewhere must not name files of yours.

## One playbook for several numbers of nodes

`variants` has what differs for groups of some numbers of nodes, on top of the rest, by the rules of `extends`: sections
are merged key by key, lists of the same names are concatenated, `null` removes a key.

```yaml
args: {max-model-len: 32768, gpu-memory-utilization: 0.82}
variants:
  2:                                # groups of two nodes
    args: {max-model-len: 131072}
  3-4:                              # of three or four; 3+ is three and more
    args: {max-model-len: 262144, enable-expert-parallel: true}
```

A group of a number that no variant names gets the rest alone; which numbers are allowed at all is `nodes`. All keys
but `name`, `extends`, `overlays` and `nodes` may differ. What `plan`, `up`, `fit --nodes`, releases and their
comparison see is one merged playbook, so that another number of nodes is another plan. An inventory with groups for
which the playbook differs is refused. `lint` judges every variant, and lists what any of them can do.

A playbook that extends another wins over its variants, overlays win over both, and `--set` over all.

## A playbook for another model

`sparkcluster playbooks new ORGANISATION/NAME -o my-model.yaml` writes one to start from. Of the model's config.json,
which it reads as `fit` does (`--config PATH` where the hub cannot be reached), are revision, checkpoint, architecture,
context, parsers, Marlin for experts of four bits, and how many Sparks its memory takes. The rest is a guide's baseline:
four requests at once, 65,536 tokens, 0.82 of the memory. Its comments say what it could not find out; nothing of it was
measured.

## Where playbooks are searched

A name with a `/`, or one that ends in `.yaml` or `.yml`, is a path from the inventory's directory (with
`--playbook`, from the current directory first). Any other name is searched beside the inventory, in
`playbooks/` there and one level up, and then among the bundled ones. What looks like a path and is none may be a
repository of Hugging Face, such as `openai/gpt-oss-120b`: the playbook is searched there that names it as its model.
""",
}


def schema(kind: str) -> dict[str, Any]:
    """JSON Schema of an ``inventory`` or a ``playbook``."""
    generated = _MODELS[kind].model_json_schema()
    for definition in [generated, *generated.get("$defs", {}).values()]:
        for name, field in definition.get("properties", {}).items():
            field.pop("title", None)
            # An empty key counts as absent, so editors must allow it.
            if name not in definition.get("required", ()) and field.get("type") == "object":
                field["type"] = ["object", "null"]
    if kind == "inventory":
        generated["required"].remove("playbook")
        generated["oneOf"] = [{"required": ["playbook"]}, {"required": ["models"]}]
    if kind == "playbook":
        keys = [name for name in generated["properties"] if name not in variants.FIXED]
        generated["properties"][variants.KEY]["patternProperties"] = {
            f"^{VARIANT}$": {
                "type": ["object", "null"],
                "properties": {name: {"$ref": f"#/properties/{name}"} for name in keys},
                "additionalProperties": False,
            }
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **generated,
        "title": f"sparkcluster {kind}",
    }


def reference(kind: str) -> str:
    """Markdown with every key of an ``inventory`` or a ``playbook``."""
    model = _MODELS[kind]
    parts = [_INTRO[kind], "\n## Keys\n\n", _table(model)]
    for path, section in sections(model):
        doc = (section.__doc__ or "").strip().splitlines()[0].replace("``", "`")
        parts.append(f"\n### `{path}`\n\n{doc}\n\n{_table(section)}")
    if kind == "inventory":
        about = f"From [inventory/{ALL_KEYS.name}](../inventory/{ALL_KEYS.name}): every section with every key."
        parts.append(f"\n## All keys in one file\n\n{about}\n\n```yaml\n{ALL_KEYS.read_text()}```\n")
    names = ", ".join(f"`{name}`" for name in sorted(variables.per_node(engines.DEFAULT)))
    return "".join([*parts, _OUTRO[kind].replace("{PER_NODE}", textwrap.fill(names, 118))])


def sections(model: type[Section], prefix: str = "") -> list[tuple[str, type[Section]]]:
    """Every section below ``model`` with its path, such as ``nodes[].ssh``."""
    out: list[tuple[str, type[Section]]] = []
    for name, field in model.model_fields.items():
        for option in options(field.annotation):
            inner, mark = (get_args(option)[0], "[]") if get_origin(option) is list else (option, "")
            if isinstance(inner, type) and issubclass(inner, Section):
                path = f"{prefix}{name}{mark}"
                out += [(path, inner), *sections(inner, f"{path}.")]
    return out


def options(annotation: Any) -> Iterator[Any]:
    """The branches of a union, else the type itself; ``Annotated`` is unwrapped."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from options(get_args(annotation)[0])
    elif origin in {Union, types.UnionType}:
        for branch in get_args(annotation):
            yield from options(branch)
    else:
        yield annotation


def _table(model: type[Section]) -> str:
    rows = ["| key | value | default | meaning |\n|---|---|---|---|\n"]
    for name, field in model.model_fields.items():
        cells = (f"`{name}`", _kind(field), _default(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(rows)


def _kind(field: FieldInfo) -> str:
    words = []
    for option in options(field.annotation):
        word = _word(option)
        if word and word not in words:
            words.append(word)
    limits = {key: getattr(bound, key) for bound in field.metadata for key in ("ge", "gt", "le") if hasattr(bound, key)}
    low = f"from {limits['ge']}" if "ge" in limits else f"above {limits['gt']}" if "gt" in limits else ""
    high = f"to {limits['le']}" if "le" in limits else ""
    return " or ".join(words) + "".join(f" {bound}" for bound in (low, high) if bound)


def _word(option: Any) -> str:
    origin = get_origin(option)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(option))
    if origin is list:
        inner = [_word(each) for each in options(get_args(option)[0])]
        return "list of " + " or ".join("sections" if word == "section" else word for word in inner)
    if origin is dict:
        return "section of names and values"
    if isinstance(option, type) and issubclass(option, Section):
        return "section"
    words = {str: "string", int: "number", float: "number", bool: "`true`, `false`", Any: "anything"}
    return words.get(option, "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, Section):
        return "see below"
    if isinstance(value, list):
        return ", ".join(f"`{getattr(each, 'name', each)}`" for each in value)
    if value in ({}, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def files() -> dict[str, str]:
    """Everything that is derived, by file name below ``docs/``."""
    out = {}
    for kind in _MODELS:
        out[f"{kind}.schema.json"] = json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"
        out[f"{kind}.md"] = reference(kind)
    return out
