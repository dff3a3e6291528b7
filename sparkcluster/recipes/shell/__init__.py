"""Shell text as the commands that a shell would run, without running any.

``evaluate`` walks the syntax tree of tree-sitter-bash: branches whose condition the text decides are followed,
functions are called, loops over literal words are unrolled, variables, arrays and defaults are put in. What a shell
would have to run something for, as ``$(…)``, stays unknown and is marked in the words (``marks``).
"""

from __future__ import annotations

from sparkcluster.recipes.shell.marks import (
    CLOSE,
    MARKS,
    OPEN,
    assignment,
    bare_name,
    is_placeholder,
    mark,
    names_home,
    plain,
    shown,
    unknown,
    with_brackets,
)
from sparkcluster.recipes.shell.reader import parse
from sparkcluster.recipes.shell.redirects import left_out
from sparkcluster.recipes.shell.script import Assumed, Call, Script
from sparkcluster.recipes.shell.scripts import SHELLS, invocation
from sparkcluster.recipes.shell.syntax import text_of, written
from sparkcluster.recipes.shell.wrappers import Unwrapped, unwrapped

__all__ = [
    "CLOSE",
    "MARKS",
    "OPEN",
    "SHELLS",
    "Assumed",
    "Call",
    "Script",
    "Unwrapped",
    "assignment",
    "bare_name",
    "invocation",
    "is_placeholder",
    "left_out",
    "mark",
    "names_home",
    "parse",
    "plain",
    "shown",
    "text_of",
    "unknown",
    "unwrapped",
    "with_brackets",
    "written",
]
