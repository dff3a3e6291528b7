"""Rules on the engine's command line: flags that vLLM has not, or had, and values of the wrong kind."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.engines.vllm import flags
from sparkcluster.engines.vllm.rules.served import Served, arguments, served
from sparkcluster.engines.vllm.versions import dotted
from sparkcluster.facts.engine import engine_of
from sparkcluster.findings import Severity
from sparkcluster.spec import KeyPath

SOURCE = "vLLM's own parser (make_arg_parser) in the releases 0.15.1 to 0.32.0"
REMEDY = "write the argument as vLLM has it, or take another image"


@check("SPEC-003", "Engine arguments are vLLM's", stage="written", severity="error", source=SOURCE, remedy=REMEDY)
def unknown(context: Context) -> Iterator[Seen]:
    """An argument that vLLM does not know ends the engine as it starts: `unrecognized arguments`.

    Held against a table of the releases that sparkcluster knows; an image built by others may have more of its own,
    so there it is a warning. Once a node has the image, what that one takes counts and not the table.
    """
    about = served(context)
    for name, at in _named(about):
        asked = _asked(context, name)
        # An image that was asked and does not know it is IMG-007, which looks at args.
        told = asked is False and at[0] == "args" and about.playbook.command is None
        if flags.find(name) is not None or asked is True or told:
            continue
        near = flags.near(name)
        gone = flags.GONE.get(name)
        remedy = gone or (f"write {near}" if near else "take it out, or look it up in docs.vllm.ai, CLI Reference")
        summary = f"vLLM has no argument {name}" if gone is None else f"vLLM has no argument {name} any more"
        yield about.say("warning" if about.family == "other" else "error", at, summary, remedy)


@check(
    "SPEC-004", "The image's vLLM has the argument", stage="written", severity="warning", source=SOURCE, remedy=REMEDY
)
def not_yet(context: Context) -> Iterator[Seen]:
    """An argument that came later, or went, ends the engine as it starts: `unrecognized arguments`.

    A tag tells its vLLM by a table, so this is a warning until a node has the image and says so itself.
    """
    about = served(context)
    for name, at in _named(about):
        flag = flags.find(name)
        if flag is None or _asked(context, name) is not None or flags.has(flag, about.versions) is not False:
            continue
        since = f"came with {dotted(flag.first)}" if flag.first else f"went after {dotted(flag.last or ())}"
        remedy = flags.GONE.get(name, "take it out, or take another image")
        yield about.say("warning", at, f"{name} is no argument of this image: it {since}", remedy)


@check(
    "SPEC-005",
    "Engine arguments have values of their kind",
    stage="written",
    severity="error",
    source=SOURCE,
    remedy=REMEDY,
)
def value(context: Context) -> Iterator[Seen]:
    """A value of the wrong kind ends the engine as it starts: `invalid value`, or `expected one argument`."""
    about = served(context)
    for name, written in about.playbook.args.items():
        flag = flags.find(name)
        if flag is None:
            continue
        at: KeyPath = ("args", name)
        problem = flags.wrong(flag, name, written)
        if problem:
            yield about.say("error", at, f"{name} {problem}", f"vllm serve --help={flag.name}")
            continue
        meant = flags.odd(flag, written)
        if meant:
            # The newest release has the most choices, so an older image may at best have lost one.
            sure = about.since(*flags.releases()[-1]) and about.family != "other"
            severity: Severity = "error" if sure else "warning"
            yield about.say(severity, at, f"{name} is none of what vLLM takes", f"write one of: {meant}")


def _named(about: Served) -> Iterator[tuple[str, KeyPath]]:
    """Every argument by name, of `args` or of a command that serves with vLLM."""
    for written in about.playbook.args:
        yield written.replace("_", "-"), ("args", written)
    for index, word in enumerate(about.playbook.command or ()):
        words = _words(word)
        if "serve" in words:
            for name in arguments(words[words.index("serve") :]):
                yield name, ("command", index)
    command = about.playbook.command or []
    if command[:2] == ["vllm", "serve"]:
        for name in arguments(command):
            yield name, ("command",)


def _words(text: str) -> list[str]:
    if " " not in text:
        return []
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _asked(context: Context, name: str) -> bool | None:
    """Whether an image that a node holds takes the argument; None where none was asked."""
    bare = name.partition(".")[0]
    for facts in context.facts.values():
        engine = engine_of(facts)
        if engine is not None and engine.flags:
            known = {flag.lstrip("-") for flag in engine.flags}
            return bare in known or bare.removeprefix("no-") in known
    return None
