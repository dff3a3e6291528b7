"""Messages for what pydantic found, with the place in the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from sparkcluster.errors import Problem
from sparkcluster.spec import hints, slips
from sparkcluster.spec.base import Section, options
from sparkcluster.spec.document import Document, KeyPath, shown
from sparkcluster.spec.secret_patterns import holds_secret, mentions_secret
from sparkcluster.suggest import closest, did_you_mean

# The patterns of the models in words; a test checks that none is missing.
PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": "letters, digits and . _ - only, starting with a letter or digit",
    r'^(/|~$|~/)[^\x00-\x1f\x7f,:"]*$': "an absolute path or one from ~/, without ',' ':' and '\"'",
    r'^(/|~$|~/|\./)[^\x00-\x1f\x7f,:"]*$': "an absolute path or one from ~/ or ./, without ',' ':' and '\"'",
    r'^\./[^\x00-\x1f\x7f,:"]*$': "a path from ./, which is beside the playbook, without ',' ':' and '\"'",
    r'^(/|~$|~/)[^\x00-\x1f\x7f,:"]*(:rw)?$': "an absolute path or one from ~/, and :rw after it if it may be written",
    r"^(/|~)[^\x00-\x1f\x7f]*$": "an absolute path or one from ~/",
    r'^/[^\x00-\x1f\x7f,:"]*$': "an absolute path, without ',' ':' and '\"'",
    r"^[!-.0-~][ -~]*$": "a pattern of files in the repository, such as *.json",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable: letters, digits and '_'",
    r"^[A-Z][A-Z0-9]*-[0-9]{3}$": "the code of a finding, such as NET-014",
    r"^[0-9A-Za-z:][0-9A-Za-z.:%_-]*$": "a host name or an address",
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$": "the name of a network interface, such as enp1s0f0np0",
    r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$": "the name of an RDMA device, such as rocep1s0f0",
    r"^[a-z_][a-z0-9_.-]*\$?$": "a login name",
    r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:,%\[\]-]*$": "user@host:port, or several separated by commas",
    r"^(management|interconnect|[0-9A-Fa-f.:]+)$": "an address, management or interconnect",
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$": "a Hugging Face repository, such as owner/name",
    r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$": "a branch, tag or commit",
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*([/:@][A-Za-z0-9_][A-Za-z0-9_.-]*)*$": "an image reference, such as "
    "registry.example/engine:v1.0, with no part empty",
    r"^[A-Za-z0-9~/][A-Za-z0-9_.:/~-]*$": "letters, digits and . _ : / ~ - only",
    r"^/dev/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$": "a device file, such as /dev/gdrdrv",
    r"^([a-z_][a-z0-9_-]{0,31}|0|[1-9][0-9]{0,9})(:([a-z_][a-z0-9_-]{0,31}|0|[1-9][0-9]{0,9}))?$": "a user by name or "
    'number, such as "1000:1000" or nobody',
    r"^([1-9][0-9]{0,3})(-([1-9][0-9]{0,3})|\+)?$": "a number of nodes, as 2, 2-4 or 2+",
    r"^[A-Z][A-Z_]{2,31}$": "a Linux capability, such as SYS_NICE",
    r"^[A-Za-z][A-Za-z0-9_]*$": "the name of a class, such as Qwen3MoeForCausalLM",
}
# Unions whose branches pydantic reports one by one.
CHOICES = {
    "interconnect": "must be auto or a section with rails",
    "tensor_parallel": "must be auto or an integer from 1",
}
_OF_THE_INVENTORY = (
    "is a key of the inventory: a playbook runs no commands on the machine that deploys it",
    "move it to the inventory",
)
_NO_ENTRYPOINT = (
    "cannot be set: a rank starts with sparkcluster's launcher, behind NVIDIA's entrypoint where the image has it",
    "write what it does first as lines of setup, what it exports under env, and another program under command",
)
# Keys that are refused: reason and hint.
REFUSED: dict[KeyPath, tuple[str, str]] = {
    ("after_ready",): _OF_THE_INVENTORY,
    ("after_ready_timeout_s",): _OF_THE_INVENTORY,
    ("entrypoint",): _NO_ENTRYPOINT,
    ("container", "entrypoint"): _NO_ENTRYPOINT,
    ("container", "shm_size"): (
        "has no effect: ranks use the node's IPC (docker run --ipc host), and with it the node's /dev/shm",
        "delete this line; it is half of the node's memory, or what sudo mount -o remount,size=16g /dev/shm sets",
    ),
}
# Sections whose values may contain secrets.
_NOT_SHOWN = ("env", "setup", "command", "after_ready")


def problems(error: ValidationError, document: Document, model: type[Section]) -> list[Problem]:
    """The problems that pydantic found in ``document``, one for each place."""
    out: dict[KeyPath, Problem] = {}
    kinds: dict[KeyPath, str] = {}
    for each in error.errors(include_url=False, include_context=True):
        path = _path(each["loc"], document.data, each["type"])
        if path == ("interconnect",) and isinstance(each["input"], dict):
            continue  # the problems in the section are reported separately
        if path[:1] == ("args",):
            path = path[:2]  # the branches of the union mean nothing to a user
        if path not in out:
            out[path], kinds[path] = _problem(each, path, document, model), each["type"]
    unknown = [path for path, kind in kinds.items() if kind == "extra_forbidden"]
    meant = {
        (*path[:-1], slips.missing_space(path[-1]) or closest(path[-1], _allowed(model, path))) for path in unknown
    }
    # What is extended brings the rest.
    extends = ("extends",) in meant
    lacks = {
        path for path, kind in kinds.items() if kind == "missing" and (path in meant or (extends and not path[1:]))
    }
    return [problem for path, problem in out.items() if path not in lacks]


def may_show(path: KeyPath, value: object) -> bool:
    """Whether ``value`` may appear in a message: neither its place nor its form suggests a secret."""
    if any(isinstance(part, str) and (part in _NOT_SHOWN or mentions_secret(part)) for part in path):
        return False
    return not (isinstance(value, str) and holds_secret(value))


def _path(loc: tuple[int | str, ...], data: Any, kind: str) -> KeyPath:
    """The path of ``loc`` in the file, without the names of union branches that pydantic inserts."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if _has(data, part):
            data = data[part]
        elif not (last and kind == "missing"):
            continue
        path.append(part)
    return tuple(path)


