"""An engine's directory provides what the interface declares, under the same names."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

import pytest

from sparkcluster import engines
from sparkcluster.engines.base import Engine, Imported
from sparkcluster.importer.commands import Importer

ROOT = Path(__file__).parents[3]
IMPORTED = [
    (name, member) for name in engines.names() for member, found in vars(type(engines.engine(name))).items()
    if isinstance(found, Imported)
]  # fmt: skip


@pytest.mark.parametrize(("name", "member"), IMPORTED)
def test_an_imported_member_takes_what_the_interface_passes(name, member):
    declared, found = getattr(Engine, member), getattr(engines.engine(name), member)
    if not inspect.isfunction(declared):
        assert found
        return
    declared_parameters = list(inspect.signature(declared).parameters.values())[1:]
    keywords = {parameter.name: None for parameter in declared_parameters if parameter.kind is parameter.KEYWORD_ONLY}
    inspect.signature(found).bind(*[None] * (len(declared_parameters) - len(keywords)), **keywords)


def test_importers_have_all_that_import_needs():
    importers = [importer for name in engines.names() if (importer := engines.engine(name).importer) is not None]
    expected = {name for name in vars(Importer) if not name.startswith("_")} | set(Importer.__annotations__)
    assert importers
    assert all(hasattr(importer, name) for importer in importers for name in expected)


@pytest.mark.parametrize("path", ["sparkcluster/engines/vllm/node.py", "tests/data/engines/canned/node.py"])
def test_what_replaces_the_engine_on_nodes_has_all_of_its_names(path):
    """Where one is missing, no image can be read, which looks as if there were none."""
    own, declared = (runpy.run_path(str(ROOT / each)) for each in (path, "sparkcluster/node/engine.py"))
    assert {name for name, member in declared.items() if name.isupper() or inspect.isfunction(member)} <= own.keys()
