"""The speed of a group before and after a switch: the median of three completions while no other request runs.

Their text is prose: drafts by n-gram or MTP are nearly all right where a text repeats itself, as a count to 100 does,
and the speed of that is none that users see.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping

from sparkcluster import engines
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import Endpoint, endpoints
from sparkcluster.errors import LaunchError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, values
from sparkcluster.plan.release_record import RecordedGroup
from sparkcluster.report import speed_change
from sparkcluster.spec.playbook import Verify

PROMPTS = (
    "Describe in plain prose a walk through a harbour town on a rainy morning.",
    "Explain to a curious twelve-year-old, without lists, why the sky is blue and sunsets are red.",
    "Write a letter to a friend about a train journey during which much went wrong.",
)
# Long enough for a speed: the answer that verifies a model may have three tokens.
TOKENS, FEWEST = 128, 16


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        tokens_per_s: median of the completions; None where an engine did not tell.
        busy: whether it served other requests meanwhile, so that nothing can be said.
    """

    tokens_per_s: float | None
    busy: bool = False


def measure(host: Host, endpoint: Endpoint, verify: Verify, engine: str) -> Speed:
    """Ask three times; never raises: an answer that does not come is no speed."""
    counters = engines.engine(engine).counters
    found, busy = [], False
    for prompt in PROMPTS:
        question = verify.model_copy(update={"prompt": prompt})
        reply = ask(host, endpoint, question, max_tokens=TOKENS, counters=counters)
        busy = busy or (reply.counters or {}).get("running", 0) > 1 or (reply.counters or {}).get("waiting", 0) > 0
        if reply.problem is None and reply.tokens_per_s and (reply.tokens or 0) >= FEWEST:
            found.append(reply.tokens_per_s)
    return Speed(statistics.median(found) if found else None, busy)


def of_groups(fleet: Fleet, groups: Mapping[str, RecordedGroup]) -> dict[str, Speed]:
    """The speed of recorded groups that serve, all at once."""
    found = {name: endpoints(group.plan, group.engine)[name] for name, group in groups.items()}
    heads = {endpoint.head: name for name, endpoint in found.items()}

    def measured(host: Host) -> Speed:
        name = heads[host.name]
        return measure(host, found[name], groups[name].verify, groups[name].engine)

    return {heads[head]: each for head, each in values(fleet.each(measured, heads)).items()}


def compare(group: str, before: Speed | None, after: Speed, min_speed: float, node: str) -> str | None:
    """What is to be said of the speed after a switch: nothing, or a warning where requests of others ran.

    Raises:
        LaunchError: it is below ``min_speed`` of the speed before, and nothing else ran.
    """
    if before is None or not before.tokens_per_s or not after.tokens_per_s:
        return None
    share = after.tokens_per_s / before.tokens_per_s
    if share >= min_speed:
        return None
    text = f"{group}: {speed_change(before.tokens_per_s, after.tokens_per_s)}"
    if before.busy or after.busy:
        return f"warning: {text}, while other requests ran"
    hint = f"to accept it: --min-speed {share * 0.9:.2f}"
    raise LaunchError(text, node=node, step="verify", hint=hint)
