"""The flags of ``vllm serve``: in which releases each exists, and which values it takes.

The table ``flags.tsv`` was read from vLLM's own parser, release by release; ``flags.toml`` has further facts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from sparkcluster.engines.vllm.versions import Versions, numbers
from sparkcluster.fit.defaults import Version
from sparkcluster.suggest import closest

TABLE = Path(__file__).with_name("flags.tsv")
_MORE = tomllib.loads(TABLE.with_suffix(".toml").read_text(encoding="utf-8"))
GONE: dict[str, str] = _MORE["gone"]
_LEAST: dict[str, int] = _MORE["least"]

FlagKind = Literal["bool", "flag", "value", "optional", "list"]

_MXFP4 = re.compile(r"sparkarena/spark-vllm-docker:mxfp4|vllm-node-mxfp4(:.*)?")
_MXFP4_BUILDS = "builds with CUTLASS kernels for MXFP4 (build-and-copy.sh --exp-mxfp4 of eugr/spark-vllm-docker)"
# Arguments of forks: a pattern of images that have it, and other builds that may. From
# https://github.com/eugr/spark-vllm-docker (build-and-copy.sh, mods/gpu-mem-util-gb).
FORKS: dict[str, tuple[re.Pattern[str] | None, str]] = {
    "mxfp4-backend": (_MXFP4, _MXFP4_BUILDS),
    "mxfp4-layers": (_MXFP4, _MXFP4_BUILDS),
    "gpu-memory-utilization-gb": (None, "builds with the mod gpu-mem-util-gb of eugr/spark-vllm-docker"),
}

# Mappings with the type any in the table, since their parser wraps json.loads (vllm/engine/arg_utils.py); and *-config.
_MAPPINGS = {"default-mm-loras", "hf-overrides", "limit-mm-per-prompt", "media-io-kwargs", "mm-processor-kwargs"}

_SHARE = "gpu-memory-utilization"

_DASHED = re.compile(r"--?[A-Za-z].*", re.DOTALL)
_LEVEL = re.compile(r"-O(\d)")
_SIZE = re.compile(r"-?\d+(\.\d+)?[kKmMgGtT]?|auto|-1")


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: its name without dashes.
        short: other names, with their dashes.
        kind: how many values it takes; bool has a negated form, flag has none.
        type: type of its value: any, str, int, float, size (a number or 32k), json.
        choices: the values that it takes in the newest release of the table; empty if unrestricted.
        first: the first release of the table that has it, None for the oldest.
        last: the last release of the table that has it, None for the newest.
    """

    name: str
    short: tuple[str, ...]
    kind: FlagKind
    type: str
    choices: tuple[str, ...]
    first: Version | None
    last: Version | None


@functools.cache
def releases() -> tuple[Version, ...]:
    """The releases that the table was read from, the oldest first."""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# releases:"):
            return tuple(filter(None, map(numbers, line.removeprefix("# releases:").split())))
    raise ValueError(f"{TABLE} names no releases")


@functools.cache
def table() -> dict[str, Flag]:
    """Every flag by its name without dashes."""
    out: dict[str, Flag] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            names, kind, typ, choices, first, last = line.split("\t")
            name, *short = names.split(",")
            out[name[2:]] = Flag(
                name[2:],
                tuple(short),
                cast("FlagKind", kind),
                "json" if typ == "any" and (name.endswith("-config") or name[2:] in _MAPPINGS) else typ,
                () if choices == "-" else tuple(choices.split(",")),
                None if first == "-" else numbers(first),
                None if last == "-" else numbers(last),
            )
    return out


def known() -> set[str]:
    """Names of the flags of all releases, without dashes."""
    return {*table(), *GONE}


def tuning_arguments() -> Mapping[str, frozenset[str]]:
    """Implements ``Engine.tuning_arguments``."""
    documents = _MORE["tuning"]["documents"]
    return {name: frozenset(documents.get(name, ())) for name in [*_MORE["tuning"]["arguments"], *documents]}


def tuning_variables() -> frozenset[str]:
    """Implements ``Engine.tuning_variables``."""
    return frozenset(_MORE["tuning"]["variables"])


def whole(name: str) -> str:
    """The flag that argparse completes ``name`` to, since it accepts a prefix."""
    head, dot, tail = name.partition(".")
    return min((each for each in known() if len(head) > 1 and each.startswith(head)), default=head) + dot + tail


@functools.cache
def aliases() -> dict[str, str]:
    """The full name of every other form, with its dashes: ``-tp`` is ``tensor-parallel-size``."""
    return {short: flag.name for flag in table().values() for short in flag.short}


def find(name: str) -> Flag | None:
    """The flag of that name; for a dotted name, such as ``compilation-config.mode``, the flag before the dot."""
    head = name.partition(".")[0].replace("_", "-").lower()
    flags = table()
    if head in flags:
        return flags[head]
    bare = head.removeprefix("no-")
    return flags[bare] if bare in flags and flags[bare].kind == "bool" else None


def parse(words: Sequence[str]) -> Iterator[tuple[str, Flag | None, list[str]]]:
    """Each argument of a command line as its full name, its flag and its values; the name of other words is "".

    The word after an unknown flag is taken for its value.
    """
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _DASHED.fullmatch(word):
            yield "", None, [word]
            continue
        name, inline = _name(word)
        flag = find(name)
        values = [inline] if inline is not None else []
        while inline is None and index < len(words) and _takes(flag, values) and not _DASHED.fullmatch(words[index]):
            values.append(words[index])
            index += 1
        yield name, flag, values


