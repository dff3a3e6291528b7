"""How a checkpoint stores its weights, from config.json: which modules are quantized, and to how many bits.

A quantization_config lists modules by full names, prefixes, parts of names, shell patterns or regular expressions
(``re:``); ``Names`` supports all of them. Anything else is unknown, and is never assumed to have 16 bits.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping

from sparkcluster.fit.read import Document

PLAIN = 0.0
"""Bits value of a module that is stored in the model's dtype."""

# Bits per weight including scales, by ModelOpt's names (modelopt/torch/export/model_config.py): NVFP4 has a scale byte
# per 16 weights, MXFP4 and MXFP8 per 32; integer formats have two scale bytes per 128.
ALGORITHM_BITS = {
    "NVFP4": 4.5,
    "NVFP4_AWQ": 4.5,
    "W4A16_NVFP4": 4.5,
    "W4A8_NVFP4_FP8": 4.5,
    "MXFP4": 4.25,
    "W4A8_MXFP4_FP8": 4.25,
    "MXFP8": 8.25,
    "FP8": 8.0,
    "FP8_PB_WO": 8.0,
    "FP8_PER_CHANNEL_PER_TOKEN": 8.0,
    "INT8_SQ": 8.0,
    "W4A16_AWQ": 4.125,
    "INT4_AWQ": 4.125,
}

_PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|transformer|text_model)\.)+")
# Not quantized unless listed explicitly: embedding tables, routers, and small projections.
_DEFAULT_PLAIN = re.compile(
    r"(^|\.)(embed_tokens|lm_head|gate|router|shared_expert_gate|eh_proj|fc|weights_proj)$|^visual(\.|$)|\.compressor\."
)
_LONGEST, _STARS = 200, 4
# With a quantifier after a group, or a back-reference, one match can take hours.
_COSTLY = re.compile(r"[)\]][*+{]|\\\d|\(\?|\{")


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """A list of modules in a quantization_config."""

    exact: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()

    def __contains__(self, name: str) -> bool:
        if any(ancestor in self.exact for ancestor in _ancestors(name)):
            return True
        within = f".{name}."
        if any(f".{part}." in within for part in self.parts):
            return True
        shown = (name, f"model.{name}", f"model.language_model.{name}")
        return any(pattern.match(each) for pattern in self.patterns for each in shown)


EXPERTS = Names(parts=("experts",))
Groups = tuple[tuple[Names, float | None], ...]
"""Modules with their bits per weight including scales; None if unknown."""


def names(entries: Iterable[str], document: Document, key: str) -> Names:
    """Parse a list of modules.

    Raises:
        UsageError: a pattern that could take hours to match.
    """
    exact, parts, patterns = set(), [], []
    for entry in dict.fromkeys(entries):
        bare = _PREFIX.sub("", entry)
        expression = entry.startswith("re:")
        if expression or "*" in entry:
            text = entry.removeprefix("re:") if expression else bare
            costly = expression and _COSTLY.search(text)
            if costly or len(text) > _LONGEST or text.count("*") + text.count("+") > _STARS:
                raise document.refused(key, f"has an unsupported pattern: {entry[:40]}")
            try:
                patterns.append(re.compile(text if expression else fnmatch.translate(text)))
            except re.error:
                raise document.refused(key, f"has an invalid pattern: {entry[:40]}") from None
        elif "layers." in bare:
            exact.add(bare)
        else:
            parts.append(bare)
    return Names(frozenset(exact), tuple(parts), tuple(patterns))


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint stores its weights.

    Attributes:
        kind: none, modelopt-nvfp4, modelopt-fp8, modelopt-mixed, compressed-tensors, mxfp4, fp8, gptq, awq, auto-round
            or other.
        method: quant_method in the file.
        bits_per_weight: bits of a quantized weight including scales; None if there is no common value.
        kv_dtype: KV cache dtype requested by the checkpoint, or None.
        experts_bits: bits per expert weight, if config.json names them outside quantization_config; else None.
        found: quantization_config, or None.
    """

    kind: str = "none"
    method: str = ""
    bits_per_weight: float | None = None
    kv_dtype: str | None = None
    experts_bits: float | None = None
    found: Document | None = dataclasses.field(default=None, repr=False, compare=False)

    def rules(self) -> Rules:
        """Bits by module.

        Raises:
            UsageError: invalid lists of modules.
        """
        found, bits = self.found, self.bits_per_weight
        if found is None:
            return Rules(PLAIN)
        if self.experts_bits is not None:  # modules other than experts have 8 bits
            return Rules(8.0, ((EXPERTS, self.experts_bits),))
        inner = found.below("quantization") or found
        ignored: list[str] = []
        for document in (found, inner):
            for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"):
                ignored += document.words(key)
        if self.kind in {"auto-round", "gptq", "awq"}:  # these quantize only decoder layers
            return Rules(bits, ((names([*ignored, "mtp"], found, "ignore"), PLAIN), *_extra(found)))
        ignore = (names(ignored, found, "ignore"), PLAIN)
        if self.kind == "mxfp4":  # gpt-oss quantizes only its experts
            return Rules(PLAIN, (ignore, (EXPERTS, bits)))
        if self.kind == "compressed-tensors":
            listed = _groups(found)
            named = [(targets, each) for targets, each in listed if "Linear" not in targets]
            rest = next((each for targets, each in listed if "Linear" in targets), PLAIN if named else None)
            return Rules(rest, (ignore, *((names(targets, found, "targets"), each) for targets, each in named)))
        layers = _layers(inner) or _layers(found)
        if self.kind == "modelopt-mixed":
            bits = PLAIN if layers else None
        return Rules(bits, (ignore, *layers))


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """Bits of each module.

    Attributes:
        rest: bits of modules outside ``groups``; None if unknown.
        groups: modules with other bits; the first match counts.
    """

    rest: float | None
    groups: Groups = ()

    def bits(self, name: str) -> float | None:
        """Bits per weight of the module ``name`` including scales; PLAIN for the model's dtype, None if unknown."""
        for group, bits in self.groups:
            if name in group:
                return bits
        return PLAIN if _DEFAULT_PLAIN.search(name) else self.rest


