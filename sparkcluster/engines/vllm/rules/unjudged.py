"""What could not be judged: rules that are about families of models, where the family is not known."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import CATALOGUE, Context, Seen, check
from sparkcluster.engines.vllm.rules.served import RULES, Rule, Served


@check(
    "SPEC-009",
    "The model's family is known to the rules",
    stage="written",
    severity="warning",
    source="sparkcluster/engines/vllm/family_flags.tsv",
    remedy="write model.architecture: the class that config.json names",
)
def family(context: Context) -> Iterator[Seen]:
    """Rules about a model's parsers, kernels and drafts are not judged without its family: no finding means nothing.

    A directory says by its name what it has, by `architecture` in the playbook, or by its config.json once a node was
    asked. A repository whose name is of no family that has rules is info.
    """
    about = Served(context)
    if about.model is not None or not about.spark:
        return
    codes = sorted(code for code, body in RULES.items() if _asks(body, context))
    if not codes:
        return
    local = context.spec.playbook.model.path is not None
    summary = f"{len(codes)} rules about families of models were not judged: {about.playbook.model.label} is of none"
    if local:
        summary = f"{len(codes)} rules were not judged: the family of {about.playbook.model.label} is unknown"
    remedy = CATALOGUE["SPEC-009"].remedy
    at = ("model", "path" if local else "id")
    yield about.say(at, summary, remedy, f"they are {', '.join(codes)}", severity=None if local else "info")


def _asks(body: Rule, context: Context) -> bool:
    """Whether a rule asks for the family before it has an answer."""
    about = Served(context)
    list(body(about))
    return about.asked_family
