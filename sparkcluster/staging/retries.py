"""Limits on retries, and the combination of several nodes' failures into one error.

A copy or download that fails is not retried in the same run: bytes that arrived are kept, and the next run resumes
there. A silent source is waited for once; its copy and the others then use another source, if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.errors import LeaseLost, RegistryAuth, SparkclusterError

DOWNLOAD_NODES = 2
"""Nodes that may try to download: if two fail, a third rarely succeeds."""


def combined(errors: Sequence[SparkclusterError]) -> SparkclusterError:
    """The error to raise for ``errors`` of one step; the others, and their own ``others``, are attached.

    A lost lease comes first, then a login, since callers handle them separately.
    """
    errors = [each for error in errors for each in (error, *error.others)]
    first = min(errors, key=lambda error: (not isinstance(error, LeaseLost), not isinstance(error, RegistryAuth)))
    for each in errors:
        each.others = tuple(error for error in errors if error is not first) if each is first else ()
    return first
