"""Inference engines: one directory each, with what is specific to the engine.

``engine: NAME`` in a playbook selects the directory ``engines/NAME``, by default ``vllm``; dots and dashes in the name
become ``_``. The rest of the project calls ``engines.engine(NAME)``, which imports the directory on first use, and
uses the members that ``engines/base.py`` declares and describes. ``engines.names()`` reads names without an import.

Members of ``Engine`` by the package that uses them:

- ``spec/``: ``arguments``, ``short_arguments``, ``known_arguments``, ``variables``, ``per_node``, ``tuning_arguments``,
  ``tuning_variables``, ``common_arguments``, ``images``, ``caches``, ``weights_format``, ``repositories``,
  ``executors``, ``alone``, ``kind``, ``api_key``, ``title``, ``beside_others``
- ``topology/``: ``executors``, ``alone``, ``vocabularies``, ``api_key``, ``title``
- ``plan/``: ``serve``, ``environment``, ``planned``, ``drain_s``, ``executors``, ``api_key``, ``api_features``
- ``checks/``: ``checks``, ``reports``, ``judges_arguments``, ``gone_argument``, ``common_arguments``, ``executors``,
  ``forecast``, ``planned``, ``memory_share``, ``memory_hint``, ``garbage_remedy``, ``ready``, ``dead``, ``stalled``,
  ``api_key``, ``title``
- ``engines/`` itself: ``signatures``, ``culprits``, ``dead``, ``memory_hint`` (``causes.py``); ``phases``,
  ``footprint`` (``phase.py``); ``arguments``, ``known_arguments``, ``common_arguments``, ``gone_argument``
  (``foreign`` below)
- ``runtime/``: ``api_key``, ``key_separator``, ``takes_share``, ``memory_share``, ``title``
- ``endpoint/``: ``api_flags``, ``api_key``
- ``importer/``: ``importer``, ``caches``, ``variables``
- ``inspect/``: ``forecast``, ``takes_share``, ``memory_share``, ``baseline``, ``importer``, ``api_features``,
  ``api_flags``, ``counters``, ``statistics``, ``common_arguments``, ``api_key``, ``title``
- ``release/``: ``counters``, ``api_features``, ``garbage_remedy``, ``common_arguments``, ``api_key``
- ``bench/``: ``tokenize_field``, ``api_features``
- ``cli/``: ``forecast``, ``beside_others`` (``fit``), ``api_features`` (``playbooks``)

On the nodes, the directory's ``node.py`` replaces ``sparkcluster.node.engine``: it reads an image, keeps variables for
Ray's workers, and writes files for the engine.

Code outside an engine's directory does not import from it. Two regular expressions name engines, to recognize programs
that sparkcluster did not start: in ``node/ranks.py`` and ``checks/host.py``. ``fit/`` computes the memory of vLLM;
other engines use parts of it.

An engine needs ``name``, ``title`` and ``serve``. ``tests/data/engines/canned`` also sets a key, flags and counters;
``tests/lab/test_second_engine.py`` (only with ``./scripts/test --full``) takes it through plan, up, status, ask, doctor
and down. ``tests/lab/test_llama_cpp.py`` does so with a real engine.
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
