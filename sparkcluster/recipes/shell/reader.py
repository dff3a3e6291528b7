"""Shell text as a ``Script``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell.evaluate import Evaluator
from sparkcluster.recipes.shell.marks import is_argument
from sparkcluster.recipes.shell.script import Script, State
from sparkcluster.recipes.shell.scripts import interpreted
from sparkcluster.recipes.shell.syntax import slips, statements, tree


def parse(
    text: str, variables: Mapping[str, str] | None = None, *, environment: Mapping[str, str] | None = None,
    outer: Script | None = None, where: str = "the text", line: int = 0, arguments: Sequence[str] = (),
    options: frozenset[str] = frozenset(),
) -> Script:  # fmt: skip
    """What a script runs, or a command as guides print it, where ``variables`` and ``environment`` are set already.

    ``outer`` is the text that it is a part of, from whose ``line`` on; its ``defines`` are shared.
    ``where`` is the file.

    Raises:
        UsageError: a quote that is never closed, or words without end.
    """
    script = Script(where=where, line=line)
    if outer is not None:
        script.defines, script.asked = outer.defines, outer.asked
        script.undecided = outer.undecided
        script.budget, script.files, script.followed = outer.budget, outer.files, outer.followed
        script.copies, script.directory, script.rewritten = outer.copies, outer.directory, outer.rewritten
    numbered = sorted((int(name), value) for name, value in script.defines.items() if is_argument(name))
    given = [value for _, value in numbered]
    environment = environment or {}
    state = State(
        variables={"HOME": "~", **(variables or {}), **environment}, exported=dict.fromkeys(environment),
        arguments=[*arguments] or given,
        files=script.files, directory=script.directory, options=options | (interpreted(text) or frozenset()),
    )  # fmt: skip
    script.notes += [f"line {line or each}: a blank behind the backslash: read without it" for each in slips(text)]
    run = Evaluator(script, state, where, line)
    try:
        run.sequence(statements(tree(text, where, line)))
    except RecursionError:
        raise UsageError(f"{where}: nested deeper than it can be parsed", hint="is this the right file?") from None
    script.variables = run.state.variables
    script.arrays = {name: list(array.values()) for name, array in run.state.arrays.items() if array is not None}
    script.arrays = {name: words for name, words in script.arrays.items() if name not in run.state.uncounted}
    script.directory = run.state.directory
    script.exported = list(run.state.exported)
    script.environment, script.files = run.state.environment, run.state.files
    return script
