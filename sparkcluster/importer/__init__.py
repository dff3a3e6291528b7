"""Convert recipes of other tools to a playbook, with notes about what was not converted.

Shell text is parsed, never executed, and nothing is fetched.
"""

from __future__ import annotations

from sparkcluster.importer.read import Imported, convert, defines

__all__ = ["Imported", "convert", "defines"]
