"""Records releases on this node, and keeps what going back to one of them needs.

Beside ``releases/000007.json`` are the secrets of this node's rank of release 7, ``000007.env``, and Docker has the
tag ``sparkcluster/CLUSTER:000007`` on the image of that rank, so that ``docker image prune`` leaves it. Kept are the
releases of the newest images; of older ones the record alone stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from typing import Any

from sparkcluster.node import common, docker, enabled
from sparkcluster.node.programs import Failed, run
from sparkcluster.node.shared import kept_image, kept_repository, of_newest_images

_NUMBER = re.compile(r"[0-9]{6,10}")
_FILE = re.compile(r"([0-9]{6,10})\.(json|env)")
_LIST_S, _PRUNE_S = 10, 60


def images(cluster: str) -> dict[int, str]:
    """The image IDs that the tags of ``cluster`` lead to, by release number.

    Raises:
        Failed: Docker cannot be asked.
    """
    found = {}
    for line in run(docker.list_images(kept_repository(cluster)), _LIST_S).splitlines():
        name, _, image_id = line.partition(" ")
        number = name.rpartition(":")[2]
        if _NUMBER.fullmatch(number) and name == kept_image(cluster, int(number)):
            found[int(number)] = image_id
    return found


def numbers(directory: str, suffix: str) -> list[int]:
    """The numbers of the records (``json``) or secrets (``env``) in ``directory``, oldest first."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    matches = filter(None, map(_FILE.fullmatch, names))
    return sorted({int(match.group(1)) for match in matches if match.group(2) == suffix})


def directory_of(state_dir: str, cluster: str) -> str:
    """Directory of the records of ``cluster``."""
    return os.path.join(common.cluster_dir(state_dir, cluster), "releases")


def record(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Write release ``number``; only the newest ``keep`` remain.

    Image and secrets of this node's ``rank`` are kept first, for as long as the image is one of the newest
    ``keep_images``. ``rank`` has its image, its env_file, and the release that it was started as; ``start`` what
    starts it again (``enabled``).
    """
    cluster, number = request["cluster"], int(step["number"])
    directory = directory_of(request["state_dir"], cluster)
    rank = step.get("rank") or {}
    if rank.get("image"):
        run(docker.tag(rank["image"], kept_image(cluster, number)))
    secrets = _path(directory, number, "env")
    if rank.get("env_file"):
        content = _secrets_of(request, directory, rank)
        common.write_atomically(secrets, content)
    elif os.path.lexists(secrets):
        os.unlink(secrets)  # of a start under this number that was not recorded
    enabled.recorded(request, step)  # first: a record without it would be taken for whole
    common.write_atomically(_path(directory, number, "json"), json.dumps(step["record"], sort_keys=True).encode())
    for old in numbers(directory, "json")[: -int(step.get("keep", 20))]:
        os.unlink(_path(directory, old, "json"))
    with contextlib.suppress(Failed, OSError):
        _prune(cluster, directory, int(step.get("keep_images", 3)))
    return {}


def restore_secrets(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Write the secrets ``names`` of release ``number`` to ``path``, below the state directory.

    They are what is kept of that release, but for those in ``values``.
    """
    path = common.inside(step["path"], request["state_dir"])
    number, directory = int(step["number"]), directory_of(request["state_dir"], request["cluster"])
    kept: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        kept = common.read_env_file(_path(directory, number, "env"))
    found = {**kept, **step["values"]}
    lacking = [name for name in step["names"] if name not in found]
    if lacking:
        place = _path(directory, number, "env")
        raise Failed("the secrets of release %d are gone: %s lacks %s" % (number, place, ", ".join(lacking)))
    content = "".join("%s=%s\n" % (name, found[name]) for name in step["names"])
    common.write_atomically(path, content.encode(errors="surrogateescape"))
    return {}


def _path(directory: str, number: int, suffix: str) -> str:
    return os.path.join(directory, "%06d.%s" % (number, suffix))


def _secrets_of(request: dict[str, Any], directory: str, rank: dict[str, Any]) -> bytes:
    """The secrets of ``rank``; those that are kept of its release if its own file is gone."""
    own = common.inside(rank["env_file"], request["state_dir"])
    for path in (own, _path(directory, int(rank["release"]), "env")):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
    raise Failed("the secrets of release %d are gone: %s is missing" % (rank["release"], rank["env_file"]))


def _prune(cluster: str, directory: str, keep_images: int) -> None:
    """Remove tags and secrets of releases that have no record, or an older image than the newest ``keep_images``."""
    try:
        tagged = images(cluster)
    except Failed:
        tagged = {}
    kept = of_newest_images({number: tagged.get(number) for number in numbers(directory, "json")}, keep_images)
    for number in numbers(directory, "env"):
        if number not in kept:
            os.unlink(_path(directory, number, "env"))
    for name in os.listdir(directory):
        if name.startswith(".partial-"):  # secrets, perhaps, of an agent that was killed; no other one is at work
            os.unlink(os.path.join(directory, name))
    until = time.monotonic() + _PRUNE_S
    for number in sorted(tagged):
        if number not in kept:
            with contextlib.suppress(Failed):  # the last name of an image that a container uses stays
                run(docker.remove_image(kept_image(cluster, number)), max(until - time.monotonic(), 1))
