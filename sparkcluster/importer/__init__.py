"""Other tools' recipes as playbooks: text in, a playbook and what could not be carried over out.

Nothing is run and nothing is fetched: shell text is parsed.
"""

from __future__ import annotations

from sparkcluster.importer.read import Imported, convert, defines

__all__ = ["Imported", "convert", "defines"]
