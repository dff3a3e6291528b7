"""The pages of docs/ that list the commands and the checks."""

from __future__ import annotations

import argparse
import textwrap
from collections import ChainMap
from collections.abc import Iterable
from pathlib import Path

from sparkcluster import exit_codes
from sparkcluster.cli.commands import COMMANDS, GROUPS
from sparkcluster.cli.parser import parser_of

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
"""A command line and what it wrote, for each command; ``tests/examples.py`` says how they are made."""

_USAGE = """\
usage: sparkcluster COMMAND [INVENTORY] [--json] …
{}
INVENTORY is the path of a YAML file; inventory/ in the project has examples.
Without it: the file that SPARKCLUSTER_INVENTORY names, or ./sparkcluster.yaml.
Flags of a command: sparkcluster COMMAND --help. Also: --version, --help.
"""

_COMMANDS = """# Commands

Every command takes `--json`: one document on stdout and nothing else there ([json.md](json.md) documents it). Progress
and messages go to stderr; `NO_COLOR` is honoured.
Control and format characters of nodes, logs, models and files are shown as `�`, in a pipe too, and escaped in JSON.
A closed pipe (`| head -1`) discards the rest of the output and leaves the exit code as it is; a full disk is an error.

`INVENTORY` may be left out: then `SPARKCLUSTER_INVENTORY` names it, or else it is `sparkcluster.yaml` in the current
directory. A message says which it was. Where a command takes more than the inventory, its first argument is the
inventory if it names a file, ends in `.yaml` or `.yml`, or has a slash and no blanks.

The examples are what the commands write; those that contact nodes ran on two virtual Sparks ([lab.md](lab.md)), which
have no systemd, with an engine that stands in for vLLM: seconds and speeds are not those of a Spark. `ask` is from
`./scripts/demo`: a model of 135 million parameters on two cores.

| exit code | meaning |
|---|---|
"""

_CHECKS = """# Checks

What `up`, `preflight`, `doctor` and `lint` check. An error stops `up`; a warning or a note does not. A code never
changes its meaning. A playbook accepts a finding with `allow: [{code, reason}]`. An inventory turns an error into a
warning with `ignore: [code]`. Findings that protect against hostile playbooks can be accepted by the inventory alone.
`sparkcluster checks CODE` shows one of these sections.

| stage | what is checked, and by which command |
|---|---|
"""


def commands() -> str:
    """The page of commands; argparse's own layout differs between Pythons, so it is not used."""
    parts = [_COMMANDS, *(f"| {code} | {meaning} |\n" for code, meaning in exit_codes.MEANINGS.items())]
    for name, help_line in COMMANDS.items():
        parser, _ = parser_of(name)
        parts.append(f"\n## {name}\n\n{help_line[0].upper() + help_line[1:]}.\n")
        example = EXAMPLES / f"{name}.txt"
        parts += [f"\n```\n{example.read_text()}```\n"] if example.exists() else []
        parts += section(parser)
    return "".join(parts)


