"""Files of root's on this node, made by containers, that its user has to change: by a container, without sudo.

The container is of the serving image, since no other is there; so it sees those directories alone, and has no network.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

from sparkcluster.node import common, docker
from sparkcluster.node.programs import Failed, run_once
from sparkcluster.node.shared import hub_folder

_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
# Links are not followed, nor entered.
_OWN = """
import os, sys
uid, gid = map(int, sys.argv[2:4])
def take(name, handle):
    if sys.argv[1] == "all" or os.stat(name, dir_fd=handle, follow_symlinks=False).st_uid == 0:
        os.chown(name, uid, gid, dir_fd=handle, follow_symlinks=False)
for top in sys.argv[4:]:
    for _, folders, files, handle in os.fwalk(top, follow_symlinks=False):
        for name in folders + files:
            take(name, handle)
    take(top, None)
"""


def remove_tree(path: str, image: str | None = None) -> None:
    """Remove a directory; what a container wrote there may be another user's, and then takes one of ``image``."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        try:
            _own("all", [path], image)
        except Failed as why:
            command = shlex.join(["sudo", "rm", "-rf", "--one-file-system", "--", path])
            raise Failed("%s; %s; on that node: %s" % (error, why, command)) from None
        shutil.rmtree(path)


def own(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Make the folder of ``repository`` in Hugging Face's cache, and its locks, this user's, with what root has there.

    Those that are missing are made. Of root's files alone: nobody else's are ours to take.

    Raises:
        Failed: a container of ``image`` cannot do it; or a folder is or is behind a link, other than ``hf_home``
            itself: root would change what it leads to.
    """
    home, name = os.path.realpath(common.expand(step["hf_home"])), hub_folder(step["repository"])
    folders = [os.path.join(home, name), os.path.join(home, "hub", ".locks", os.path.basename(name))]
    for folder in folders:
        if os.path.realpath(folder) != folder:
            hint = "check it: " + shlex.join(["namei", "-l", folder])
            raise Failed("%s is, or is behind, a symbolic link; not changed; %s" % (folder, hint))
    _own("root's", folders, step["image"])


def _own(whose: str, folders: Sequence[str], image: str | None) -> None:
    """Give what is root's in ``folders``, or all, to this user: as root, in a container that sees them alone."""
    if not image:
        raise Failed("no image is here, whose container could change it")
    words = [whose, str(os.getuid()), str(os.getgid()), *folders]
    run_once("own", image, _OWN, docker.as_root(_CAPABILITIES, folders), words=words)
