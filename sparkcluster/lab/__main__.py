"""``python -m sparkcluster.lab``: the lab's commands without the rest of the program's."""

from __future__ import annotations

import sys

from sparkcluster.cli.main import guarded

if __name__ == "__main__":
    sys.exit(guarded(["lab", *sys.argv[1:]]))
