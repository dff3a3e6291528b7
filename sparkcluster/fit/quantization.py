"""How a checkpoint's weights are stored, read from config.json: which modules are quantized, and to how many bits.

A quantization_config lists modules in one of a few ways: by whole names, by prefixes, by parts of names, by
shell patterns and by regular expressions (``re:``). ``Names`` understands all of them. What is not understood is
unknown: a weight of unknown size is never taken for one of 16 bits.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping

from sparkcluster.fit.read import Document

PLAIN = 0.0
"""In the place of bits: the module is stored in the model's own dtype."""

# Bits of a weight with its scales, by ModelOpt's names (modelopt/torch/export/model_config.py): NVFP4 has a byte for
# each 16 weights, MXFP4 and MXFP8 for each 32, the integer formats two bytes for each 128.
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
# Neither quantizer touches these unless it names them: tables, routers, and what makes a token's width its own.
_DEFAULT_PLAIN = re.compile(
    r"(^|\.)(embed_tokens|lm_head|gate|router|shared_expert_gate|eh_proj|fc|weights_proj)$|^visual(\.|$)|\.compressor\."
)
_LONGEST, _STARS = 200, 4
# A quantifier after a group, or a reference, can make one match take hours.
_COSTLY = re.compile(r"[)\]][*+{]|\\\d|\(\?|\{")


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """Modules as a quantization_config lists them."""

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
"""Modules, and the bits of a weight of them with its scales; None where they are not known."""


def names(entries: Iterable[str], document: Document, key: str) -> Names:
    """The modules that ``entries`` list.

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
                raise document.refused(key, f"lists a pattern that is not supported: {entry[:40]}")
            try:
                patterns.append(re.compile(text if expression else fnmatch.translate(text)))
            except re.error:
                raise document.refused(key, f"lists a pattern that is not valid: {entry[:40]}") from None
        elif "layers." in bare:
            exact.add(bare)
        else:
            parts.append(bare)
    return Names(frozenset(exact), tuple(parts), tuple(patterns))


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """How the checkpoint's weights are stored.

    Attributes:
        kind: none, modelopt-nvfp4, modelopt-fp8, modelopt-mixed, compressed-tensors, mxfp4, fp8, gptq, awq, auto-round
            or other.
        method: quant_method as the file has it.
        bits_per_weight: of a quantized weight with its scales, None where the file does not tell one for all.
        kv_dtype: dtype that the checkpoint asks the KV cache to have; None for none.
        experts_bits: of a weight of an expert where config.json names that beside quantization_config; None for none.
        found: quantization_config; None for none.
    """

    kind: str = "none"
    method: str = ""
    bits_per_weight: float | None = None
    kv_dtype: str | None = None
    experts_bits: float | None = None
    found: Document | None = dataclasses.field(default=None, repr=False, compare=False)

    def rules(self) -> Rules:
        """What is stored how.

        Raises:
            UsageError: lists of modules that are not valid.
        """
        found, bits = self.found, self.bits_per_weight
        if found is None:
            return Rules(PLAIN)
        if self.experts_bits is not None:  # what is left out of four bits has eight
            return Rules(8.0, ((EXPERTS, self.experts_bits),))
        inner = found.below("quantization") or found
        ignored: list[str] = []
        for document in (found, inner):
            for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"):
                ignored += document.words(key)
        if self.kind in {"auto-round", "gptq", "awq"}:  # these quantize the layers of the decoder alone
            return Rules(bits, ((names([*ignored, "mtp"], found, "ignore"), PLAIN), *_extra(found)))
        ignore = (names(ignored, found, "ignore"), PLAIN)
        if self.kind == "mxfp4":  # gpt-oss quantizes its experts alone
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
        rest: of what nothing else names; None where that is not known.
        groups: modules that have others, the first that names one counts.
    """

    rest: float | None
    groups: Groups = ()

    def bits(self, name: str) -> float | None:
        """Bits of a weight of the module ``name``, with its scales; PLAIN as the model's dtype, None if unknown."""
        for group, bits in self.groups:
            if name in group:
                return bits
        return PLAIN if _DEFAULT_PLAIN.search(name) else self.rest


def read(top: Document, text: Document) -> Quantization:
    """The quantization of a config.json, ``text`` being its part about the language model."""
    found = top.below("quantization_config") or text.below("quantization_config") or top.below("compression_config")
    if found is None:
        return Quantization()
    method = found.text("quant_method").lower()
    inner = found.below("quantization") or found
    algorithm = (found.text("quant_algo") or inner.text("quant_algo")).upper()
    kind, bits = _stored(found, method, algorithm)
    return Quantization(kind, method, bits, _kv_dtype(found, inner, method), _experts_bits(top, text, found), found)


def _experts_bits(top: Document, text: Document, found: Document) -> float | None:
    """Bits of the experts of DeepSeek V4: ``expert_dtype`` beside a quantization of eight bits for all else."""
    named = text.text("expert_dtype") or top.text("expert_dtype")
    if named != "fp4":
        return None
    return ALGORITHM_BITS.get(found.text("moe_quant_algo").upper(), ALGORITHM_BITS["MXFP4"])


def _stored(found: Document, method: str, algorithm: str) -> tuple[str, float | None]:  # noqa: PLR0911 - one method after another
    """Kind of a quantized checkpoint, and bits of a weight with its scales."""
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
    """Bits of a packed integer with its share of a group's scale of 16 bits and zero point."""
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
    """AutoRound's extra_config: modules that have other bits than the rest."""
    by_bits: dict[float, list[str]] = {}
    for name, each in found.members("extra_config").items():
        plain = each.number("bits", default=16, most=32) >= 16
        by_bits.setdefault(PLAIN if plain else _integer_bits(each), []).append(name)
    return tuple((names(modules, found, "extra_config"), bits) for bits, modules in by_bits.items())


def _kv_dtype(found: Document, inner: Document, method: str) -> str | None:
    """The KV cache dtype that a checkpoint asks for; only those of ModelOpt do."""
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
