"""An engine's directory provides what the interface declares, under the same names."""

from __future__ import annotations

import inspect

import pytest

from sparkcluster import engines
from sparkcluster.engines.base import Engine, Imported
from sparkcluster.recipes.serve import Importer

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
