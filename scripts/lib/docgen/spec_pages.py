"""JSON Schemas of inventory and playbook for editors, and the reference of every key."""

from __future__ import annotations

import json
import textwrap
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sparkcluster import engines
from sparkcluster.spec import variables
from sparkcluster.spec.base import Section
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.messages import options
from sparkcluster.spec.playbook import Playbook

_MODELS: dict[str, type[Section]] = {"inventory": Inventory, "playbook": Playbook}

_INTRO = {
    "inventory": """# Inventory

What a cluster **is**: which Sparks, how to reach them, what joins them, and which playbook they serve.
Begin with one of the [examples](../inventory); `sparkcluster lint FILE` checks it without touching a
node.

An editor that knows YAML schemas completes and checks the keys when the file begins with

```yaml
# yaml-language-server: $schema=../docs/inventory.schema.json
```

with the path of [that file](inventory.schema.json) from where yours lies.
""",
    "playbook": """# Playbook

What a cluster **serves**: model, image, engine arguments, environment, and how it shows that it works.
Those that come along are listed by `sparkcluster playbooks`; an inventory names one of them, or the path
of your own.

An editor completes and checks the keys when the file begins with

```yaml
# yaml-language-server: $schema=../docs/playbook.schema.json
```

with the path of [that file](playbook.schema.json) from where yours lies.
""",
}

_OUTRO = {
    "inventory": """
## How it is read

- A key given twice, an unknown key, or a value of another kind is an error with file, line and column;
  all of them are told at once. `1.10` is a number and `no` is false: a text that looks like either wants
  quotes.
- A key with nothing behind it counts as not given.
- Every node is another machine with its own address. With `groups`, every node belongs to one of them;
  the first node of a group is its head.
- SSH keys of a node go over those of the `ssh` section, and what neither says comes from
  `~/.ssh/config`.
- Anchors and aliases work; tags (`!…`) and merge keys (`<<`) do not.
""",
    "playbook": """
## Engine arguments

`args` takes the engine's own flag names without the dashes in front. `true` is the bare flag, `false` its
negation (`--no-…`), a list several values, a section JSON. What follows from other keys is refused
there, and the message names the key: `tensor_parallel`, `served_name`, `executor`, or the inventory's
`api` and `groups`.

## Environment and secrets

`env` holds for every rank, so what differs from node to node is refused, since sparkcluster sets it for each node:
{PER_NODE}.

Secrets are listed by name under `secrets` and taken from the environment that sparkcluster is started
in; the API key is named in the inventory. Neither is ever written to a command line, a plan or a log.

## Files of the model

In a container `/sparkcluster/model` leads to the model's own directory on every node, whatever its revision. So a
parser, a patch or a draft that comes with the weights can be named: `reasoning-parser-plugin:
/sparkcluster/model/parser.py`, or in `setup` a line that copies a file over the image's own.

## One on top of another

`extends: NAME` begins with another playbook; what this one writes wins. The sections (`args`, `env`, `verify`, ...)
are taken key by key, `mounts`, `setup`, `secrets` and `allow` add up, all else is replaced whole, and `null` takes
a key away.

An overlay is a part of a playbook that fits several, such as a way to draft tokens: a file in `overlays/` that
begins with `overlay: NAME` in place of a name and a model. `playbook: NAME+OVERLAY` in the inventory, `--playbook
NAME+OVERLAY` or `extends: NAME+OVERLAY` puts it on, provided that the playbook lists it under `overlays`.

## Where a playbook is looked for

A name with a `/`, or one that ends in `.yaml` or `.yml`, is a path from the inventory's directory (with
`--playbook`, from the current directory first). Any other name is looked for beside the inventory, in
`playbooks/` there and one level up, and then among those that come along.
""",
}


def schema(kind: str) -> dict[str, Any]:
    """JSON Schema of an ``inventory`` or a ``playbook``."""
    generated = _MODELS[kind].model_json_schema()
    for one in [generated, *generated.get("$defs", {}).values()]:
        for name, field in one.get("properties", {}).items():
            field.pop("title", None)
            # An empty key counts as not given, so an editor has to allow it.
            if name not in one.get("required", ()) and field.get("type") == "object":
                field["type"] = ["object", "null"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **generated,
        "title": f"sparkcluster {kind}",
    }


def reference(kind: str) -> str:
    """Markdown with every key of an ``inventory`` or a ``playbook``."""
    model = _MODELS[kind]
    parts = [_INTRO[kind], "\n## Keys\n\n", _table(model)]
    for path, section in _sections(model, ""):
        doc = (section.__doc__ or "").strip().splitlines()[0].replace("``", "`")
        parts.append(f"\n### `{path}`\n\n{doc}\n\n{_table(section)}")
    names = ", ".join(f"`{name}`" for name in sorted(variables.per_node(engines.DEFAULT)))
    return "".join([*parts, _OUTRO[kind].replace("{PER_NODE}", textwrap.fill(names, 118))])


def _sections(model: type[Section], prefix: str) -> list[tuple[str, type[Section]]]:
    out: list[tuple[str, type[Section]]] = []
    for name, field in model.model_fields.items():
        for option in options(field.annotation):
            inner, mark = (get_args(option)[0], "[]") if get_origin(option) is list else (option, "")
            if isinstance(inner, type) and issubclass(inner, Section):
                path = f"{prefix}{name}{mark}"
                out += [(path, inner), *_sections(inner, f"{path}.")]
    return out


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
    limits = {key: getattr(one, key) for one in field.metadata for key in ("ge", "gt", "le") if hasattr(one, key)}
    low = f"from {limits['ge']}" if "ge" in limits else f"above {limits['gt']}" if "gt" in limits else ""
    high = f"to {limits['le']}" if "le" in limits else ""
    return " or ".join(words) + "".join(f" {one}" for one in (low, high) if one)


def _word(option: Any) -> str:
    origin = get_origin(option)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in get_args(option))
    if origin is list:
        inner = [_word(one) for one in options(get_args(option)[0])]
        return "list of " + " or ".join("sections" if one == "section" else one for one in inner)
    if origin is dict:
        return "section of names and values"
    if isinstance(option, type) and issubclass(option, Section):
        return "section"
    known = {str: "text", int: "number", float: "number", bool: "`true`, `false`", Any: "anything"}
    return known.get(option, "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, Section):
        return "see below"
    if isinstance(value, list):
        return ", ".join(f"`{getattr(one, 'name', one)}`" for one in value)
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
