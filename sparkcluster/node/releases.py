"""The releases on this node: their records, and the images and secrets that a rollback needs.

``releases/000007.env`` has the secrets of this node's rank of release 7 (``000007.json``), and Docker has the tag
``sparkcluster/CLUSTER:000007`` for its image, so that ``docker image prune`` keeps it. They are kept for releases with
the newest images; of older releases only the record is kept.
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
"""The number of records to keep, and of images; releases with one of these images are rollback targets."""
_LIST_S, _PRUNE_S = 10, 60


def main(request: dict[str, Any], lines: BinaryIO) -> dict[str, Any]:
    """The records of the cluster in ``request``, and what is kept for a rollback.

    ``records``: oldest first, without unreadable ones. ``images``: the image ID of the tag of each kept release, by
    number in six digits; None if Docker does not answer or is not the ``runtime``. ``secrets``: numbers of the releases
    whose secrets are kept. ``switch``: the document of an unfinished switch, or None.
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

    Image and secrets of this node's ``rank`` are kept first, while the image is one of the newest. ``rank`` has image,
    env_file, and the release it was started as; ``start`` are the steps to start it again (``enabled``).
    """
    cluster, number, directory = request["cluster"], int(step["number"]), _directory(request)
    rank = step.get("rank") or {}
    if rank.get("image"):
        run(docker.tag(rank["image"], kept_image(cluster, number)))
    if rank.get("env_file"):
        common.write_atomically(_path(directory, number, "env"), _secrets_of(request, directory, rank))
    enabled.recorded(request, step)  # first: a record without it would look complete
    common.write_atomically(_path(directory, number, "json"), json.dumps(step["record"], sort_keys=True).encode())
    for old in _numbers(directory, "json")[:-KEEP]:
        os.unlink(_path(directory, old, "json"))
    with contextlib.suppress(Failed, OSError):
        _prune(cluster, directory)


def restore_secrets(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Write the secrets ``names`` of release ``number`` to ``path``, below the state directory.

    Secrets in ``values`` replace those kept for that release.
    """
    path = common.inside(step["path"], request["state_dir"])
    place = _path(_directory(request), int(step["number"]), "env")
    found: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        found = common.read_env_file(place)
    found.update(step["values"])
    lacking = [name for name in step["names"] if name not in found]
    if lacking:
        raise Failed("the secrets of release %d are missing: %s lacks %s" % (step["number"], place, ", ".join(lacking)))
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
    """Image IDs of the tags of ``cluster``, by release number.

    Raises:
        Failed: Docker does not answer.
    """
    repository = kept_repository(cluster)
    tags = re.escape(repository) + ":([0-9]{6,10}) (.+)"
    found = re.findall("^%s$" % tags, run(docker.list_images(repository), _LIST_S), re.MULTILINE)
    return {int(number): image_id for number, image_id in found}


def _secrets_of(request: dict[str, Any], directory: str, rank: dict[str, Any]) -> bytes:
    """The secrets of ``rank``; from its release, if its own file is missing."""
    own = common.inside(rank["env_file"], request["state_dir"])
    for path in filter(os.path.exists, (own, _path(directory, int(rank["release"]), "env"))):
        with open(path, "rb") as file:
            return file.read()
    raise Failed("the secrets of release %d are missing: %s does not exist" % (rank["release"], rank["env_file"]))


def _prune(cluster: str, directory: str) -> None:
    """Remove tags and secrets of releases without a record, or with an image that is not among the newest.

    A release without an image is kept if no newer image was dropped.
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
        if name.startswith(".partial-"):  # left by an agent that was killed, maybe with secrets; no other is running
            os.unlink(os.path.join(directory, name))
    over = [kept_image(cluster, number) for number in sorted(tagged.keys() - kept)]
    if over:
        run(docker.remove_image(*over), _PRUNE_S)  # Docker keeps the last name of an image that a container uses
