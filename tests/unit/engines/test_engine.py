"""An engine's directory provides the members that the interface declares, under the same names."""

from __future__ import annotations

import ast
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
def test_an_imported_member_takes_the_arguments_of_the_interface(name, member):
    declared, found = getattr(Engine, member), getattr(engines.engine(name), member)
    if not inspect.isfunction(declared):
        assert found
        return
    declared_parameters = list(inspect.signature(declared).parameters.values())[1:]
    keywords = {parameter.name: None for parameter in declared_parameters if parameter.kind is parameter.KEYWORD_ONLY}
    inspect.signature(found).bind(*[None] * (len(declared_parameters) - len(keywords)), **keywords)


def test_importers_define_all_required_members():
    importers = [importer for name in engines.names() if (importer := engines.engine(name).importer) is not None]
    expected = {name for name in vars(Importer) if not name.startswith("_")} | set(Importer.__annotations__)
    assert importers
    assert all(hasattr(importer, name) for importer in importers for name in expected)


def test_engine_names_are_read_without_importing_the_engines():
    assert [engines.engine(name).name for name in engines.names()] == engines.names()


@pytest.mark.parametrize(
    "path", [*map(str, (ROOT / "sparkcluster/engines").glob("*/node.py")), "tests/data/engines/canned/node.py"]
)
def test_an_engine_module_for_nodes_defines_all_required_names(path):
    """If one is missing, no image can be read, as if there were no images."""
    own, declared = (runpy.run_path(str(ROOT / each)) for each in (path, "sparkcluster/node/engine.py"))
    assert {name for name, member in declared.items() if name.isupper() or inspect.isfunction(member)} <= own.keys()


# Aliases of engines count too.
NAMES = {*engines.names(), "llama", "sglang", "trtllm", "tensorrt-llm", "canned"}


def compared(path: Path) -> list[str]:
    """Comparisons with the name of an engine in a module: ==, in, match; and dictionaries keyed by one."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        parts = [node] if isinstance(node, ast.Compare | ast.MatchValue) else []
        parts += node.keys if isinstance(node, ast.Dict) else []
        words = [each for part in parts if part for each in ast.walk(part) if isinstance(each, ast.Constant)]
        found += [f"{path}:{node.lineno}" for each in words if each.value in NAMES]
    return found


def test_no_module_outside_of_engines_and_lab_compares_an_engine_name(tmp_path):
    """Differences between engines are members of the interface."""
    package = ROOT / "sparkcluster"
    rooms = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in {"engines", "lab"}]
    assert not [each for path in rooms for each in compared(path)]
    for line in ('x.name == "vllm"', 'x in {"llama.cpp"}', 'match x:\n  case "vllm": pass', '{"vllm": 1}[x]'):
        (tmp_path / "m.py").write_text(line)
        assert compared(tmp_path / "m.py"), line
