"""The words after ``vllm serve`` as keys of a playbook."""

from __future__ import annotations

import json
import re
from typing import Any

from sparkcluster.engines.vllm import ENGINE, flags
from sparkcluster.errors import UsageError
from sparkcluster.importer.commands import EngineCommand
from sparkcluster.importer.unknown import shown, unknown


def read(words: list[str]) -> EngineCommand:
    """Reads the words after ``vllm serve``, flag by flag.

    Raises:
        UsageError: a flag has no value.
    """
    served = EngineCommand()
    for name, flag, values in flags.parse(words):
        if name:
            _put(served, name, flag, values)
        elif served.model is None:
            served.model = values[0]
        elif unknown(values[0]):
            served.unset += values
            served.notes.append(f"{shown(values[0])}: not set; if it contains flags, write them under args")
        elif values[0].strip():
            served.notes.append(f"{shown(values[0])!r}: skipped: it belongs to no flag")
    return served


def _put(served: EngineCommand, name: str, flag: flags.Flag | None, values: list[str]) -> None:
    written = shown(" ".join([f"--{name}", *values]))
    if name in {"api-key", "hf-token"}:
        served.notes.append(f"--{name}: write {ENGINE.arguments[name]}")
        return
    if flag is not None and flag.kind == "value" and not values:
        raise UsageError(f"--{name} has no value", hint="write its value, or copy the complete command")
    lost = sorted({name for value in values for name in unknown(value)})
    if lost and name != "model":
        served.unset += [] if name in {"host", "port", "node-rank", "master-addr", "master-port"} else values
        served.notes.append(f"{written}: skipped: {shown(', '.join(lost))} is not set")
        return
    if flag is None:
        near = flags.closest_name(name.partition(".")[0])
        gone = flags.GONE.get(name)
        advice = gone or (f"did you mean {near}?" if near else "kept under args unchanged")
        served.notes.append(f"{written}: vLLM has no flag --{shown(name)}; {advice}")
    if _set_key(served, name, values):
        return
    value = _value(flag, name, values)
    bare = name.removeprefix("no-")
    if flag is not None and flag.kind == "bool" and name != flag.name:
        served.args.pop(bare, None)
        served.args[bare] = False
    else:
        served.args.pop(name, None)
        served.args[name] = value


def _set_key(served: EngineCommand, name: str, values: list[str]) -> bool:
    """Whether the flag is a key of the playbook, or of the inventory."""
    value = values[-1] if values else ""
    if name == "model":
        served.model = value
    elif name == "served-model-name" and values:
        served.keys["served_name"] = values[0]
        others = [other for other in dict.fromkeys(values) if other != values[0]]
        served.keys["aliases"] = others
    elif name == "revision" and value:
        served.keys["revision"] = value
    elif name in {"tensor-parallel-size", "pipeline-parallel-size"} and re.fullmatch(r"[0-9]{1,9}", value):
        served.keys[name.removesuffix("-size").replace("-", "_")] = int(value)
    elif name == "distributed-executor-backend" and value in {"ray", "mp"}:
        served.keys["executor"] = "ray" if value == "ray" else "native"
    elif name in ENGINE.arguments:
        if (name, value) not in {("port", "8000"), ("host", "127.0.0.1"), ("host", "localhost")}:
            key = f"api.{name}: {shown(value)} in the inventory" if name in {"host", "port"} else ENGINE.arguments[name]
            served.notes.append(shown(f"--{name} {value}").rstrip() + f": write {key}")
    else:
        return False
    return True


def _value(flag: flags.Flag | None, name: str, values: list[str]) -> Any:
    if not values:
        return True
    if flag is not None and flag.kind == "list":
        return [_scalar(flag.type, value) for value in values] if len(values) > 1 else _scalar(flag.type, values[0])
    text = values[-1]
    typ = flag.type if flag is not None and "." not in name else "any"
    if typ == "json" or (text[:1] == "{" and text[-1:] == "}"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return document if isinstance(document, dict) else text
    return _scalar(typ, text)


def _scalar(typ: str, text: str) -> Any:
    if typ in {"int", "size"} and re.fullmatch(r"-?(0|[1-9]\d{0,17})", text):
        return int(text)
    if typ == "float" and re.fullmatch(r"\d{1,9}|\d{0,9}\.\d{1,9}", text):
        return float(text) if "." in text else int(text)
    return text
