"""How often staging tries, and how failures of several nodes become one error.

A copy or download that fails is not repeated within one run: what arrived stays, and the next run resumes there.
A source that falls silent is waited for once; its copy, and the others, come from another source where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.errors import LeaseLost, RegistryAuth, SparkclusterError

DOWNLOAD_NODES = 2
"""Nodes that may try to download: where two cannot, a third rarely can."""


def combined(errors: Sequence[SparkclusterError]) -> SparkclusterError:
    """The error to raise for ``errors`` of one step, with the others, and those of each of them, in it.

    A lost lease comes first, then a login, since callers treat them apart.
    """
    errors = [each for error in errors for each in (error, *error.others)]
    first = min(errors, key=lambda error: (not isinstance(error, LeaseLost), not isinstance(error, RegistryAuth)))
    for each in errors:
        each.others = tuple(error for error in errors if error is not first) if each is first else ()
    return first
