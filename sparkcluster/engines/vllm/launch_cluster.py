"""``launch-cluster.sh [OPTIONS] exec COMMAND`` of eugr/spark-vllm-docker, by which a recipe's command is run by hand.

Options: launch-cluster.sh of https://github.com/eugr/spark-vllm-docker at 013cd2e
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparkcluster.engines.vllm import eugr
from sparkcluster.recipes.container import REFUSED, Container, read
from sparkcluster.recipes.shell import shown, unknown
from sparkcluster.recipes.structured import set_by_runner

_EXTRA = "VLLM_SPARK_EXTRA_DOCKER_ARGS"
# Its options that it hands to docker run.
_DOCKER = {
    "-e": "--env", "--env": "--env", "-v": "--volume", "--volume": "--volume", "-p": "--publish",
    "--publish": "--publish", "--name": "--name",
}  # fmt: skip
_INTERCONNECT = "sparkcluster finds the interconnect; another is interconnect in the inventory"
_BUILD = "build an image that contains it"
# Others with a value, and why a playbook has nothing for them.
_VALUED = {
    "-n": "list the Sparks in the inventory", "--nodes": "list the Sparks in the inventory",
    "--eth-if": _INTERCONNECT, "--ib-if": _INTERCONNECT, "-j": "it is for builds in the container",
    "--apply-mod": "mount its directory, and run its run.sh under setup", "--apply-vllm-pr": _BUILD,
    "--master-port": "sparkcluster chooses the port", "--head-port": "sparkcluster chooses the port",
    "--config": "write the variables that it sets for the container under env",
    "--earlyoom-args": "sparkcluster starts no earlyoom", "--mem-limit-gb": REFUSED["memory"],
    "--mem-swap-limit-gb": REFUSED["memory-swap"], "--pids-limit": "a playbook has no such key",
    "--shm-size-gb": "ranks use the node's /dev/shm, which is half of its memory",
}  # fmt: skip
_ALONE = {
    "--check-config": "it starts nothing with it", "--no-cache-dirs": "every playbook keeps the caches of its engine",
    "--keep-entrypoint": "ranks start without an entrypoint", "--earlyoom": "sparkcluster starts no earlyoom",
    "--setup": _INTERCONNECT, "--discover": _INTERCONNECT,
}  # fmt: skip
_SILENT = frozenset({"-d", "--non-privileged"})  # every rank is so
_KEYS: Mapping[str, dict[str, Any]] = {
    "--ray": {"executor": "ray"},
    "--no-ray": {"executor": "native"},
    "--solo": {"nodes": {"max": 1}},
}


def launched(words: list[str], env: Mapping[str, str | None]) -> Container | None:
    """The container that the words start in ``env``; None where they are no such command."""
    if words[0].rpartition("/")[2] != "launch-cluster.sh" or "exec" not in words:
        return None
    at = words.index("exec")
    remaining, options, image, notes, keys = words[1:at], list[str](), "vllm-node", list[str](), dict[str, Any]()
    extra = env.get(_EXTRA) or ""
    if unknown(extra):
        notes.append(f"{shown(f'{_EXTRA}={extra}')}: write what its options say; the text does not set them")
    else:
        options += extra.split()  # as the script does, without quotes
    while remaining:
        word = remaining.pop(0)
        option, equals, value = word.partition("=")
        if not equals and option in {*_DOCKER, *_VALUED, "-t", "--container"}:
            value = remaining.pop(0) if remaining else ""
        if option in {"-t", "--container"}:
            image = value
        elif option == "--nccl-debug":
            is_level = remaining[:1] and re.fullmatch("VERSION|WARN|INFO|TRACE", remaining[0])
            options.append(f"--env=NCCL_DEBUG={remaining.pop(0) if is_level else 'INFO'}")
        elif option in _DOCKER:
            options.append(f"{_DOCKER[option]}={value}")
        elif option in _KEYS:
            keys |= _KEYS[option]
        elif option not in _SILENT:
            why = _VALUED.get(option) or _ALONE.get(option) or "unknown option of launch-cluster.sh"
            notes.append(f"{shown(f'{option} {value}').strip()}: {why}")
    container = read([*options, "--", image, *words[at + 1 :]])
    container.entrypoint = ""
    container.env = {name: env.get(name) if value is None else value for name, value in container.env.items()}
    container.keys = keys
    by_runner = set_by_runner({"env": container.env}, eugr.BY_RUNNER, "launch-cluster.sh")
    container.notes += [*notes, *by_runner]
    return container
