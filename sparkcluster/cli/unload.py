"""``sparkcluster unload``."""

from __future__ import annotations

from functools import partial

from sparkcluster.cli import load

add_arguments = load.add_arguments
run = partial(load.run, what="unload")
