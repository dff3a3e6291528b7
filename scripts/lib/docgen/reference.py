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
"""A command line and its output, for each command; ``tests/examples.py`` records them."""

_USAGE = """\
usage: sparkcluster COMMAND [INVENTORY] [--json] …
{}
INVENTORY is the path of a YAML file; inventory/ in the project has examples.
Without it: the file that SPARKCLUSTER_INVENTORY names, or ./sparkcluster.yaml.
Flags of a command: sparkcluster COMMAND --help. Also: --version, --help.
"""

_COMMANDS = """# Commands

{contents}
## Every command

| argument | meaning |
|---|---|
{common}
- **INVENTORY** is optional. A message on stderr names the file that is used. If a command takes more arguments, the
  first one is the inventory if it names a file, ends in `.yaml` or `.yml`, or has a slash and no blanks.
- **Output**: data goes to stdout, progress and messages go to stderr. `NO_COLOR` is honoured. [json.md](json.md)
  documents the JSON.
- **Hidden characters**: control and format characters of nodes, logs, models and files are shown as `�`, also in a
  pipe. JSON escapes them.
- **Pipes**: a closed pipe (`| head -1`) discards the rest of the output and does not change the exit code. A full disk
  is an error.
- **Examples** were recorded on two virtual Sparks ([lab.md](lab.md)) with an engine that imitates vLLM, and without
  systemd. Their times and speeds are not a Spark's. `ask` is from `./scripts/demo`.

| exit code | meaning |
|---|---|
{codes}
| command | exit code |
|---|---|
| several models | the code that they have in common, else 1 |
| `status` | 0 only if every group answers, or is on demand: use it for probes, after consent on that machine |
| `preflight`, `doctor`, `plan` | 1 if there is an error |
| `lint` | 2 for malformed input, 1 for an error |
| `fit` | 1 if the model does not fit |
| `discover` | 1 if no Spark was found, or one was not reached |
| `logs`, `releases`, `models` | 1 if a node could not be read |
| `connect` | also 0 if the cluster does not answer |
"""


_CHECKS = """# Checks

What `up`, `preflight`, `doctor` and `lint` check. An error stops `up`; a warning does not, nor does info. A code never
changes its meaning. A playbook accepts a finding with `allow: [{code, reason}]`. An inventory turns an error into a
warning with `ignore: [code]`. Findings that protect against hostile playbooks can be accepted only in the inventory.
`sparkcluster checks CODE` shows one of these sections. Findings fill in the words in capitals of a remedy.

| stage | what is checked, and by which command |
|---|---|
"""


def commands() -> str:
    """The page of commands; argparse's layout differs between Python versions, so it is not used."""
    contents = "".join(
        f"- {heading}: {', '.join(f'[{name}](#{name})' for name in about)}\n" for heading, about in GROUPS.items()
    )
    common = "".join(_row(one) for one in _common())
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in exit_codes.MEANINGS.items())
    parts = [_COMMANDS.format(contents=contents, common=common, codes=codes)]
    for name, help_line in COMMANDS.items():
        parser, _ = parser_of(name)
        parts.append(f"\n## {name}\n\n{help_line[0].upper() + help_line[1:]}.\n")
        example = EXAMPLES / f"{name}.txt"
        parts += [f"\n```\n{example.read_text()}```\n"] if example.exists() else []
        parts += section(parser)
    return "".join(parts)


def _common() -> list[argparse.Action]:
    """The arguments that almost every command has; the page lists them once."""
    return [one for one in parser_of("down")[0]._actions if one.dest in {"inventory", "json"}]  # noqa: SLF001 - likewise


def _row(action: argparse.Action) -> str:
    return f"| `{shown(action)}` | {action.help or ''} |\n"


def section(parser: argparse.ArgumentParser) -> list[str]:
    """Command line and arguments of a command and of its subcommands, without the common arguments."""
    actions = [one for one in parser._actions if one.dest != "help"]  # noqa: SLF001 - there is no public list
    nested = [one for one in actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001 - likewise
    listed = [one for one in actions if one not in nested]
    common = {_row(one) for one in _common()}
    rows = [row for row in map(_row, listed) if row not in common]
    values = [shown(one) for one in listed if not one.option_strings]
    parts = [f"\n`{' '.join([parser.prog, *values, '[flags]'])}`\n"] if listed else []
    parts += ["\n| argument | meaning |\n|---|---|\n", *rows] if rows else []
    for one in nested:
        for child in one.choices.values():
            parts += section(child)
    return parts


def shown(action: argparse.Action) -> str:
    """An argument as usage and tables show it."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        value += " …" if action.nargs in {"*", "+"} else ""
        return f"[{value}]" if action.nargs in {"?", "*"} else value
    takes = "" if action.nargs == 0 else f" {value}"
    return ", ".join(f"{flag}{takes}" for flag in action.option_strings)


def help_texts() -> str:
    """The help texts in 80 columns, each after its command name, separated by form feeds."""
    groups = (f"\n{heading}\n{_listed(about.items(), 10)}" for heading, about in GROUPS.items())
    texts = {"": _USAGE.format("".join(groups))}
    for name, about in COMMANDS.items():
        texts |= _help(parser_of(name)[0], about)
    return "\f".join(f"{name}\n{text}" for name, text in texts.items())


def _help(parser: argparse.ArgumentParser, about: str) -> dict[str, str]:
    """Help texts by name, of a command with the description ``about`` and of its subcommands."""
    actions = [one for one in parser._actions if one.dest != "help"]  # noqa: SLF001 - there is no public list
    own = [one for one in actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001 - likewise
    values = [one for one in actions if not one.option_strings and one not in own]
    flags = [one for one in actions if one.option_strings]
    commands = {each.dest: each.help or "" for one in own for each in one._choices_actions}  # noqa: SLF001 - likewise
    line = [parser.prog, *(["COMMAND"] if own else []), *map(shown, values), *(["[flags]"] if flags else [])]
    described = parser.description or about
    parts = [f"usage: {' '.join(line)}\n", described if "\n" in described else f"{about[0].upper()}{about[1:]}.\n"]
    parts += [_listed(commands.items(), 6)] if own else []
    rows = [(shown(one).strip("[] …"), one.help or "") for one in (*values, *flags)]
    parts += [_listed(rows, max(len(name) for name, _ in rows if len(name) <= 20))] if rows else []
    children = [_help(one.choices[name], text) for one in own for name, text in commands.items()]
    return dict(ChainMap({parser.prog.removeprefix("sparkcluster "): "\n".join(parts)}, *children))


def _listed(rows: Iterable[tuple[str, str]], size: int) -> str:
    """A table of names and descriptions."""
    lines: list[str] = []
    for name, about in rows:
        first, *more = textwrap.wrap(about, 76 - size) or [""]
        lines += [f"  {name:<{size}}  {first}"] if len(name) <= size else [f"  {name}", f"  {'':<{size}}  {first}"]
        lines += [f"  {'':<{size}}  {line}" for line in more]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def words() -> str:
    """Completion words, generated to avoid imports: kind, name and description, one per line."""
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
    """The page of checks: a table of all, then the reason, remedy and source of each."""
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
        needs = f" · reads {', '.join(f'`{one}`' for one in page.needs)}" if page.needs else ""
        remedy = page.remedy or "the finding shows the commands for each node"
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
