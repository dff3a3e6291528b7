"""No module imports itself through others, not even for types."""

from __future__ import annotations

import graphlib

import grimp


def test_imports_have_no_cycle():
    """A package and its modules count as one: the package's interface is made of them."""
    graph = grimp.build_graph("sparkcluster", cache_dir=None)
    imports = {
        module: {each for each in graph.find_modules_directly_imported_by(module) if not module.startswith(f"{each}.")}
        for module in graph.modules
    }
    graphlib.TopologicalSorter(imports).prepare()  # its error names the cycle
