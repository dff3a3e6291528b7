"""The man page sparkcluster(1), generated from the same parsers as ``docs/commands.md``."""

from __future__ import annotations

import argparse
import re

from docgen.reference import shown
from sparkcluster import exit_codes
from sparkcluster.cli.commands import COMMANDS
from sparkcluster.cli.parser import parser_of

_ABOUT = """\
Queries each NVIDIA DGX Spark of an inventory, reports what is wrong before anything starts, copies image and weights to
every node, starts vLLM, SGLang, TensorRT-LLM or llama.cpp, and reports success only after the model has answered.

INVENTORY is the path of a YAML file, which discover writes. Every command but lab run takes --json: one document on
stdout and nothing else there. Progress and messages go to stderr."""
_ENVIRONMENT = {
    "NO_COLOR": "no colours",
    "SPARKCLUSTER_CACHE": "directory of downloads on this machine (default: ~/.cache/sparkcluster)",
    "SPARKCLUSTER_INVENTORY": "default inventory; without it ./sparkcluster.yaml",
}
_EXAMPLES = {
    "discover -o mine.yaml": "find the Sparks and write their inventory",
    "setup mine.yaml": "set up every node",
    "up mine.yaml": "start a cluster and verify that the model answers",
    'ask mine.yaml "Why is the sky blue?"': "send a prompt",
    "logs mine.yaml -f": "follow the logs of every node",
}
_ALSO = "The pages in docs/ of the project: two-sparks.md, inventory.md, playbook.md, checks.md"


def page() -> str:
    """The page in man(7) macros; without a date or version, so that it changes only with the reference."""
    parts = [
        '.TH SPARKCLUSTER 1 "" sparkcluster\n',
        ".SH NAME\nsparkcluster \\- serve models from NVIDIA DGX Sparks\n",
        ".SH SYNOPSIS\n.B sparkcluster\n.I COMMAND\n[\\fIINVENTORY\\fR] [\\fB\\-\\-json\\fR] ...\n",
        ".SH DESCRIPTION\n" + ".PP\n".join(f"{_text(paragraph)}\n" for paragraph in _ABOUT.split("\n\n")),
        ".SH COMMANDS\n",
    ]
    for name, about in COMMANDS.items():
        parser, _ = parser_of(name)
        parts.append(f".SS {name}\n{_text(about[0].upper() + about[1:])}.\n")
        parts += _arguments(parser)
    parts.append(".SH EXIT STATUS\n")
    parts += [_tagged(str(code), meaning) for code, meaning in exit_codes.MEANINGS.items()]
    parts.append(".SH ENVIRONMENT\n")
    parts += [_tagged(name, about) for name, about in _ENVIRONMENT.items()]
    parts.append(".SH EXAMPLES\n")
    parts += [_tagged(f"sparkcluster {words}", about) for words, about in _EXAMPLES.items()]
    parts.append(f".SH SEE ALSO\n{_text(_ALSO)}\n")
    return "".join(parts)


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    """Arguments of a command, then the arguments of its subcommands."""
    parts = []
    for action in parser._actions:  # noqa: SLF001 - there is no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            for choice in action._get_subactions():  # noqa: SLF001 - likewise
                parts.append(f".PP\n.B {_text(f'{parser.prog} {choice.dest}')}\n\\- {_text(choice.help or '')}\n")
                parts += _arguments(action.choices[choice.dest])
        elif action.dest != "help":
            parts.append(_tagged(shown(action), action.help or ""))
    return parts


def _tagged(tag: str, text: str) -> str:
    return f".TP\n.B {_text(tag)}\n" + (f"{_text(text)}\n" if text else "")


def _text(text: str) -> str:
    """One line of text: no macro, no escape, and minus signs that can be pasted."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return re.sub(r"^(?=[.'])", r"\\&", line)
