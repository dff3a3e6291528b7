"""Where each group's API is, from a plan document, a recorded release or a launcher document. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.node.shared import engine_address

KEY_NOT_IN_USE = "the API key of the inventory is not in use before a restart, and clients with it may get HTTP 401"


RESTART = "sparkcluster restart INVENTORY"
"""Starts what serves anew with the secrets that are set here, such as the API key of the inventory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """A group's API as its head reaches it, so that neither the user's network nor an open port is needed.

    Attributes:
        head: the node that is asked.
        url: ends in ``/v1``.
        model: name that requests carry.
        key_file: file on the head that holds the API key; None without a key.
        key_name: name that the key has there.
    """

    group: str
    head: str
    url: str
    model: str
    key_file: str | None
    key_name: str | None = None


def endpoints(plan: Mapping[str, Any], engine: str) -> dict[str, Endpoint]:
    """The endpoint of every group of a plan document, as ``plan.as_json()`` or a record has it; by group."""
    serving = engines.engine(engine)
    found = {}
    for name, node in plan["nodes"].items():
        if node.get("role") == "head":
            rank = node["containers"][0]
            keyed = serving.api_key in node.get("secrets", ())
            address = engine_address(rank["launcher"].get("engine") or [], serving.api_flags)
            found[node["group"]] = Endpoint(
                group=node["group"],
                head=name,
                url=f"http://{address}/v1",
                model=plan["model"],
                key_file=rank.get("env_file") if keyed else None,
                key_name=serving.api_key if keyed else None,
            )
    return found


def recorded_endpoints(recorded: Mapping[str, Any]) -> dict[str, Endpoint]:
    """The endpoint of every group of a recorded release; by group."""
    return endpoints(recorded["plan"], recorded.get("playbook", {}).get("engine", engines.DEFAULT))


def loopback(url: str) -> bool:
    """Whether ``url`` is one that this machine alone reaches."""
    return re.match(r"http://(127\.|\[::1\]|localhost:)", url) is not None
