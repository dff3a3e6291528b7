"""The steps of ``setup``, each a module and a shell file; their selection and their changes. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sparkcluster.errors import UsageError
from sparkcluster.facts.survey import Survey
from sparkcluster.setup.step import Change, Step, Wanted
from sparkcluster.setup.steps import (
    clock,
    docker_group,
    headless,
    hf_cache,
    hold,
    limits,
    netplan,
    nvidia_runtime,
    perftest,
    ssh_key,
    sysctl,
)
from sparkcluster.suggest import did_you_mean
from sparkcluster.topology.netplan import NETPLAN

_MODULES = (
    *(ssh_key, docker_group, nvidia_runtime, sysctl, limits, hf_cache, perftest, clock, headless, hold),
    netplan,  # last: it may cut the connection
)
STEPS: tuple[Step, ...] = tuple(module.STEP for module in _MODULES)
BY_NAME = {step.name: step for step in STEPS}
_FILES = (f"~/{ssh_key.FILE}", NETPLAN, sysctl.FILE, limits.FILE, docker_group.FILE, nvidia_runtime.FILE)
REQUESTS = {
    "files": [*_FILES, *sysctl.PATHS.values()],
    "packages": [perftest.PACKAGE, *hold.PACKAGES],
}
"""Files and packages that a survey must read for the steps."""


def selected(only: Collection[str] = (), options: Collection[str] = ()) -> tuple[Step, ...]:
    """The selected steps, in order.

    Args:
        only: names of steps; empty for all except optional steps.
        options: names of optional steps to include.

    Raises:
        UsageError: a name is unknown.
    """
    for name in [*only, *options]:
        if name not in BY_NAME:
            known = [step.name for step in STEPS if step.option or name in only]
            raise UsageError(f"unknown step {name!r}", hint=did_you_mean(name, known, f"one of {', '.join(known)}"))
    chosen = [*only, *options] if only else [step.name for step in STEPS if not step.option or step.name in options]
    return tuple(step for step in STEPS if step.name in chosen)


def changes(node: str, survey: Survey, wanted: Wanted, steps: Collection[Step]) -> list[Change]:
    """Changes of ``steps`` that bring ``node`` to ``wanted``; the survey must include ``REQUESTS``."""
    found = []
    for step in steps:
        change = step.needed(survey, wanted)
        if change is None:
            continue
        if step.disruptive and survey.ranks and not change.blocked:
            reason = f"ranks are running: {', '.join(survey.ranks)}"
            change = replace(change, commands=(), blocked=reason, hint="sparkcluster down INVENTORY")
        hint = change.hint and change.hint.replace("NODE", node)
        found.append(replace(change, node=node, step=step.name, hint=hint))
    return found
