"""``sparkcluster``: imports the module of one command, runs it, and turns every outcome into an exit code.

A command is a module of this package with ``add_arguments(parser)`` and ``run(args) -> int``. This module imports only
what ``--help`` needs; ``tests/unit/cli/test_imports.py`` checks that.
"""

from __future__ import annotations

import os
import sys

from sparkcluster import exit_codes
from sparkcluster.cli.commands import COMMANDS, help_of

TYPE_CHECKING = False  # importing typing takes as long as all the rest; mypy knows this name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import NoReturn

    from sparkcluster.errors import SparkclusterError


def main(argv: Sequence[str]) -> int:
    """Run the command line ``argv``, without the program's name; returns the exit code.

    Raises:
        SparkclusterError: from the command; UsageError for an invalid command line.
    """
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv[-1:] in (["--help"], ["-h"]) and (text := help_of(" ".join(argv[:-1]))):
        sys.stdout.write(text)
    elif not argv:
        sys.stderr.write(help_of("") or "")
        return exit_codes.USAGE
    elif argv[0] in COMMANDS:
        return _run(argv[0], argv[1:])
    elif argv[0] in {"-V", "--version", "version"}:
        from sparkcluster import __version__

        sys.stdout.write(f"sparkcluster {__version__}\n")
    else:
        raise _no_command(argv)
    return exit_codes.DONE


def _run(name: str, words: Sequence[str]) -> int:
    from sparkcluster import hints
    from sparkcluster.cli.common import typed
    from sparkcluster.cli.parser import parser_of

    parser, command = parser_of(name)
    hints.command_line = hints.CommandLine()
    args = parser.read(words)
    if getattr(args, "inventory", None) is not None:
        hints.command_line = typed(args)
    if hasattr(args, "model") and _may_have_models(getattr(args, "inventory", None)):
        from sparkcluster.cli.each import run

        return run(name, command, args)
    return int(command.run(args))


def _may_have_models(inventory: Path | None) -> bool:
    """Whether the inventory may have the key ``models``, so that it must be read before the command runs."""
    import re

    try:
        text = inventory.read_bytes() if inventory is not None and inventory.is_file() else b""
    except (OSError, ValueError):  # the command reports the error
        return False
    return re.search(rb"(?m)(^|[{,])\s*[\"']?models[\"']?\s*:", text) is not None


def console() -> NoReturn:
    """Entry point of the program."""
    import gc

    # A run creates few cycles, but imports so many objects that collection costs a tenth of the start.
    gc.set_threshold(50_000, 20, 20)
    # pydantic would read the metadata of every installed package to find plugins; none are used here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "_ARGCOMPLETE" in os.environ:  # completion at Tab
        from sparkcluster.cli.complete import answer

        answer()
    from sparkcluster.cli import streams

    streams.install()
    code = guarded(sys.argv[1:])
    # A last collection by the interpreter would cost a fifth of a short run.
    gc.freeze()
    sys.exit(code)


def guarded(argv: Sequence[str]) -> int:
    """Run one command; report any error and return the exit code."""
    from sparkcluster.cli import interrupt

    try:
        interrupt.install()
        code = _guarded(argv)
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED
    # An interrupt inside exec(), as in each dataclass, would end ``python -m`` by the signal; this clears it.
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
    """``main``, with stdout flushed; a failed write is raised."""
    try:
        code = main(argv)
    except SystemExit:  # --help of a command, or a closed pipe
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _no_command(words: Sequence[str]) -> SparkclusterError:
    from sparkcluster.cli.verbs import instead_of
    from sparkcluster.errors import UsageError

    word = words[0][:60]
    if word.startswith("-"):
        return UsageError(f"unknown flag before the command: {word}", hint="flags come after the command")
    return UsageError(f"unknown command: {word}", hint=instead_of(words) or "sparkcluster --help lists the commands")


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
    """Report a bug of sparkcluster: one line, and a traceback file that only the user may read."""
    import tempfile
    import traceback

    from sparkcluster.errors import SparkclusterError

    report = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="sparkcluster-", suffix=".traceback")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report)
        hint = f"please report it and attach {path}"
    except OSError:
        hint = "free space on this machine, and run it again: its traceback could not be written"
    first = (str(error).splitlines() or [""])[0][:200]
    return _fail(SparkclusterError(f"internal error: {type(error).__name__}: {first}".rstrip(": "), hint=hint), argv)
