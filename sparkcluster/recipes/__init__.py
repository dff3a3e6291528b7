"""Other tools' recipes as playbooks: text in, a playbook and what could not be carried over out.

Nothing is run and nothing is fetched: shell text is read word by word.
"""

from __future__ import annotations

from sparkcluster.recipes.choices import defines
from sparkcluster.recipes.read import Imported, convert

__all__ = ["Imported", "convert", "defines"]
