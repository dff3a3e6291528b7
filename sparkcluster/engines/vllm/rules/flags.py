"""Rules on unknown engine arguments, invalid values, and models of an unknown family."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster import engines
from sparkcluster.checks.check import CATALOGUE, Context, Seen, check
from sparkcluster.engines.vllm import flags
from sparkcluster.engines.vllm.rules.served import RULES, Rule, Served
from sparkcluster.engines.vllm.versions import dotted
from sparkcluster.facts.engine import engine_of
from sparkcluster.findings import Severity
from sparkcluster.spec import KeyPath

SOURCE = "vLLM's own parser (make_arg_parser) in the releases 0.15.1 to 0.32.0"
REMEDY = "write an argument of vLLM, or use another image"


@check("SPEC-003", "Engine arguments are vLLM's", stage="written", severity="error", source=SOURCE, remedy=REMEDY)
def unknown(context: Context) -> Iterator[Seen]:
    """With an argument that vLLM does not have the engine fails at startup: `unrecognized arguments`.

    Checked against a table of releases. Other publishers' images may have more arguments: there it is a warning, and
    info for arguments of known forks and mods. Once a node has the image, its own arguments replace the table.
    """
    about = Served(context)
    image = about.image.partition("@")[0]
    for name, at in about.paths.items():
        has = _has(context, name)
        # IMG-007 reports arguments that an inspected image does not have.
        reported = has is False and at[0] == "args" and about.playbook.command is None
        if flags.find(name) is not None or has is True or reported:
            continue
        images, builds = flags.FORKS.get(name, (None, ""))
        if images is not None and images.fullmatch(image):
            continue
        if builds and about.family == "other":
            summary = f"{name} is an argument of {builds}"
            yield about.say(at, summary, f"remove {name}, unless the image is such a build", severity="info")
            continue
        other = engines.foreign(context.engine, name)
        near = (other and other[1]) or flags.closest_name(name)
        gone = flags.GONE.get(name)
        remedy = gone or (f"write {near}" if near else "remove it, or look it up in docs.vllm.ai, CLI Reference")
        summary = f"vLLM has no argument {name}" if gone is None else f"vLLM no longer has the argument {name}"
        yield about.say(at, summary, remedy, severity="warning" if about.family == "other" else None)


@check("SPEC-004", "The image supports the argument", stage="written", severity="warning", source=SOURCE, remedy=REMEDY)
def not_yet(context: Context) -> Iterator[Seen]:
    """With an argument that was added later, or removed, the engine fails at startup: `unrecognized arguments`.

    The version is looked up by the image's tag, so this is a warning until a node reports the version.
    """
    about = Served(context)
    for name, at in about.paths.items():
        flag = flags.find(name)
        if flag is None or _has(context, name) is not None or flags.has(flag, about.versions) is not False:
            continue
        since = f"added in {dotted(flag.first)}" if flag.first else f"removed after {dotted(flag.last or ())}"
        remedy = flags.GONE.get(name, "remove it, or use another image")
        yield about.say(at, f"{name} is not supported by this image ({since})", remedy)


@check(
    "SPEC-005",
    "Engine arguments have valid values",
    stage="written",
    severity="error",
    source=SOURCE,
    remedy="write a value of the type and range that the finding names",
)
def value(context: Context) -> Iterator[Seen]:
    """With a value of the wrong kind or out of range the engine fails at startup: `invalid value` or the like."""
    about = Served(context)
    for name, written in about.playbook.args.items():
        flag = flags.find(name)
        if flag is None:
            continue
        at: KeyPath = ("args", name)
        problem = flags.misuse(flag, name, written)
        if problem:
            yield about.say(at, f"{name} {problem}", flags.example(flag))
            continue
        meant = flags.expected_choice(flag, written)
        if meant:
            # The newest release has the most choices; an older image may have others.
            sure = about.since(*flags.releases()[-1]) and about.family != "other"
            severity: Severity = "error" if sure else "warning"
            yield about.say(at, f"{name} is not a choice of vLLM", f"write one of: {meant}", severity=severity)


def _has(context: Context, name: str) -> bool | None:
    """Whether an image on a node has the argument; None if no image was inspected."""
    bare = name.partition(".")[0]
    for facts in context.facts.values():
        engine = engine_of(facts)
        if engine is not None and engine.flags:
            names = {flag.lstrip("-") for flag in engine.flags}
            return bare in names or bare.removeprefix("no-") in names
    return None


@check(
    "SPEC-009",
    "The model's family is known to the rules",
    stage="written",
    severity="warning",
    source="sparkcluster/engines/vllm/family_flags.toml",
    remedy="write model.architecture: the class that config.json names",
)
def family(context: Context) -> Iterator[Seen]:
    """Rules about a model's parsers, kernels and drafts are skipped if its family is unknown.

    The family of a directory follows from its name, from `architecture` in the playbook, or from config.json once a
    node was queried. For a repository whose family has no rules it is info.
    """
    about = Served(context)
    if about.model is not None or not about.spark:
        return
    codes = sorted(code for code, body in RULES.items() if _asks(body, context))
    if not codes:
        return
    local = context.spec.playbook.model.path is not None
    summary = f"{len(codes)} rules skipped: {about.playbook.model.label} is not in a family that they cover"
    if local:
        summary = f"{len(codes)} rules skipped: the family of {about.playbook.model.label} is unknown"
    remedy = CATALOGUE["SPEC-009"].remedy
    at = ("model", "path" if local else "id")
    yield about.say(at, summary, remedy, f"skipped: {', '.join(codes)}", severity=None if local else "info")


def _asks(body: Rule, context: Context) -> bool:
    """Whether a rule depends on the model's family."""
    about = Served(context)
    list(body(about))
    return about.asked_family