def _has(data: Any, part: str | int) -> bool:
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and part < len(data)


def _problem(  # noqa: PLR0911 - one return for each kind of error
    error: Any, path: KeyPath, document: Document, model: type[Section]
) -> Problem:
    kind = error["type"]
    if kind == "extra_forbidden":
        sections = _sections(model, path[:-1])
        slip = hints.for_unknown_key(str(path[-1]), _at(document.data, path[:-1]), sections)
        if slip and path not in REFUSED:
            return document.problem(path, *slip, key=True)
        return unknown_key(document, path, _allowed(model, path))
    if kind == "missing":
        return _missing(path, document, model)
    if error["loc"] and error["loc"][-1] == "[key]":
        if kind in {"literal_error", "value_error"}:
            return document.problem(path, *_words(error, path, document, None), key=True)
        words = PATTERNS.get(error.get("ctx", {}).get("pattern", ""), "a shorter name")
        return document.problem(path, f"this key must be {words}", key=True)
    if len(path) == 1 and path[0] in CHOICES and not isinstance(error["input"], dict):
        subnet = hints.subnet_of(error["input"]) if path == ("interconnect",) else None
        hint = f"write {{rails: [{subnet}]}}" if subnet else None
        return document.problem(path, CHOICES[str(path[0])] + _is(path, document, error["input"]), hint)
    if path[:1] == ("args",):
        if len(path) == 1:
            return document.problem(path, "must be a section")
        expected = "must be a boolean, number, string, list of numbers and strings, or section"
        return document.problem(path, expected)
    if kind in {"dict_type", "model_type", "model_attributes_type", "list_type"}:
        return document.problem(path, *_wrong_shape(error, path, document, model))
    message, hint = _words(error, path, document, field_at(model, path))
    return document.problem(path, message, hint)


def _missing(path: KeyPath, document: Document, model: type[Section]) -> Problem:
    field = field_at(model, path)
    about = f"{path[-1]}: {field.description}" if field and field.description else str(path[-1])
    hint = f"add {about}"
    if _continues(document.data, path[:-1], _allowed(model, path)):
        hint += "; or remove '- ' if this belongs to the entry above"
    return document.problem(path, "is required", hint)


def _wrong_shape(error: Any, path: KeyPath, document: Document, model: type[Section]) -> tuple[str, str | None]:
    """What is wrong with a value that should be a section or a list, and what to write."""
    value = error["input"]
    shown_value, visible = _is(path, document, value), value is not None and may_show(path, value)
    if error["type"] == "list_type":
        secret = None if value is None else hints.LIST
        hint = hints.for_list(value, _sections(model, (*path, 0))) if visible else secret
        return f"must be a list{shown_value}", hint
    key = slips.missing_space(value) if visible else None
    if key:
        return hints.NO_SPACE.format(key), hints.WRITE_SPACE.format(key)
    entry = isinstance(path[-1], int)
    hint = hints.for_section(value, _sections(model, path), entry=entry) if visible else None
    return f"must be a section{shown_value}", hint


def _continues(data: Any, path: KeyPath, allowed: Sequence[str]) -> bool:
    """Whether the entry at ``path`` has only keys that fit in the entry above it, and are not there."""
    *parent, index = path or ("",)
    if not isinstance(index, int) or index == 0:
        return False
    here, above = _at(data, path), _at(data, (*parent, index - 1))
    return bool(above) and set(here) <= set(allowed) - set(above)


