"""Model families: logged KV caches compared with the predictions of ``fit``; a table of docs/internals/fit.md."""

from __future__ import annotations

import dataclasses

from docgen import fit_weights
from sparkcluster.fit import defaults
from sparkcluster.fit.config import parse
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.family_layers import UNKNOWN
from sparkcluster.fit.kv import Layout, layout
from sparkcluster.fit.source import GIB

WITHIN = 0.005

V4_POOL = "https://github.com/vllm-project/vllm/issues/51041"
V4_GROUPS = "https://github.com/vllm-project/vllm/issues/54703"
GLM_TOKEN = "https://github.com/local-inference-lab/vllm/pull/82"


@dataclasses.dataclass(frozen=True, slots=True)
class Logged:
    """A published figure of a KV cache.

    Attributes:
        found: the prediction of ``fit``, in the same ``unit``.
    """

    what: str
    measured: int
    unit: str
    found: int
    source: str

    @property
    def error(self) -> float:
        """Relative error of ``fit``."""
        return (self.found - self.measured) / self.measured


def _flash(version: tuple[int, int, int], context: int, *, drafts: bool, twice: bool = True) -> Layout:
    engine = EngineSettings(
        context, version=version, ranks=2, kv_dtype="fp8", mtp_drafts=drafts, async_scheduling=twice
    )
    return layout(parse(fit_weights.config("deepseek-ai/DeepSeek-V4-Flash"), "DeepSeek-V4-Flash"), engine)


def _glm() -> Layout:
    engine = EngineSettings(240_000, version=defaults.NEWEST, ranks=4, kv_dtype="fp8", mtp_drafts=True)
    return layout(parse(fit_weights.config("nvidia/GLM-5.2-NVFP4"), "GLM-5.2"), engine)


def logged() -> list[Logged]:
    """Every figure in the table."""
    release = _flash((0, 26, 0), 121_344, drafts=True)
    preview = _flash((0, 26, 0), 912_128, drafts=True, twice=False)
    groups = _flash((0, 28, 1), 272_000, drafts=False)
    flash = "DeepSeek-V4-Flash"
    return [
        Logged(
            f"{flash}, vLLM 0.26, 7.71 GiB, context 121,344",
            150_992,
            "tokens",
            release.tokens(int(7.71 * GIB)),
            V4_POOL,
        ),
        Logged(
            f"{flash}, vLLM 0.26, 7.01 GiB, context 912,128, one batch in flight",
            *(1_009_661, "tokens", preview.tokens(int(7.01 * GIB)), V4_POOL),
        ),
        Logged(f"{flash}, vLLM 0.28.1, a block", 1_002_240, "bytes", groups.block_bytes, V4_GROUPS),
        Logged("GLM-5.2 with its drafts, a token", 54_728, "bytes", round(_glm().block_bytes / 64), GLM_TOKEN),
    ]


def table() -> str:
    """The figures as Markdown."""
    lines = ["| what | logged | `fit` | off by | source |", "|---|---|---|---|---|"]
    for each in logged():
        cells = (f"{each.measured:,} {each.unit}", f"{each.found:,} {each.unit}", f"{each.error:+.2%}", each.source)
        lines.append(f"| {each.what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def unknown() -> str:
    """Families whose memory is not computed, as Markdown."""
    lines = ["| `model_type` | such as | what is missing |", "|---|---|---|"]
    rows = (f"| `{name}` | {each.get('model', '')} | {each['missing']} |" for name, each in sorted(UNKNOWN.items()))
    return "\n".join([*lines, *rows])