def read(top: Document, text: Document) -> Quantization:
    """The quantization of a config.json; ``text`` is its language model section."""
    found = top.below("quantization_config") or text.below("quantization_config") or top.below("compression_config")
    if found is None:
        return Quantization()
    method = found.text("quant_method").lower()
    inner = found.below("quantization") or found
    algorithm = (found.text("quant_algo") or inner.text("quant_algo")).upper()
    kind, bits = _stored(found, method, algorithm)
    return Quantization(kind, method, bits, _kv_dtype(found, inner, method), _experts_bits(top, text, found), found)


def _experts_bits(top: Document, text: Document, found: Document) -> float | None:
    """Bits of DeepSeek V4's experts: ``expert_dtype``, with 8-bit quantization for other modules."""
    named = text.text("expert_dtype") or top.text("expert_dtype")
    if named != "fp4":
        return None
    return ALGORITHM_BITS.get(found.text("moe_quant_algo").upper(), ALGORITHM_BITS["MXFP4"])


def _stored(found: Document, method: str, algorithm: str) -> tuple[str, float | None]:  # noqa: PLR0911 - one method after another
    """Kind of quantization, and bits per weight including scales."""
    if method.startswith("modelopt") or (not method and algorithm):
        both = method.upper() + algorithm
        if "MIXED" in both:
            return "modelopt-mixed", None
        bits = ALGORITHM_BITS.get(algorithm)
        return ("modelopt-nvfp4", bits or 4.5) if "FP4" in both else ("modelopt-fp8", bits or 8.0)
    if method in {"auto-round", "auto_round", "intel/auto-round"}:
        return "auto-round", _integer_bits(found)
    if "gptq" in method or "awq" in method:
        return ("awq" if "awq" in method else "gptq"), _integer_bits(found)
    if method == "compressed-tensors":
        groups = _groups(found)
        return "compressed-tensors", groups[0][1] if groups else None
    if "mxfp4" in method:
        return "mxfp4", 4.25
    return ("fp8", 8.0) if "fp8" in method else ("other", None)


def _integer_bits(found: Document) -> float:
    """Bits of a packed integer with its share of the group's 16-bit scale and zero point."""
    bits = found.number("bits", "w_bit", default=4, least=1, most=16)
    group = found.number("group_size", "q_group_size", default=128, least=-1, most=1 << 20)
    return bits + ((16 + bits) / group if group > 0 else 0.0)


def _groups(found: Document) -> list[tuple[list[str], float | None]]:
    """The targets and bits of each group of compressed-tensors."""
    listed: list[tuple[list[str], float | None]] = []
    for group in found.members("config_groups").values():
        weights = group.below("weights")
        if weights is None:
            continue
        bits = weights.number("num_bits", default=8, least=1, most=32)
        size = weights.number("group_size", default=0, least=-1, most=1 << 20)
        scale = 8.0 if bits in {4, 8} and weights.text("type") == "float" else 16.0
        zero = 0.0 if weights.flag("symmetric", default=True) else float(bits)
        listed.append((group.words("targets") or ["Linear"], bits + ((scale + zero) / size if size > 0 else 0)))
    return listed


def _layers(found: Document) -> Groups:
    """ModelOpt's quantized_layers: the algorithm of each module."""
    by_bits: dict[float | None, list[str]] = {}
    for name, each in found.members("quantized_layers").items():
        by_bits.setdefault(ALGORITHM_BITS.get(each.text("quant_algo").upper()), []).append(name)
    return tuple((names(modules, found, "quantized_layers"), bits) for bits, modules in by_bits.items())


def _extra(found: Document) -> Groups:
    """AutoRound's extra_config: modules with other bits than the rest."""
    by_bits: dict[float, list[str]] = {}
    for name, each in found.members("extra_config").items():
        plain = each.number("bits", default=16, most=32) >= 16
        by_bits.setdefault(PLAIN if plain else _integer_bits(each), []).append(name)
    return tuple((names(modules, found, "extra_config"), bits) for bits, modules in by_bits.items())


def _kv_dtype(found: Document, inner: Document, method: str) -> str | None:
    """KV cache dtype requested by a checkpoint; only ModelOpt sets it."""
    if not method.startswith("modelopt"):
        return None
    for part in (inner, found):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            value = part.values.get(key)
            if isinstance(value, Mapping):
                bits = value.get("num_bits")
                named = "fp8" if bits == 8 else "nvfp4" if bits == 4 else None
                return named if value.get("type") == "float" else None
            if isinstance(value, str) and re.fullmatch(r"(?i)fp8|fp8_e4m3|nvfp4", value):
                return value.lower()
    return None


def _ancestors(name: str) -> Iterable[str]:
    """``a.b.c``, ``a.b`` and ``a``."""
    while name:
        yield name
        name = name.rpartition(".")[0]
