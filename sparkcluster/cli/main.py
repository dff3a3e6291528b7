"""``sparkcluster``: imports the module of one command, runs it, and turns every outcome into an exit code.

A command is a module of this package with ``add_arguments(parser)`` and ``run(args) -> int``. This module imports
nothing that ``--help`` does not need; ``tests/unit/cli/test_imports.py`` counts.
"""

from __future__ import annotations

import os
import sys

from sparkcluster import exit_codes
from sparkcluster.cli.commands import COMMANDS, GROUPS

TYPE_CHECKING = False  # typing takes as long to import as all of this; mypy knows the name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from sparkcluster.errors import SparkclusterError

_USAGE = """\
usage: sparkcluster COMMAND [INVENTORY] [--json] …
{}
INVENTORY is the path of a YAML file; inventory/ in the project has examples.
Without it: the file that SPARKCLUSTER_INVENTORY names, or ./sparkcluster.yaml.
Flags of a command: sparkcluster COMMAND --help. Also: --version, --help.
"""


def main(argv: Sequence[str]) -> int:
    """Run one command, given as the command line without the name of the program; returns the exit code.

    Raises:
        SparkclusterError: as the command does; UsageError for an invalid command line.
    """
    first, *words = argv or [""]
    if first == "help" and words:
        first, *words = words[0], "--help"
    if first in COMMANDS:
        return _run(first, words)
    if first in {"-V", "--version", "version"}:
        from sparkcluster import __version__

        sys.stdout.write(f"sparkcluster {__version__}\n")
    elif first in {"-h", "--help", "help"}:
        sys.stdout.write(usage())
    elif not first:
        sys.stderr.write(usage())
        return exit_codes.USAGE
    else:
        raise _no_command([first, *words])
    return exit_codes.DONE


def _run(name: str, words: Sequence[str]) -> int:
    from sparkcluster.cli.parser import parser_of

    parser, command = parser_of(name)
    args = parser.read(words)
    try:
        return int(command.run(args))
    except Exception as error:
        if getattr(args, "inventory", None) is not None and hasattr(error, "typed"):
            from sparkcluster.cli.common import typed

            error.typed = typed(args)
        raise


def usage() -> str:
    """The text of ``--help``, within 80 columns."""
    lines: list[str] = []
    for heading, commands in GROUPS.items():
        lines += ["", heading, *(f"  {name:<11} {about}" for name, about in commands.items())]
    return _USAGE.format("\n".join([*lines, ""]))


def console() -> NoReturn:
    """Entry point of the program."""
    import gc

    # A run creates few cycles, but its imports so many objects that collecting costs a tenth of the start.
    gc.set_threshold(50_000, 20, 20)
    # pydantic would read the metadata of every installed package, for plugins that are not used here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "_ARGCOMPLETE" in os.environ:  # a shell asks, at Tab
        from sparkcluster.cli.complete import answer

        answer()
    from sparkcluster.cli import streams

    streams.install()
    code = guarded(sys.argv[1:])
    # The interpreter's last collection, over all that was imported, would cost a fifth of a short run.
    gc.freeze()
    sys.exit(code)


def guarded(argv: Sequence[str]) -> int:
    """Run one command; report whatever it raises and return the exit code."""
    from sparkcluster.cli import interrupt

    try:
        interrupt.install()
        interrupt.forget()
        code = _guarded(argv)
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED
    # An interrupt inside of exec(), as in each dataclass, would end ``python -m`` by the signal; this forgets it.
    exec("")  # noqa: S102
    return exit_codes.INTERRUPTED if interrupt.forget() else code


def _guarded(argv: Sequence[str]) -> int:
    try:
        return _flushed(argv)
    except KeyboardInterrupt:
        from sparkcluster.errors import Interrupted

        return _fail(Interrupted("interrupted"), argv)
    except Exception as error:  # noqa: BLE001 - the last resort: no user sees a traceback
        from sparkcluster.errors import SparkclusterError

        return _fail(error, argv) if isinstance(error, SparkclusterError) else _internal(error, argv)


def _flushed(argv: Sequence[str]) -> int:
    """``main``; also what it wrote last has reached its destination, or that is its error."""
    try:
        code = main(argv)
    except SystemExit:  # --help of a command, or the reader of the pipe is gone
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _no_command(words: Sequence[str]) -> SparkclusterError:
    from sparkcluster.cli.verbs import instead_of
    from sparkcluster.errors import UsageError

    word = words[0]
    shown = word if word.isprintable() and len(word) < 60 else ascii(word)[:60]
    if word.startswith("-"):
        return UsageError(f"unknown flag before the command: {shown}", hint="flags come after the command")
    return UsageError(f"unknown command: {shown}", hint=instead_of(words) or "sparkcluster --help lists the commands")


def _fail(error: SparkclusterError, argv: Sequence[str]) -> int:
    from sparkcluster.cli.output import emit_json, show_error
    from sparkcluster.errors import OutputError

    words = argv[: list(argv).index("--")] if "--" in argv else argv
    lines = "--json-lines" in words
    as_json = (lines or "--json" in words) and not isinstance(error, OutputError)
    try:
        if as_json:
            emit_json(error.as_json(), line=lines)
        sys.stdout.flush()
    except OutputError:
        as_json = False
    if not as_json:
        show_error(error)
    return error.exit_code


def _internal(error: BaseException, argv: Sequence[str]) -> int:
    """Report a bug of sparkcluster: one line, and the traceback in a file that only the user may read."""
    import tempfile
    import traceback

    from sparkcluster.errors import SparkclusterError

    report = "".join(traceback.format_exception(error))
    if os.environ.get("SPARKCLUSTER_DEBUG"):
        from sparkcluster.cli.output import write
        from sparkcluster.printable import LINES

        write(sys.stderr, report, end="", keep=LINES)
    try:
        descriptor, path = tempfile.mkstemp(prefix="sparkcluster-", suffix=".traceback")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report)
        hint = f"please report it and attach {path}"
    except OSError:
        hint = "set SPARKCLUSTER_DEBUG=1 to see the traceback"
    first = (str(error).splitlines() or [""])[0][:200]
    return _fail(SparkclusterError(f"internal error: {type(error).__name__}: {first}".rstrip(": "), hint=hint), argv)
