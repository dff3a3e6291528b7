"""The program by which nodes test each other, and the Python syntax of all node-to-node programs."""

from __future__ import annotations

import ast
from pathlib import Path

from sparkcluster.hosts.program import source
from sparkcluster.node import reach


def test_all_programs_parse_with_an_old_python():
    for path in Path(reach.__file__).parent.glob("*.py"):
        ast.parse(source(path.stem), feature_version=(3, 10))
