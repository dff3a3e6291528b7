"""``sparkcluster completion``."""

from __future__ import annotations

import argparse
import sys

from sparkcluster.cli.common import common_flags, emitted, option
from sparkcluster.cli.output import write
from sparkcluster.printable import LINES

SHELLS = ("bash", "zsh", "fish")

_HOW = """\
Print a shell completion script: it completes commands, flags, inventories, and
the names of nodes, groups, playbooks and checks. To load it in every new shell:

bash  echo 'source <(sparkcluster completion bash)' >> ~/.bashrc
zsh   echo 'source <(sparkcluster completion zsh)' >> ~/.zshrc
      (below the line with compinit)
fish  sparkcluster completion fish \\
      > ~/.config/fish/completions/sparkcluster.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``completion``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _HOW
    option(parser, "shell SHELL", f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}", choices=SHELLS)
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Print the script of one shell."""
    from argcomplete.shell_integration import shellcode

    script = shellcode(["sparkcluster"], shell=args.shell)
    if args.shell == "bash":
        script = script.removeprefix("#compdef sparkcluster\n")  # argcomplete writes one text for bash and zsh
    if not emitted(args, {"shell": args.shell, "script": script}):
        write(sys.stdout, script, end="", keep=LINES)
    return 0
