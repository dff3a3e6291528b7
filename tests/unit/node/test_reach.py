"""The parts of the program by which nodes reach each other, and what all programs between nodes may be written in."""

from __future__ import annotations

import ast
from pathlib import Path

from sparkcluster.hosts.program import source
from sparkcluster.node import reach


def test_all_programs_are_written_in_what_an_old_python_understands():
    for path in Path(reach.__file__).parent.glob("*.py"):
        ast.parse(source(path.stem), feature_version=(3, 10))