def _at(data: Any, path: KeyPath) -> dict[str, Any]:
    for part in path:
        data = data[part]
    return data if isinstance(data, dict) else {}


def unknown_key(document: Document, path: KeyPath, allowed: Sequence[str]) -> Problem:
    """The problem of a key that is not among ``allowed``."""
    if path in REFUSED:
        return document.problem(path, *REFUSED[path], key=True)
    of_engine = "arguments of the engine go below args:; " if "-" in str(path[-1]) and "args" in allowed else ""
    hint = did_you_mean(path[-1], allowed, f"{of_engine}allowed: {', '.join(allowed)}")
    return document.problem(path, "unknown key", hint, key=True)


def _is(path: KeyPath, document: Document, value: object) -> str:
    """``, is 70000``: the value, if it may be shown."""
    if value is None:
        return ", but is empty"
    if isinstance(value, (dict, list)):
        return ", is a section" if isinstance(value, dict) else ", is a list"
    if not may_show(path, value):
        return ""
    written = document.written.get(path)
    return f", is {shown(written)[1:-1] if written is not None else shown(value)}"


def _words(  # noqa: PLR0911 - one return for each kind of error
    error: Any, path: KeyPath, document: Document, field: FieldInfo | None
) -> tuple[str, str | None]:
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    shown_value = _is(path, document, value)
    if kind == "string_type":
        return _not_text(path, document, value)
    if kind in {"int_type", "int_from_float", "int_parsing"}:
        quoted = isinstance(value, str) and value.isdecimal() and path not in document.written
        return f"must be an integer{shown_value}", f"write {value} without quotes" if quoted else None
    if kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        return f"must be {_bounds(field, context)}{shown_value}", None
    if kind == "string_pattern_mismatch":
        hint = hints.for_text(path, value) if may_show(path, value) else None
        return f"must be {PATTERNS.get(context['pattern'], 'something else')}{shown_value}", hint
    if kind == "literal_error":
        return _not_among(str(context["expected"]), value, shown_value)
    if kind == "value_error":
        return str(context["error"]), None
    simple = {
        "float_type": "must be a number",
        "bool_type": "must be true or false",
        "finite_number": "must be a finite number",
        "too_short": f"needs at least {context.get('min_length')} entry",
        "string_too_short": "is too short" if context.get("min_length", 1) > 1 else "is empty",
        "string_too_long": f"is longer than {context.get('max_length')} characters",
    }
    if kind in {"too_short", "string_too_short", "string_too_long"}:
        return simple[kind], None
    return simple.get(kind, "has an invalid value") + shown_value, None


def _not_text(path: KeyPath, document: Document, value: object) -> tuple[str, str | None]:
    kind = {bool: "true or false", int: "a number", float: "a number"}.get(type(value))
    written = document.written.get(path)
    if kind is None:
        return f"must be a string{_is(path, document, value)}", None
    if written is None or not may_show(path, value):
        return f"must be a string, but reads as {kind}", "put the value in quotes"
    return f"must be a string, but {shown(written)[1:-1]} reads as {kind}", f"write {shown(written)}"


def _not_among(expected: str, value: object, shown_value: str) -> tuple[str, str | None]:
    words = re.findall(r"'([^']*)'", expected)
    text = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    return f"must be {text}{shown_value}", did_you_mean(value, words) if isinstance(value, str) else None


def _bounds(field: FieldInfo | None, context: dict[str, Any]) -> str:
    limits = dict(context)
    for bound in field.metadata if field else ():
        limits.update({name: getattr(bound, name) for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)})
    if "ge" in limits and "le" in limits:
        return f"between {limits['ge']} and {limits['le']}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return " and ".join(f"{word} {limits[name]}" for name, word in words.items() if name in limits)


def _allowed(model: type[Section], path: KeyPath) -> list[str]:
    return sorted({name for section in _sections(model, path[:-1]) for name in section.model_fields})


def field_at(model: type[Section], path: KeyPath) -> FieldInfo | None:
    """The field at ``path``, if there is one."""
    if not path or isinstance(path[-1], int):
        return None
    for section in _sections(model, path[:-1]):
        if path[-1] in section.model_fields:
            return section.model_fields[path[-1]]
    return None


def _sections(model: type[Section], path: KeyPath) -> list[type[Section]]:
    annotations: list[Any] = [model]
    for part in path:
        annotations = [step for each in annotations for option in options(each) for step in _step(option, part)]
    return [
        option
        for each in annotations
        for option in options(each)
        if isinstance(option, type) and issubclass(option, Section)
    ]


def _step(option: Any, part: str | int) -> list[Any]:
    if isinstance(option, type) and issubclass(option, Section):
        field = option.model_fields.get(str(part))
        return [field.annotation] if field else []
    if get_origin(option) in {list, dict}:
        return [get_args(option)[-1]]
    return []
