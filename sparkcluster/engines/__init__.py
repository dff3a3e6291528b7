"""Inference engines: one directory each, with everything that is specific to the engine.

``engine: NAME`` in a playbook chooses the directory ``engines/NAME``, by default ``vllm``; a dot in the name is ``_``
in that of the directory. The rest of the project calls ``engines.engine(NAME)``, which imports the directory when it is
first needed, and uses what ``engines/base.py`` declares:

used by: member of ``Engine``.
- ``staging/``, ``plan/``, ``checks/``: ``vocabularies``: what it would download when it starts
- ``spec/``: ``weights_format``: which weights of a repository it loads; ``arguments``, ``short_arguments`` and
  ``variables`` that a playbook may not set; ``tuning_arguments``, ``tuning_variables`` and ``images``: what is not
  asked about; ``per_node`` variables; ``caches``
- ``plan/``, ``staging/``: ``repositories``: those of the hub that it loads beside the model
- ``plan/``: ``serve``: the command of a rank; ``environment``; ``planned``: arguments computed from facts;
  ``executors``, ``alone``; ``api_key``
- ``endpoint/``: ``api_flags``: where the command line says where the API is; ``api_key``
- ``inspect/`` (connect), ``release/``: ``api_features``: what clients can rely on
- ``cli/fit``, ``inspect/``, ``importer/``: ``forecast``: memory that a playbook needs; ``beside_others``: what it is
  beside other models; ``baseline``: a playbook to start from; ``importer``: how its commands and recipes are read
- ``checks/``, ``inspect/``: ``checks``: modules with its own; ``reports``: who reported what they find;
  ``memory_share``; ``ready``, ``dead``, ``stalled``: what its log says; ``counters``: its metrics
- ``node/``: the directory's ``node.py``, sent to the nodes as ``sparkcluster.node.engine``: reading an image, Ray's
  carry-over list

Nothing outside an engine's directory imports from it, and nothing asks which engine it is. An engine that sets only
``name``, ``title`` and ``serve`` runs on one node; ``tests/lab/test_second_engine.py`` takes one through plan, up,
status, ask, doctor and down, and ``tests/lab/test_llama_cpp.py`` a real one.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkcluster.engines.base import Engine

DEFAULT = "vllm"


def names() -> list[str]:
    """Names of all engines, the default one first: those of the directories here."""
    found = (named(file.parent.name) for place in __path__ for file in Path(place).glob("*/__init__.py"))
    return sorted(found, key=lambda name: (name != DEFAULT, name))


def named(directory: str) -> str:
    """The name of the engine in ``directory``, where ``_`` stands for a dot."""
    return directory.replace("_", ".")


@functools.cache
def engine(name: str) -> Engine:
    """The engine of that name; its directory is imported by the first call.

    Raises:
        KeyError: no directory has that name.
    """
    if name not in names():
        raise KeyError(name)
    found: Engine = importlib.import_module(f"{__name__}.{name.replace('.', '_')}").ENGINE
    return found