def section(parser: argparse.ArgumentParser) -> list[str]:
    """Arguments of a command, and of its own commands, as tables."""
    actions = [one for one in parser._actions if one.dest != "help"]  # noqa: SLF001 - there is no public list
    nested = [one for one in actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001 - likewise
    rows = [f"| `{shown(one)}` | {one.help or ''} |\n" for one in actions if one not in nested]
    parts = [f"\n`{parser.prog}`\n\n| argument | meaning |\n|---|---|\n", *rows] if rows else []
    for one in nested:
        for child in one.choices.values():
            parts += section(child)
    return parts


def shown(action: argparse.Action) -> str:
    """How an argument is typed."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return f"[{value}]" if action.nargs in {"?", "*"} else value
    takes = "" if action.nargs == 0 else f" {value}"
    return ", ".join(f"{flag}{takes}" for flag in action.option_strings)


def help_texts() -> str:
    """What ``--help`` writes within 80 columns, of all and of each command behind its name; form feeds between."""
    groups = (f"\n{heading}\n{_listed(about.items(), 10)}" for heading, about in GROUPS.items())
    texts = {"": _USAGE.format("".join(groups))}
    for name, about in COMMANDS.items():
        texts |= _help(parser_of(name)[0], about)
    return "\f".join(f"{name}\n{text}" for name, text in texts.items())


def _help(parser: argparse.ArgumentParser, about: str) -> dict[str, str]:
    """The texts of a command, which is ``about`` something, and of its own commands, by name."""
    actions = [one for one in parser._actions if one.dest != "help"]  # noqa: SLF001 - there is no public list
    own = [one for one in actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001 - likewise
    values = [one for one in actions if not one.option_strings and one not in own]
    flags = [one for one in actions if one.option_strings]
    commands = {each.dest: each.help or "" for one in own for each in one._choices_actions}  # noqa: SLF001 - likewise
    line = [parser.prog, *(["COMMAND"] if own else []), *map(shown, values), *(["[flags]"] if flags else [])]
    described = parser.description or about
    parts = [f"usage: {' '.join(line)}\n", described if "\n" in described else f"{about[0].upper()}{about[1:]}.\n"]
    parts += [_listed(commands.items(), 6)] if own else []
    rows = [(shown(one).strip("[]"), one.help or "") for one in (*values, *flags)]
    parts += [_listed(rows, max(len(name) for name, _ in rows if len(name) <= 20))] if rows else []
    children = [_help(one.choices[name], text) for one in own for name, text in commands.items()]
    return dict(ChainMap({parser.prog.removeprefix("sparkcluster "): "\n".join(parts)}, *children))


def _listed(rows: Iterable[tuple[str, str]], size: int) -> str:
    """Names in a column, and what they are beside them."""
    lines: list[str] = []
    for name, about in rows:
        first, *more = textwrap.wrap(about, 76 - size) or [""]
        lines += [f"  {name:<{size}}  {first}"] if len(name) <= size else [f"  {name}", f"  {'':<{size}}  {first}"]
        lines += [f"  {'':<{size}}  {line}" for line in more]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def words() -> str:
    """Names that completion offers without importing what defines them: kind, name and description, one on a line."""
    from sparkcluster.checks.catalogue import pages
    from sparkcluster.endpoint.clients import CLIENTS
    from sparkcluster.lab.faults import FAULTS
    from sparkcluster.setup.steps import STEPS
    from sparkcluster.spec import library

    kinds = {
        "CODE": {page.code: page.title for page in pages().values()},
        "STEP": {step.name: step.title for step in STEPS},
        "KIND": {kind: fault.argument or "" for kind, fault in FAULTS.items()},
        "CLIENT": {name: client.title for name, client in CLIENTS.items()},
        "PLAYBOOK": dict.fromkeys(library.names(), ""),
    }
    return "".join(f"{kind}\t{name}\t{about}\n" for kind, names in kinds.items() for name, about in names.items())


def checks() -> str:
    """The page of checks: all of them in a table, then each with what happens, what mends it and who says so."""
    from sparkcluster.checks.catalogue import STAGES, SUBJECTS, pages
    from sparkcluster.checks.check import MERGED

    every = pages()
    parts = [_CHECKS, *(f"| {stage} | {text} |\n" for stage, text in STAGES.items())]
    parts.append("\n| code | severity | stage | passes when |\n|---|---|---|---|\n")
    parts += [
        f"| [{page.code}](#{page.code.lower()}) | {page.severity} | {page.stage} | {_cell(page.title)} |\n"
        for page in every.values()
    ]
    subject = ""
    for page in every.values():
        if page.subject != subject:
            subject = page.subject
            parts.append(f"\n## {SUBJECTS.get(subject, subject)}\n")
        needs = f" · needs {', '.join(f'`{one}`' for one in page.needs)}" if page.needs else ""
        remedy = page.remedy or "the finding says what to type on which node"
        parts.append(f"\n### {page.code}\n\n**{page.title}** · {page.severity} · {page.stage}{needs}\n\n{page.why}.\n")
        parts.append(f"\n{page.more}\n" if page.more else "")
        setup = f"`sparkcluster setup INVENTORY --only {page.step}`; or " if page.step else ""
        parts.append(f"\n- Remedy: {setup}{remedy}\n")
        parts.append(f"- Source: {page.source}\n" if page.source else "")
    parts.append("\n## Codes of earlier versions\n\n| code | reported as |\n|---|---|\n")
    parts += [f"| {old} | [{code}](#{code.lower()}) |\n" for old, code in sorted(MERGED.items())]
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
