"""Inference engines: one directory each, with everything that is specific to the engine.

``engine: NAME`` in a playbook selects the directory ``engines/NAME``, by default ``vllm``; dots and dashes in the name
become ``_``. The rest of the project calls ``engines.engine(NAME)``, which imports the directory on first use, and
uses the members that ``engines/base.py`` declares.

Members of ``Engine`` by the package that uses them:
- ``staging/``, ``plan/``, ``checks/``: ``vocabularies``: files that the engine would download when it starts
- ``spec/``: ``weights_format``: which weights of a repository it loads; ``arguments``, ``short_arguments`` and
  ``variables``: reserved, a playbook may not set them; ``tuning_arguments``, ``tuning_variables`` and ``images``:
  accepted without a prompt; ``per_node`` variables; ``caches``; ``alone``
- ``checks/``: ``known_arguments``, ``common_arguments``, ``judges_arguments``: to detect another engine's arguments
- ``plan/``, ``staging/``: ``repositories``: companion repositories of the model
- ``plan/``: ``serve``: the command of a rank; ``environment``; ``planned``: arguments computed from facts;
  ``executors``, ``alone``; ``api_key``
- ``endpoint/``: ``api_flags``: flags for the API's address; ``api_key``
- ``inspect/`` (connect), ``release/``: ``api_features``: what clients can rely on
- ``cli/fit``, ``inspect/``, ``importer/``: ``forecast``: memory that a playbook needs; ``beside_others``: the playbook
  for a node with several models; ``baseline``: a playbook to start from; ``importer``: reads commands and recipes
- ``checks/``, ``inspect/``: ``checks``: modules with the engine's checks; ``reports``: public reports of findings;
  ``memory_share``; ``ready``, ``dead``, ``stalled``: log lines; ``counters``: metrics
- ``spec/``, ``plan/``: ``kind``: chat, embeddings or rerank
- ``bench/``: ``tokenize_field``: whether, and how, its API counts tokens
- ``node/``: the directory's ``node.py``, sent to the nodes as ``sparkcluster.node.engine``: reads an image, writes
  Ray's carry-over list and files for the engine

Code outside an engine's directory does not import from it, and does not branch on the engine's name. An engine that
sets only ``name``, ``title`` and ``serve`` runs on one node; ``tests/lab/test_second_engine.py`` takes such an engine
through plan, up, status, ask, doctor and down, and ``tests/lab/test_llama_cpp.py`` a real one.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkcluster.engines.base import Engine

DEFAULT = "vllm"


def names() -> list[str]:
    """Names of all engines, the default one first."""
    directories = (file.parent.name for place in __path__ for file in Path(place).glob("*/__init__.py"))
    return sorted(map(named, directories), key=lambda name: (name != DEFAULT, name))


@functools.cache
def named(directory: str) -> str:
    """The name of the engine in ``directory``, read from its source: an import would slow every command."""
    files = (Path(place) / directory / "__init__.py" for place in __path__)
    text = next(file.read_text(encoding="utf-8") for file in files if file.is_file())
    (name,) = re.findall(r'^    name = "(.+)"$', text, re.MULTILINE)
    return str(name)


@functools.cache
def engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        KeyError: no directory has that name.
    """
    if name not in names():
        raise KeyError(name)
    found: Engine = importlib.import_module(f"{__name__}.{re.sub('[.-]', '_', name)}").ENGINE
    return found


def foreign(own: Engine, name: str) -> tuple[Engine, str | None] | None:
    """The engine that has the argument ``name``, and what to do instead with ``own``.

    None if ``own`` has it, or no engine; the text is None if ``own`` has no equivalent.
    """
    plain = name.partition(".")[0].replace("_", "-").lower().removeprefix("no-")
    known = own.known_arguments()
    if not known or plain in {*known, *own.arguments, *own.common_arguments.values()}:
        return None
    for other in map(engine, names()):
        if plain in {*other.known_arguments(), *other.arguments}:
            meant = [what for what, each in other.common_arguments.items() if each == plain]
            ours = (own.common_arguments.get(meant[0]) if meant else None) or other.arguments.get(plain)
            return other, own.gone_argument(plain) or (f"write {ours}" if ours else None)
    return None
