"""Finds each group's API in a plan document, a recorded release or a launcher document. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.node.shared import engine_address

KEY_NOT_IN_USE = "the inventory's API key takes effect at the next restart; until then clients with it may get HTTP 401"


RESTART = "sparkcluster restart INVENTORY"
"""Restarts the running model with the secrets that are set here, such as the inventory's API key."""


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """A group's API as its head reaches it, independent of the user's network and of open ports.

    Attributes:
        head: the node that sends requests.
        url: ends in ``/v1``.
        model: the model's name in requests.
        key_file: file on the head that holds the API key; None without a key.
        key_name: name of the key in that file.
    """

    group: str
    head: str
    url: str
    model: str
    key_file: str | None
    key_name: str | None = None


def endpoints(plan: Mapping[str, Any], engine: str) -> dict[str, Endpoint]:
    """The endpoint of every group in a plan document, from ``plan.as_json()`` or a record; by group."""
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
    """The endpoint of every group in a recorded release; by group."""
    return endpoints(recorded["plan"], recorded.get("playbook", {}).get("engine", engines.DEFAULT))


def loopback(url: str) -> bool:
    """Whether only this machine reaches ``url``."""
    return re.match(r"http://(127\.|\[::1\]|localhost:)", url) is not None
