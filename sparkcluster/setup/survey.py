"""Survey many machines in parallel, in one round trip.

A second and a third round trip follow while ends of cables are unknown or disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.facts.parse import readings
from sparkcluster.facts.survey import Survey
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.hosts.program import call
from sparkcluster.setup import rails
from sparkcluster.setup.cabling import cabling
from sparkcluster.setup.ports import DRIVER

SURVEY_S = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Collected:
    """Surveys by node, and errors of nodes that did not answer."""

    surveys: dict[str, Survey]
    errors: dict[str, SparkclusterError]


def survey(
    fleet: Fleet, hf_home: str, names: Iterable[str] | None = None, requests: Mapping[str, Sequence[str]] | None = None
) -> Collected:
    """Survey every node (or ``names``) in parallel, including netplan files.

    Args:
        fleet: the nodes.
        hf_home: Hugging Face cache directory from the inventory.
        names: the nodes to survey.
        requests: ``files`` and ``packages`` to read.
    """
    request: dict[str, Any] = {"hf_home": hf_home, **(requests or {})}
    request["files"] = [*request.get("files", ()), rails.FILES]
    outcomes = fleet.each(lambda host: _one(host, request), names)
    surveys, errors = values(outcomes), failures(outcomes)
    asked = addresses(surveys)
    look = {"hf_home": hf_home, "look_for": asked}

    # Linux records the sender of an ARP request before it answers (arp_process in net/ipv4/arp.c), so machines that
    # answered in the second round trip know their neighbour in the third.
    for _ in range(2 if asked else 0):
        nodes = {each.port.node for each in cabling(surveys).loose}
        for name, again in values(fleet.each(lambda host: _one(host, look), nodes)).items():
            surveys[name] = surveys[name].model_copy(update={"neighbours": again.neighbours})
    return Collected(surveys, errors)


def addresses(surveys: Mapping[str, Survey]) -> list[str]:
    """IPv4 addresses of QSFP ports; a port with only IPv4 does not answer IPv6 discovery."""
    interfaces = [each for found in surveys.values() for each in read(found.interfaces) or ()]
    found = (address for each in interfaces if each.driver == DRIVER for address in each.ipv4())
    return list(dict.fromkeys(str(address.ip) for address in found))


def _one(host: Host, request: dict[str, Any]) -> Survey:
    document = call(host, "survey", request, answer=dict[str, Any], timeout_s=SURVEY_S)
    return readings(Survey, host.name, "survey", document)
