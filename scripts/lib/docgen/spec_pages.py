"""JSON Schemas of inventory and playbook for editors, and the reference of every key."""

from __future__ import annotations

import json
import re
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

An inventory says which Sparks a cluster has, how to reach them, and which playbook they serve.

- Start from one of the [examples](../inventory). `sparkcluster lint FILE` checks a file without contacting a node.
- [Permissions](permissions.md): what `permit` allows, and which lines are asked about.

""",
    "playbook": """# Playbook

A playbook says what a cluster serves: model, image, engine arguments, environment, and how the endpoint is verified.

- `sparkcluster playbooks` lists the bundled ones.
- [Writing a playbook](writing-playbooks.md): files, builds, overlays and variants.

""",
}

_COMMON = """\
For completion in an editor, start the file with this line, with the path of [the schema]({kind}.schema.json) from your
file:

```yaml
# yaml-language-server: $schema=../docs/{kind}.schema.json
```

A key without a value counts as absent.
"""


def schema(kind: str) -> dict[str, Any]:
    """JSON Schema of an ``inventory`` or a ``playbook``."""
    generated = _MODELS[kind].model_json_schema()
    for definition in [generated, *generated.get("$defs", {}).values()]:
        for name, field in definition.get("properties", {}).items():
            field.pop("title", None)
            # A key without a value counts as absent, so editors must allow it.
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
    parts = [_INTRO[kind], _COMMON.format(kind=kind), "\n## Keys\n\n", _table(model)]
    for path, section in sections(model):
        doc = (section.__doc__ or "").strip().splitlines()[0].replace("``", "`")
        parts.append(f"\n### `{path}`\n\n{doc}\n\n{_table(section)}")
    if kind == "inventory":
        about = f"From [inventory/{ALL_KEYS.name}](../inventory/{ALL_KEYS.name}): every key."
        parts.append(f"\n## All keys in one file\n\n{about}\n\n```yaml\n{ALL_KEYS.read_text()}```\n")
    if kind == "playbook":
        names = ", ".join(f"`{name}`" for name in sorted(variables.per_node(engines.DEFAULT)))
        parts.append("\n## Variables that `env` refuses\n\nsparkcluster sets them on each node:\n")
        parts.append(f"{textwrap.fill(names, 118)}.\n")
    return "".join(parts)


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
        inner = dict.fromkeys(_word(each) for each in options(get_args(option)[0]))
        return "list of " + " or ".join(re.sub(r"^\w+", r"\g<0>s", word) for word in inner)
    if origin is dict or (isinstance(option, type) and issubclass(option, Section)):
        return "mapping"
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