def _name(word: str) -> tuple[str, str | None]:
    """The full name of a flag, and the value in the same word."""
    level = _LEVEL.fullmatch(word)
    if level:
        return "optimization-level", level[1]
    head, equals, inline = word.partition("=")
    base, dot, suffix = head.partition(".")
    # The table has -tp; argparse takes -tp=2 and -cc.mode=3 too.
    base = aliases().get(
        base, base.lstrip("-").replace("_", "-").lower() if base.startswith("--") else base.lstrip("-")
    )
    return base + dot + suffix, inline if equals else None


def _takes(flag: Flag | None, values: list[str]) -> bool:
    if flag is not None and flag.kind in {"bool", "flag"}:
        return False
    return not values or (flag is not None and flag.kind == "list")


def closest_name(name: str) -> str | None:
    """The flag with the most similar name."""
    return closest(name, sorted(table()))


def has(flag: Flag, versions: Versions) -> bool | None:
    """Whether the vLLM of an image has ``flag``; None if unknown.

    Between two releases of the table, a flag is known only if both have it or neither does. Flags that are newer than
    the table's oldest release are missing in older ones.
    """
    read = releases()
    if flag.first and versions.since(*read[0]) is False:
        return False
    if versions.since(*read[0]) is not True or versions.low is None or versions.low > read[-1]:
        return None
    oldest = max(index for index, release in enumerate(read) if release <= versions.low)
    newest = next(
        (index for index, release in enumerate(read) if versions.high and release >= versions.high),
        len(read) - 1,
    )
    there = {_is_in(flag, release) for release in read[oldest : newest + 1]}
    return there.pop() if len(there) == 1 else None


def misuse(flag: Flag, name: str, value: Any) -> str | None:
    """What is wrong with ``value`` for ``flag``, written as ``name``, in any release; None if it is valid."""
    if value is None or "." in name:
        return None
    if flag.kind in {"bool", "flag"}:
        return _switch(flag, value)
    if isinstance(value, bool):
        return None if flag.kind == "optional" and value else f"takes a value, {_described(flag)}"
    if isinstance(value, list) and flag.kind != "list":
        return "takes a mapping or JSON in quotes" if flag.type == "json" else "takes one value and no list"
    fits = isinstance(value, list) or (_fits(flag, value) and _in_range(flag, value))
    return None if fits else f"takes {_described(flag)}"


def example(flag: Flag) -> str:
    """What to write for ``flag`` instead of an invalid value."""
    if flag.type == "json":
        return f"write {flag.name} as a mapping with 'key: value' below it, or as JSON in single quotes"
    if flag.name == _SHARE:
        return f"write {flag.name}: 0.82"
    if flag.type in {"int", "float"}:
        return f"write {flag.name}: N, where N is {_described(flag)}"
    return f"write {flag.name}: 32768" if flag.type == "size" else f"vllm serve --help={flag.name}"


def expected_choice(flag: Flag, value: Any) -> str | None:
    """The closest of ``flag``'s choices to an invalid ``value``, or all choices; None if ``value`` is valid."""
    if not flag.choices or isinstance(value, bool | dict) or value is None:
        return None
    for written in value if isinstance(value, list) else [value]:
        text = str(written)
        if text.lower().replace("-", "_") not in {choice.lower().replace("-", "_") for choice in flag.choices}:
            return closest(text, flag.choices) or ", ".join(flag.choices)
    return None


def _is_in(flag: Flag, release: Version) -> bool:
    return (flag.first is None or release >= flag.first) and (flag.last is None or release <= flag.last)


def _fits(flag: Flag, value: Any) -> bool:
    text = str(value)
    if flag.name == _SHARE and text == "auto":
        return True  # the plan fills it in
    if isinstance(value, dict):
        return flag.type in {"json", "any"}
    try:
        if flag.type == "int":
            int(text)
        elif flag.type == "float":
            float(text)
        elif flag.type == "json" and isinstance(value, str) and text not in {"", "None"}:
            json.loads(text)
    except (ValueError, RecursionError):
        return False
    return flag.type != "size" or bool(_SIZE.fullmatch(text))


def _in_range(flag: Flag, value: Any) -> bool:
    try:
        number = float(str(value))
    except ValueError:
        return True
    if flag.name == _SHARE:  # Field(gt=0, le=1) in vllm/config/cache.py
        return 0 < number <= 1
    return flag.name not in _LEAST or number >= _LEAST[flag.name]


def _described(flag: Flag) -> str:
    if flag.name == _SHARE:
        return "a number above 0 and at most 1"
    kinds = {"int": "a whole number", "float": "a number", "size": "a number, or one as 32k", "json": "a mapping"}
    least = f", {_LEAST[flag.name]} or more" if flag.name in _LEAST else ""
    return kinds.get(flag.type, "one word") + least


def _switch(flag: Flag, value: Any) -> str | None:
    if value is True or (value is False and flag.kind == "bool"):
        return None
    if value is False:
        return "has no negated form: remove it"
    return "takes no value: write true or false, unquoted"
