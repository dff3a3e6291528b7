"""The releases on this node: their records, and what going back to one of them needs.

Beside ``releases/000007.json`` are the secrets of this node's rank of release 7, ``000007.env``, and Docker has the
tag ``sparkcluster/CLUSTER:000007`` on the image of that rank, so that ``docker image prune`` leaves it. Kept are the
releases of the newest images; of older ones the record alone stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, enabled
from sparkcluster.node.programs import Failed, run
from sparkcluster.node.shared import SWITCH_FILE, kept_image, kept_repository

KEEP, KEEP_IMAGES = 20, 3
"""The newest records that remain, and images, with the releases that run one of them: what can be gone back to."""
_LIST_S, _PRUNE_S = 10, 60


def main(request: dict[str, Any], lines: BinaryIO) -> dict[str, Any]:
    """What is recorded here of the cluster that ``request`` names, and what is kept for going back to a release.

    ``records``, oldest first, without unreadable ones; ``images``, the ID that the tag of each kept release leads to,
    by number in six digits, None if Docker cannot be asked or is not the ``runtime``; ``secrets``, the numbers of the
    releases whose secrets are kept; ``switch``, the document of the switch under way, or None.
    """
    directory = _directory(request)
    records = [common.read_json(_path(directory, number, "json")) for number in _numbers(directory, "json")]
    images = None
    with contextlib.suppress(Failed):
        if request.get("runtime") != "process":
            images = {"%06d" % number: image for number, image in _images(request["cluster"]).items()}
    return {
        "records": [record for record in records if record],
        "images": images,
        "secrets": _numbers(directory, "env"),
        "switch": common.read_json(os.path.join(os.path.dirname(directory), SWITCH_FILE)) or None,
    }


def record(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Write release ``number``.

    Image and secrets of this node's ``rank`` are kept first, for as long as the image is one of the newest. ``rank``
    has its image, its env_file, and the release that it was started as; ``start`` what starts it again (``enabled``).
    """
    cluster, number, directory = request["cluster"], int(step["number"]), _directory(request)
    rank = step.get("rank") or {}
    if rank.get("image"):
        run(docker.tag(rank["image"], kept_image(cluster, number)))
    if rank.get("env_file"):
        common.write_atomically(_path(directory, number, "env"), _secrets_of(request, directory, rank))
    enabled.recorded(request, step)  # first: a record without it would be taken for whole
    common.write_atomically(_path(directory, number, "json"), json.dumps(step["record"], sort_keys=True).encode())
    for old in _numbers(directory, "json")[:-KEEP]:
        os.unlink(_path(directory, old, "json"))
    with contextlib.suppress(Failed, OSError):
        _prune(cluster, directory)


def restore_secrets(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Write the secrets ``names`` of release ``number`` to ``path``, below the state directory.

    They are what is kept of that release, but for those in ``values``.
    """
    path = common.inside(step["path"], request["state_dir"])
    place = _path(_directory(request), int(step["number"]), "env")
    found: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        found = common.read_env_file(place)
    found.update(step["values"])
    lacking = [name for name in step["names"] if name not in found]
    if lacking:
        raise Failed("the secrets of release %d are gone: %s lacks %s" % (step["number"], place, ", ".join(lacking)))
    content = "".join("%s=%s\n" % (name, found[name]) for name in step["names"])
    common.write_atomically(path, content.encode(errors="surrogateescape"))


def _directory(request: dict[str, Any]) -> str:
    return os.path.join(common.cluster_dir(request["state_dir"], request["cluster"]), "releases")


def _path(directory: str, number: int, suffix: str) -> str:
    return os.path.join(directory, "%06d.%s" % (number, suffix))


def _numbers(directory: str, suffix: str) -> list[int]:
    """The numbers of the records (``json``) or secrets (``env``) in ``directory``, oldest first."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted(int(name.partition(".")[0]) for name in names if re.fullmatch("[0-9]{6,10}." + suffix, name))


def _images(cluster: str) -> dict[int, str]:
    """The image IDs that the tags of ``cluster`` lead to, by release number.

    Raises:
        Failed: Docker cannot be asked.
    """
    repository = kept_repository(cluster)
    tags = re.escape(repository) + ":([0-9]{6,10}) (.+)"
    found = re.findall("^%s$" % tags, run(docker.list_images(repository), _LIST_S), re.MULTILINE)
    return {int(number): image_id for number, image_id in found}


def _secrets_of(request: dict[str, Any], directory: str, rank: dict[str, Any]) -> bytes:
    """The secrets of ``rank``; those that are kept of its release if its own file is gone."""
    own = common.inside(rank["env_file"], request["state_dir"])
    for path in filter(os.path.exists, (own, _path(directory, int(rank["release"]), "env"))):
        with open(path, "rb") as file:
            return file.read()
    raise Failed("the secrets of release %d are gone: %s is missing" % (rank["release"], rank["env_file"]))


def _prune(cluster: str, directory: str) -> None:
    """Remove tags and secrets of releases that have no record, or an older image than the newest.

    One without an image is kept if no image of a newer one was dropped.
    """
    tagged: dict[int, str] = {}
    with contextlib.suppress(Failed):
        tagged = _images(cluster)
    recorded = _numbers(directory, "json")
    images = {number: tagged[number] for number in recorded if number in tagged}
    newest = list(dict.fromkeys(reversed(images.values())))[:KEEP_IMAGES]
    dropped = [number for number, image in images.items() if image not in newest]
    kept = {number for number in recorded if number in images or number > max(dropped, default=-1)} - set(dropped)
    for number in _numbers(directory, "env"):
        if number not in kept:
            os.unlink(_path(directory, number, "env"))
    for name in os.listdir(directory):
        if name.startswith(".partial-"):  # secrets, perhaps, of an agent that was killed; no other one is at work
            os.unlink(os.path.join(directory, name))
    over = [kept_image(cluster, number) for number in sorted(tagged.keys() - kept)]
    if over:
        run(docker.remove_image(*over), _PRUNE_S)  # the last name of an image that a container uses stays
